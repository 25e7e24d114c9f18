"""How long a freed card waits for its next pod, and what the extender costs pods that need no card.

Real API server and kube-scheduler, one replica of Tenure as a process of its own, kubelets imitated. Moments are those
at which a watch tells them.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from service import names
from tests.bench.figures import Reading, figure
from tests.lab.api import Call
from tests.lab.lab import Lab
from tests.lab.product import SCHEDULER, Product, Replica, scheduler_config
from tests.lab.simulated import SimulatedNode

NAMESPACE: Final = "jobs"
PATH: Final = f"/api/v1/namespaces/{NAMESPACE}/pods"
PLAIN: Final = "plain-scheduler"
CARDS: Final = 8
WAITING: Final = 200
FREED: Final = 200
PODS: Final = 400
# Enough that the scheduler's own brake on API calls does not decide.
NO_BRAKE: Final = {"clientConnection": {"qps": 5000, "burst": 5000}}
PATIENCE_S: Final = 120.0


class Moments:
    """When each pod got its node, on the monotonic clock in seconds, as a watch told it."""

    def __init__(self, lab: Lab) -> None:
        self.bound: dict[str, float] = {}
        self._news = threading.Condition()
        version = lab.api.ok(Call("GET", PATH))["metadata"]["resourceVersion"]
        path = f"{PATH}?watch=1&resourceVersion={version}&timeoutSeconds=900"
        self._thread = threading.Thread(target=self._read, args=(lab, path), daemon=True, name="watch")
        self._thread.start()

    def _read(self, lab: Lab, path: str) -> None:
        with suppress(OSError, ValueError):  # The lab ends, and with it the watch.
            for event in lab.api.watch(path):
                pod, now = event["object"], time.monotonic()
                if event["type"] == "MODIFIED" and pod["spec"].get("nodeName"):
                    with self._news:
                        self.bound.setdefault(pod["metadata"]["name"], now)
                        self._news.notify_all()

    def wait(self, done: Callable[[Mapping[str, float]], bool]) -> None:
        """Until `done` says so of all that was bound. Raises TimeoutError."""
        with self._news:
            if not self._news.wait_for(lambda: done(self.bound), PATIENCE_S):
                raise TimeoutError(f"{len(self.bound)} pods were bound, and no more came")


@contextmanager
def _cluster(*cards: int) -> Iterator[tuple[Lab, Replica]]:
    """A lab with Tenure, its scheduler, four client nodes, and one server for each number of cards."""
    with TemporaryDirectory() as state:
        lab = Lab(Path(state))
        lab.up()
        try:
            product = Product(lab)
            product.install()
            lab.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
            lab.wait_for(f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default")
            replica = product.prepare()
            product.register_webhook(replica)
            product.run(replica)
            lab.start_scheduler(SCHEDULER, scheduler_config(replica) | NO_BRAKE)
            lab.simulate_nodes(
                [
                    *(SimulatedNode(name=f"client-{n}", capacity={"pods": "1000"}) for n in range(4)),
                    *(_server(n, size) for n, size in enumerate(cards)),
                ]
            )
            yield lab, replica
        finally:
            lab.down()


def _server(number: int, size: int) -> SimulatedNode:
    cards = [
        {"id": f"GPU-{number}-{i}", "index": i, "devmem": 80_000, "devcore": 100, "mode": "remote"}
        | {"health": True, "type": "X"}
        for i in range(size)
    ]
    return SimulatedNode(
        name=f"gpu-{number}",
        address=f"198.19.3.{number + 1}",
        labels={names.LUPINE_SERVER_LABEL: ""},
        annotations={names.NODE_REGISTER: json.dumps(cards)},
    )


def _pod(name: str, *, cards: int = 0, scheduler: str = "") -> Call:
    limits = {names.REMOTE_GPU: str(cards)} if cards else {}
    container = {"name": "main", "image": "example/job", "resources": {"limits": limits}}
    spec: dict[str, Any] = {"terminationGracePeriodSeconds": 0, "containers": [container]}
    if scheduler:
        spec["schedulerName"] = scheduler
    return Call("POST", PATH, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})


def _more_than(count: int) -> Callable[[Mapping[str, float]], bool]:
    return lambda bound: len(bound) > count


def _percentile(values: list[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * part))]


@figure("freed_to_bound_p99_s", unit="s")
@figure("freed_to_bound_p50_s", unit="s")
def freed_to_bound() -> dict[str, Reading]:
    """One card is freed at a time while WAITING pods want it; from the answer to the deletion to the Binding."""
    waits: list[float] = []
    with _cluster(CARDS) as (lab, _):
        moments = Moments(lab)
        lab.api.all_ok(_pod(f"p{number}", cards=1) for number in range(CARDS + WAITING))
        moments.wait(lambda bound: len(bound) == CARDS)
        for number in range(FREED):
            oldest = sorted(moments.bound, key=moments.bound.__getitem__)[number]
            lab.api.ok(Call("DELETE", f"{PATH}/{oldest}", {"gracePeriodSeconds": 0}))
            freed = time.monotonic()
            moments.wait(_more_than(CARDS + number))
            waits.append(max(moments.bound.values()) - freed)
            lab.api.ok(_pod(f"q{number}", cards=1))
    return {
        "freed_to_bound_p50_s": Reading(_percentile(waits, 0.5), len(waits)),
        "freed_to_bound_p99_s": Reading(_percentile(waits, 0.99), len(waits)),
    }


@figure("scheduling_throughput_ratio", unit="ratio")
@figure("scheduling_with_extender_per_s", unit="pods/s")
@figure("scheduling_without_extender_per_s", unit="pods/s")
@figure("scheduling_with_cards_per_s", unit="pods/s")
def throughput() -> dict[str, Reading]:
    """Pods without cards, by a scheduler with and one without the extender, while WAITING pods wait at the gate.

    Each scheduler finds all its pods there when it starts; the rate counts from the first Binding to the last. Two
    rounds each, in turn, and the better one of each counts: what slows a machine down slows either.
    """
    rates: dict[str, list[float]] = {PLAIN: [], SCHEDULER: []}
    with _cluster(CARDS) as (lab, replica):
        lab.start_scheduler(PLAIN, _without_extender(replica))
        lab.api.all_ok(_pod(f"held-{number}", cards=1) for number in range(CARDS + WAITING))
        for turn in range(2):
            for scheduler in (PLAIN, SCHEDULER):
                rates[scheduler].append(_rate(lab, scheduler, f"{scheduler}-{turn}", cards=0))
    with _cluster(*[200] * (PODS // 200)) as (lab, _):
        with_cards = _rate(lab, SCHEDULER, "cards", cards=1)
    plain, ours = max(rates[PLAIN]), max(rates[SCHEDULER])
    return {
        "scheduling_throughput_ratio": Reading(ours / plain, PODS),
        "scheduling_with_extender_per_s": Reading(ours, PODS),
        "scheduling_without_extender_per_s": Reading(plain, PODS),
        "scheduling_with_cards_per_s": Reading(with_cards, PODS),
    }


def _without_extender(replica: Replica) -> dict[str, Any]:
    config = scheduler_config(replica) | NO_BRAKE
    del config["extenders"]
    return config | {"profiles": [{"schedulerName": PLAIN}]}


def _rate(lab: Lab, scheduler: str, mark: str, *, cards: int) -> float:
    """Pods per second of one scheduler that starts with PODS pods in its queue."""
    lab.components.kill(scheduler)
    moments = Moments(lab)
    calls = (
        _pod(f"{mark}-{number}", cards=cards, scheduler="" if cards else scheduler) for number in range(PODS)
    )
    lab.api.all_ok(calls)
    if cards:
        lab.wait_for(PATH, accept=_all_let_in)
    lab.components.start(scheduler)
    moments.wait(lambda bound: sum(name.startswith(mark) for name in bound) == PODS)
    times = sorted(at for name, at in moments.bound.items() if name.startswith(mark))
    return (PODS - 1) / (times[-1] - times[0])


def _all_let_in(pods: Any) -> bool:
    return not any(pod["spec"].get("schedulingGates") for pod in pods["items"])
