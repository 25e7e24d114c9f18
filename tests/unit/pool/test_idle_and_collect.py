from collections.abc import Mapping, Sequence

import msgspec
from prometheus_client import Metric

from controllers.pool.book import Book
from controllers.pool.collect import PoolCollector
from controllers.pool.fresh import OwnWrites
from controllers.pool.idle import servable
from controllers.pool.placement import KeptCard, Waiting
from controllers.pool.pods import Pods
from controllers.pool.servers import Reason, RemoteServer
from tests.unit.pool import build


def test_a_pod_that_the_free_cards_of_one_server_would_serve_is_counted() -> None:
    pods = [build.waiting("one"), build.waiting("two", count=2), build.waiting("large", mib=99)]
    assert servable(pods, [build.offer("a", 10), build.offer("b", 10)], {}) == 1
    assert servable(pods, [build.offer("a", 10, 10)], {}) == 2
    assert servable(pods, [build.offer("a", held=[10])], {}) == 0


def test_cards_that_are_kept_for_a_starving_pod_serve_nobody_else() -> None:
    pods = [build.waiting("starves", count=2), build.waiting("small")]
    assert servable(pods, [build.offer("a", 10)], {("a", "a-0"): "starves"}) == 0


def test_however_many_demands_tenants_invent_only_the_most_frequent_are_tried() -> None:
    invented = [build.waiting(f"p{mib}", mib=mib) for mib in range(100)]
    often = [build.waiting(f"q{number}", mib=100) for number in range(2)]
    assert servable([*invented, *often], [build.offer("a", 100)], {}) == 17


def samples(
    servers: Sequence[RemoteServer], queue: Sequence[Waiting] = (), kept: Mapping[KeptCard, str] | None = None
) -> dict[tuple[str, ...], float]:
    pods = Pods(OwnWrites(lambda: 0.0))
    book = Book(pods.witnesses, OwnWrites(lambda: 0.0))
    for server in servers:
        book.learn(server)
    found: list[Metric] = list(
        PoolCollector(
            book,
            pods,
            queue=lambda: list(queue),
            kept=lambda: kept or {},
            offered_locally=lambda: 0,
            clock=lambda: build.NOW,
        ).collect()
    )
    return {(s.name, *s.labels.values()): s.value for metric in found for s in metric.samples}


def test_the_card_that_drains_for_longest_and_every_reason_have_a_series() -> None:
    held = [
        build.allocation("GPU-0", "a", "Draining", build.ago(30)),
        build.allocation("GPU-1", "b", "Draining", build.ago(700)),
        build.allocation("GPU-2", "c", "Bound", build.ago(9000)),
    ]
    marked = msgspec.structs.replace(build.card("GPU-3", offered=False), reasons=("HostHeld", "Cordoned"))
    found = samples([build.server(of=[*build.cards(1, 1, 1), marked], held=held)])
    assert found["tenure_pool_longest_draining_seconds",] == 700
    assert found["tenure_pool_cards", "draining"] == 2
    told = {reason.value: found["tenure_pool_card_reasons", reason.value] for reason in Reason}
    assert told == dict.fromkeys([reason.value for reason in Reason], 0) | {"HostHeld": 1, "Cordoned": 1}


def test_with_nothing_there_every_count_is_zero_and_not_absent() -> None:
    found = samples([])
    for name in (
        "waiting_pods",
        "oldest_wait_seconds",
        "servable_pods",
        "free_cards",
        "longest_draining_seconds",
    ):
        assert found[f"tenure_pool_{name}",] == 0
