"""How long a freed card waits for its next pod.

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
from tests.lab.product import SCHEDULER, Product, scheduler_config
from tests.lab.simulated import SimulatedNode

NAMESPACE: Final = "jobs"
PATH: Final = f"/api/v1/namespaces/{NAMESPACE}/pods"
CARDS: Final = 8
WAITING: Final = 200
FREED: Final = 200
# Enough that the scheduler's own brake on API calls does not decide.
NO_BRAKE: Final = {"clientConnection": {"qps": 5000, "burst": 5000}}
PATIENCE_S: Final = 120.0


class Moments:
    """When each pod got its node, on the monotonic clock in seconds, as a watch told it."""

    def __init__(self, lab: Lab) -> None:
        self.bound: dict[str, float] = {}
        self._news = threading.Condition()
        version = lab.api.ok(Call("GET", PATH))["metadata"]["resourceVersion"]
        self._thread = threading.Thread(target=self._read, args=(lab, version), daemon=True, name="watch")
        self._thread.start()

    def _read(self, lab: Lab, version: str) -> None:
        """Goes on from where it was when the API server ends the watch of a reader that is slower than it."""
        with suppress(OSError, ValueError):  # The lab ends, and with it the watch.
            while True:
                for event in lab.api.watch(f"{PATH}?watch=1&resourceVersion={version}"):
                    pod, now = event["object"], time.monotonic()
                    version = pod["metadata"]["resourceVersion"]
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
def _cluster(*cards: int) -> Iterator[Lab]:
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
            yield lab
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


def _pod(name: str, *, cards: int) -> Call:
    limits = {names.REMOTE_GPU: str(cards)}
    container = {"name": "main", "image": "example/job", "resources": {"limits": limits}}
    spec: dict[str, Any] = {"terminationGracePeriodSeconds": 0, "containers": [container]}
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
    with _cluster(CARDS) as lab:
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
