"""How long a freed card waits for its next pod."""

import time
from collections.abc import Callable, Mapping
from typing import Final

from tests.bench.figures import Reading, figure
from tests.bench.pool_lab import Moments, cluster, delete, pod

CARDS: Final = 8
WAITING: Final = 200
FREED: Final = 200


def _more_than(count: int) -> Callable[[Mapping[str, float]], bool]:
    return lambda bound: len(bound) > count


def _percentile(values: list[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * part))]


@figure("freed_to_bound_p99_s", unit="s")
@figure("freed_to_bound_p50_s", unit="s")
def freed_to_bound() -> dict[str, Reading]:
    """One card is freed at a time while WAITING pods want it; from the answer to the deletion to the Binding."""
    waits: list[float] = []
    with cluster(CARDS) as lab:
        moments = Moments(lab)
        lab.api.all_ok(pod(f"p{number}", cards=1) for number in range(CARDS + WAITING))
        moments.wait(lambda bound: len(bound) == CARDS)
        for number in range(FREED):
            oldest = sorted(moments.bound, key=moments.bound.__getitem__)[number]
            lab.api.ok(delete(oldest))
            freed = time.monotonic()
            moments.wait(_more_than(CARDS + number))
            waits.append(max(moments.bound.values()) - freed)
            lab.api.ok(pod(f"q{number}", cards=1))
    return {
        "freed_to_bound_p50_s": Reading(_percentile(waits, 0.5), len(waits)),
        "freed_to_bound_p99_s": Reading(_percentile(waits, 0.99), len(waits)),
    }
