"""The ground of the pool's benchmarks: a cluster with Tenure and its scheduler, and when each pod got its node.

Real API server and kube-scheduler, one replica of Tenure as a process of its own, kubelets imitated. Moments are those
at which a watch tells them.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from service import names
from tests.lab.api import Call
from tests.lab.lab import Lab
from tests.lab.product import SCHEDULER, Product, scheduler_config
from tests.lab.simulated import SimulatedNode

NAMESPACE: Final = "jobs"
PATH: Final = f"/api/v1/namespaces/{NAMESPACE}/pods"
# Enough that the scheduler's own brake on API calls does not decide.
NO_BRAKE: Final = {"clientConnection": {"qps": 5000, "burst": 5000}}
PATIENCE_S: Final = 120.0


class Moments:
    """When each pod got its node, on the monotonic clock in seconds, as a watch told it."""

    def __init__(self, lab: Lab) -> None:
        self.bound: dict[str, float] = {}
        self._news = threading.Condition()
        self._version = lab.api.ok(Call("GET", PATH))["metadata"]["resourceVersion"]
        threading.Thread(target=self._read, args=(lab,), daemon=True, name="watch").start()

    def _read(self, lab: Lab) -> None:
        """Goes on from where it was: a watch ends after a silence, too."""
        with suppress(OSError, HTTPException):  # The lab ends, and with it the last watch.
            while True:
                with suppress(TimeoutError):
                    for event in lab.api.watch(f"{PATH}?watch=1&resourceVersion={self._version}"):
                        self._take(event["type"], event["object"])

    def _take(self, kind: str, pod: Any) -> None:
        now = time.monotonic()
        self._version = pod["metadata"]["resourceVersion"]
        if kind == "MODIFIED" and pod["spec"].get("nodeName"):
            with self._news:
                self.bound.setdefault(pod["metadata"]["name"], now)
                self._news.notify_all()

    def wait(self, done: Callable[[Mapping[str, float]], bool]) -> None:
        """Until `done` says so of all that was bound. Raises TimeoutError."""
        with self._news:
            if not self._news.wait_for(lambda: done(self.bound), PATIENCE_S):
                raise TimeoutError(f"{len(self.bound)} pods were bound, and no more came")


@contextmanager
def cluster(*cards: int) -> Iterator[Lab]:
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


def pod(name: str, *, cards: int = 0, scheduler: str = SCHEDULER) -> Call:
    limits = {names.REMOTE_GPU: str(cards)} if cards else {}
    container = {"name": "main", "image": "example/job", "resources": {"limits": limits}}
    spec = {"terminationGracePeriodSeconds": 0, "schedulerName": scheduler, "containers": [container]}
    return Call("POST", PATH, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})


def delete(name: str) -> Call:
    return Call("DELETE", f"{PATH}/{name}", {"gracePeriodSeconds": 0})
