import pytest

from controllers.pool.servers import Phase
from service import api
from tests.unit.page.crowd import Crowd
from tests.unit.pool import build


@pytest.mark.parametrize("phase", list(Phase))
def test_every_phase_of_an_allocation_has_a_state(phase: Phase) -> None:
    crowd = Crowd([build.server(held=[build.allocation(phase=phase)])])
    (server,) = crowd.explainer().servers().servers
    assert server.cards[0].state in {api.CardState.RESERVED, api.CardState.BOUND, api.CardState.DRAINING}


def test_a_phase_of_a_newer_version_is_unknown_and_not_free() -> None:
    crowd = Crowd([build.server(held=[build.allocation(phase="Borrowed")])])
    assert crowd.explainer().servers().servers[0].cards[0].state is api.CardState.UNKNOWN


def test_waiting_pods_with_one_explanation_are_together_in_the_order_of_the_queue() -> None:
    asks_two = build.asks(remote_gpu=2)
    crowd = Crowd(
        [build.server()],
        [
            build.pod("late"),
            build.pod("two", asks_two),
            build.pod("urgent", priority=9),
            build.pod("gated", gates=("tenure.dev/remote-gpu", "x/quota")),
            build.pod("leaving", deleting=True),
            build.pod("placed", node="n1"),
            build.pod("blind", build.asks(injected=False, remote_gpu=1)),
        ],
    )
    found = list(crowd.explainer().waiting())
    assert [(group.first, group.pods) for group in found] == [
        (("ns/urgent", "ns/late"), 2),
        (("ns/two",), 1),
        (("ns/blind",), 1),
        (("ns/gated",), 1),
    ]
    for group in found:
        namespace, name = group.first[0].split("/")
        assert group.sentence == crowd.explainer().explain(namespace, name).sentence
    assert crowd.explainer().backlog() == api.Backlog(5, "2026-01-01T12:00:00+00:00")


def test_servers_that_answer_alike_are_counted_together() -> None:
    full = [
        build.server(
            f"s{number}", of=[build.card(f"GPU-{number}")], held=[build.allocation(f"GPU-{number}", "x")]
        )
        for number in range(3)
    ]
    crowd = Crowd(
        [*full, build.server("s9", of=build.cards(10, 10))], [build.pod("u1", build.asks(remote_gpu=1))]
    )
    (group,) = crowd.explainer().waiting()
    assert group.servers == (
        api.Alike(3, "0 of 1 cards are free, 1 are needed"),
        api.Alike(1, "could serve it as soon as those before it are served"),
    )


def test_pods_that_have_their_promise_are_together_however_long_they_have_it() -> None:
    held = [
        build.allocation("GPU-0", "a", since=build.ago(5)),
        build.allocation("GPU-1", "b", since=build.ago(50)),
    ]
    crowd = Crowd(
        [build.server(of=build.cards(1, 1), held=held)], [build.pod("a", gates=()), build.pod("b", gates=())]
    )
    (group,) = crowd.explainer().waiting()
    assert (group.pods, group.servers) == (2, ())
    assert group.sentence.startswith("1 card promised; the scheduler has no node for it yet")


def test_a_demand_for_memory_is_part_of_the_sentence() -> None:
    crowd = Crowd([build.server()], [build.pod("u", build.asks(remote_gpu=2, remote_gpu_memory=80_000))])
    sentence = crowd.explainer().explain("ns", "u").sentence
    assert sentence == "waits for 2 cards of 80000 MiB or more on one server"
