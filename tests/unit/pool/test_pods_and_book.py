from controllers.pool.book import Book
from controllers.pool.fresh import BELIEVED_S, OwnWrites, newer
from controllers.pool.ledger import Fate
from controllers.pool.pods import Pods, PodView, Resources, slim, view
from service import names
from service.objects import EnvVar, Pod
from tests.unit.pool import build

RESOURCES = Resources()


def seen(pod: Pod) -> PodView:
    found = view(pod, RESOURCES)
    assert found is not None
    return found


def an_allocation(text: str) -> dict[str, str]:
    return {names.DEVICES_ALLOCATED: text}


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_pod_without_a_request_and_without_an_allocation_leaves_no_trace() -> None:
    assert view(build.pod("u", build.asks()), RESOURCES) is None


def test_a_pod_is_in_the_queue_only_when_no_other_gate_holds_it() -> None:
    assert seen(build.pod()).may_be_served
    other = seen(build.pod(gates=(names.GATE, "quota.example/hold")))
    assert not other.may_be_served
    assert other.other_gates == ("quota.example/hold",)
    assert not seen(build.pod(deleting=True)).may_be_served
    assert not seen(build.pod(node="n1")).may_be_served
    assert not seen(build.pod(phase="Failed")).may_be_served


def test_a_pod_that_lost_its_promise_is_in_the_queue_again_by_its_age() -> None:
    assert seen(build.pod(gates=())).may_be_served


def test_a_pod_that_came_past_the_webhook_is_never_served() -> None:
    assert not seen(build.pod("u", build.asks(injected=False, remote_gpu=1))).may_be_served
    twice = build.asks(remote_gpu=1)
    assert twice.env is not None
    doubled = type(twice)(twice.name, None, twice.resources, (*twice.env, EnvVar(names.LUPINE_SERVER_ENV)))
    assert not seen(build.pod("u", doubled)).may_be_served


def test_a_placed_pods_annotation_is_believed_when_it_fits_its_request() -> None:
    found = seen(build.pod(node="n", annotations=an_allocation("s1/GPU-0,NVIDIA,10,100:;")))
    assert found.witness is not None
    assert found.witness[0] == "s1"
    assert found.witness[1].cards == ("GPU-0",)


def test_forged_or_impossible_annotations_hold_nothing_and_are_reported() -> None:
    for text in (
        "s1/GPU-0,NVIDIA,10,100:s1/GPU-1,NVIDIA,10,100:;",  # two cards, one asked
        ";",  # none, one asked
        "GPU-0,NVIDIA,10,100:;",  # no server
        "garbage,x:;",
    ):
        found = seen(build.pod(node="n", annotations=an_allocation(text)))
        assert found.witness is None
        assert found.suspicion
    two_servers = build.pod(
        "u", build.asks(remote_gpu=2), node="n", annotations=an_allocation("a/G0,N,1,1:b/G1,N,1,1:;")
    )
    assert seen(two_servers).suspicion
    no_request = build.pod("u", build.asks(), node="n", annotations=an_allocation("s1/GPU-0,NVIDIA,10,100:;"))
    assert seen(no_request).suspicion


def test_an_annotation_on_a_pod_without_a_node_holds_nothing() -> None:
    found = seen(build.pod(annotations=an_allocation("s1/GPU-0,NVIDIA,10,100:;")))
    assert found.witness is None
    assert found.may_be_served


def test_what_the_pool_does_not_read_is_not_kept_in_memory() -> None:
    pod = build.pod(annotations={"big": "x" * 1000, **an_allocation("s1/GPU-0,NVIDIA,10,100:;")})
    kept = slim(pod, RESOURCES)
    assert set(kept.metadata.annotations) == {names.DEVICES_ALLOCATED}
    assert view(kept, RESOURCES) == view(pod, RESOURCES)


