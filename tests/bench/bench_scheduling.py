"""What the extender takes from the scheduler's throughput."""

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, Final

from tests.bench.figures import Reading, figure
from tests.bench.pool_lab import NO_BRAKE, PATH, PATIENCE_S, Moments, cluster, delete, pod
from tests.lab.lab import Lab
from tests.lab.product import SCHEDULER

WAITING: Final = 200
# Pods without cards in each round, rounds of either scheduler, and the cards of each server.
BATCH: Final = 600
ROUNDS: Final = 3
SERVERS: Final = (16,) * 16
PLAIN: Final = "plain-scheduler"
PLAIN_CONFIGURATION: Final = {
    "apiVersion": "kubescheduler.config.k8s.io/v1",
    "kind": "KubeSchedulerConfiguration",
    "profiles": [{"schedulerName": PLAIN}],
    **NO_BRAKE,
}


@figure("scheduling_throughput_ratio", unit="ratio")
@figure("scheduling_pods_per_s", unit="1/s")
@figure("scheduling_pods_per_s_without_extender", unit="1/s")
@figure("scheduling_pods_with_cards_per_s", unit="1/s")
def scheduling_throughput() -> dict[str, Reading]:
    """Pods that wait when their scheduler starts; from the first Binding to the last. The ratio is of medians.

    First pods that have a promised card each; then, while WAITING pods are gated, pods without cards, for the
    scheduler with the extender and for the same without it in turns.
    """
    rates: dict[str, list[float]] = {SCHEDULER: [], PLAIN: []}
    with cluster(*SERVERS) as lab:
        lab.start_scheduler(PLAIN, PLAIN_CONFIGURATION)
        moments = Moments(lab)
        cards = _rate(lab, moments, SCHEDULER, [f"c{number}" for number in range(sum(SERVERS))], cards=1)
        lab.api.all_ok(pod(f"w{number}", cards=1) for number in range(WAITING))
        for turn in range(ROUNDS):
            for scheduler, measured in rates.items():
                batch = [f"{scheduler}-{turn}-{number}" for number in range(BATCH)]
                measured.append(_rate(lab, moments, scheduler, batch))
                lab.api.all_ok(map(delete, batch))
    with_extender, without = median(rates[SCHEDULER]), median(rates[PLAIN])
    return {
        "scheduling_throughput_ratio": Reading(with_extender / without, BATCH * ROUNDS),
        "scheduling_pods_per_s": Reading(with_extender, BATCH * ROUNDS),
        "scheduling_pods_per_s_without_extender": Reading(without, BATCH * ROUNDS),
        "scheduling_pods_with_cards_per_s": Reading(cards, sum(SERVERS)),
    }


def _rate(lab: Lab, moments: Moments, scheduler: str, batch: Sequence[str], *, cards: int = 0) -> float:
    """Pods per second that the scheduler binds when it finds them all waiting."""
    lab.components.stop(scheduler)
    lab.api.all_ok(pod(name, cards=cards, scheduler=scheduler) for name in batch)
    lab.wait_for(PATH, accept=_schedulable(scheduler, len(batch)), seconds=PATIENCE_S)
    lab.components.start(scheduler)
    moments.wait(lambda bound: bound.keys() >= set(batch))
    times = [moments.bound[name] for name in batch]
    return (len(times) - 1) / (max(times) - min(times))


def _schedulable(scheduler: str, count: int) -> Callable[[Any], bool]:
    """That so many pods wait for this scheduler, and for nothing else."""

    def waits(found: Any) -> bool:
        spec = found["spec"]
        return spec["schedulerName"] == scheduler and not ("nodeName" in spec or "schedulingGates" in spec)

    return lambda found: sum(map(waits, found["items"])) == count