def test_a_pods_fate_is_known_from_its_state_or_its_end_and_otherwise_unknown() -> None:
    pods = Pods(OwnWrites(Clock()))
    held = build.allocation(uid="u1")
    assert pods.fate(held) is Fate.UNKNOWN
    pods.learn(seen(build.pod("u1")))
    assert pods.fate(held) is Fate.WAITING
    pods.learn(seen(build.pod("u1", node="n")))
    assert pods.fate(held) is Fate.PLACED
    pods.learn(seen(build.pod("u1", node="n", phase="Succeeded")))
    assert pods.fate(held) is Fate.ENDED
    pods.end("u1", placed=True)
    assert pods.fate(held) is Fate.ENDED
    pods.end("u2", placed=False)
    assert pods.fate(build.allocation(uid="u2")) is Fate.NEVER_PLACED


def test_a_pod_that_ended_does_not_come_back_with_a_late_event() -> None:
    pods = Pods(OwnWrites(Clock()))
    pods.end("u1", placed=False)
    pods.learn(seen(build.pod("u1")))
    assert pods.get("u1") is None


def test_a_pod_that_only_our_own_call_told_of_is_asked_for_after_a_while() -> None:
    """The watch may have missed its whole life, between two lists; then it tells of no end either."""
    clock = Clock()
    pods = Pods(OwnWrites(clock))
    held = build.allocation(uid="u1")
    pods.learn(seen(build.pod("u1")), fresh=True)
    assert (pods.fate(held), pods.unheard("u1")) == (Fate.WAITING, True)
    clock.now += BELIEVED_S
    assert pods.fate(held) is Fate.UNKNOWN
    pods.learn(seen(build.pod("u1")))
    assert (pods.fate(held), pods.unheard("u1")) == (Fate.WAITING, False)


def test_a_same_named_successor_is_another_pod() -> None:
    pods = Pods(OwnWrites(Clock()))
    pods.learn(seen(build.pod("first", node="n")))
    pods.end("first", placed=True)
    pods.learn(seen(build.pod("second")))
    assert pods.fate(build.allocation(uid="first")) is Fate.ENDED
    assert pods.fate(build.allocation(uid="second")) is Fate.WAITING


def a_book(clock: Clock | None = None) -> tuple[Book, Pods]:
    pods = Pods(OwnWrites(clock or Clock()))
    return Book(pods.witnesses, OwnWrites(clock or Clock())), pods


def test_the_book_answers_who_holds_what_by_pod() -> None:
    book, _ = a_book()
    book.learn(build.server(of=build.cards(1, 1), held=[build.allocation("GPU-1", "u1")]))
    promise = book.promise("u1")
    assert promise is not None
    assert [card.id for card in promise.cards] == ["GPU-1"]
    book.learn(build.server(of=build.cards(1, 1), version="2"))
    assert book.promise("u1") is None


def test_a_card_that_only_a_placed_pod_knows_of_is_not_free() -> None:
    book, pods = a_book()
    book.learn(build.server(of=build.cards(1, 1)))
    pods.learn(seen(build.pod("u1", node="n", annotations=an_allocation("s1/GPU-0,NVIDIA,1,100:;"))))
    assert [card.id for card in book.offers()[0].free] == ["GPU-1"]
    pods.end("u1", placed=True)
    assert len(book.offers()[0].free) == 2


def test_an_older_reading_of_the_watch_does_not_undo_our_own_write() -> None:
    clock = Clock()
    book, _ = a_book(clock)
    book.learn(build.server(held=[build.allocation()], version="12"), fresh=True)
    book.learn(build.server(version="9"))
    assert book.promise("u1") is not None
    book.learn(build.server(version="13"))
    assert book.promise("u1") is None


def test_a_server_restored_from_a_backup_is_believed_again_after_a_while() -> None:
    clock = Clock()
    book, _ = a_book(clock)
    book.learn(build.server(held=[build.allocation()], version="12"), fresh=True)
    clock.now = BELIEVED_S
    book.learn(build.server(version="9"))
    assert book.promise("u1") is None


def test_a_deleted_server_is_forgotten_but_not_its_successor() -> None:
    book, _ = a_book()
    old = build.server(held=[build.allocation()])
    book.learn(old)
    book.forget(old)
    assert "s1" not in book
    assert book.promise("u1") is None


def test_versions_are_compared_as_numbers() -> None:
    assert newer("10", "9")
    assert not newer("9", "10")
    assert newer("abc", "9")
