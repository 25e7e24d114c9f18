"""A running Tenure with two servers and a client node in a lab, for the tests of the pool."""

import json
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service import names
from tests.lab import Lab
from tests.lab.api import Call
from tests.lab.product import SCHEDULER, Product, Replica, scheduler_config
from tests.lab.simulated import SimulatedNode

REGISTERS = json.loads(
    (Path(__file__).parents[1] / "fixtures" / "hami" / "node-nvidia-register.json").read_text()
)
SERVERS = "/apis/tenure.dev/v1alpha1/remoteservers"
SECONDS = 60.0
# The watches of kube-scheduler come back as late as client-go's longest pause (30 s, and up to as much again by its
# jitter) after the API server did; then it has a pod to schedule.
SCHEDULER_RETURNS_S = 60.0 + SECONDS


@dataclass(frozen=True, slots=True)
class Tenure:
    """A running Tenure with its own two servers: two large cards and four smaller ones."""

    lab: Lab
    product: Product
    replica: Replica
    large: str
    small: str
    client: str

    def pod(self, namespace: str, name: str, **limits: int | str) -> None:
        """Create a pod that asks; keywords are `remote_gpu` and `remote_gpu_memory`."""
        wanted = {f"hami.io/{key.replace('_', '-')}": str(value) for key, value in limits.items()}
        self.create(namespace, manifest(name, wanted))

    def create(self, namespace: str, pod: Mapping[str, Any]) -> Any:
        return self.lab.api.ok(Call("POST", f"/api/v1/namespaces/{namespace}/pods", dict(pod)))

    def delete(self, namespace: str, name: str) -> None:
        path = f"/api/v1/namespaces/{namespace}/pods/{name}"
        self.lab.api.ok(Call("DELETE", path, {"gracePeriodSeconds": 0}))

    def read(self, namespace: str, name: str) -> Any:
        return self.lab.wait_for(f"/api/v1/namespaces/{namespace}/pods/{name}")

    def until(
        self, namespace: str, name: str, accept: Callable[[Any], bool], *, seconds: float = SECONDS
    ) -> Any:
        path = f"/api/v1/namespaces/{namespace}/pods/{name}"
        return self.lab.wait_for(path, accept=accept, seconds=seconds)

    def bound(self, namespace: str, name: str, *, seconds: float = SECONDS) -> Any:
        return self.until(namespace, name, lambda pod: bool(pod["spec"].get("nodeName")), seconds=seconds)

    def promised(self, namespace: str, name: str) -> Any:
        """As soon as the pod's gate is gone: Tenure's part is done, and kube-scheduler's begins."""
        return self.until(namespace, name, lambda pod: not pod["spec"].get("schedulingGates"))

    def register(self, node: str, cards: str) -> None:
        """What HAMi's device plugin does when a node's cards change."""
        body = {"metadata": {"annotations": {names.NODE_REGISTER: cards}}}
        self.lab.api.ok(Call("PATCH", f"/api/v1/nodes/{node}", body, "application/merge-patch+json"))

    def server(self, name: str, accept: Callable[[Any], bool] = bool) -> Any:
        return self.lab.wait_for(f"{SERVERS}/{name}", accept=accept, seconds=SECONDS)


def manifest(
    name: str, limits: Mapping[str, str], annotations: Mapping[str, str] | None = None
) -> dict[str, Any]:
    container = {"name": "main", "image": "lab.local/busybox:1", "resources": {"limits": dict(limits)}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": dict(annotations or {})},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": [container]},
    }


@contextmanager
def running(lab: Lab, *, kubeconfig: Path | None = None, **settings: str) -> Iterator[Tenure]:
    """One server, registered as the webhook, and a scheduler of its own; `kubeconfig` leads it another way."""
    mark = secrets.token_hex(2)
    large, small, client = f"large-{mark}", f"small-{mark}", f"client-{mark}"
    product = Product(lab)
    product.install()
    replica = product.prepare(f"tenure-{mark}")
    renamed = _named(settings)
    product.register_webhook(
        replica, {f"settings.pool.resource_{kind}_name": name for kind, name in renamed.items()}
    )
    lab.simulate_nodes(
        [
            server_node(large, "198.19.1.1", REGISTERS["json-remote-h200"]),
            server_node(small, "198.19.1.2", REGISTERS["json-remote-a100-four-cards"]),
            SimulatedNode(name=client),
        ]
    )
    if kubeconfig is not None:
        settings["kube__kubeconfig"] = str(kubeconfig)
    product.run(replica, **settings)
    scheduler = f"{SCHEDULER}-{mark}"
    lab.start_scheduler(scheduler, scheduler_config(replica, **renamed))
    try:
        yield Tenure(lab, product, replica, large, small, client)
    finally:
        lab.components.stop(scheduler)
        lab.components.stop(replica.name)
        lab.kubectl("delete", "mutatingwebhookconfiguration", "tenure")
        lab.kubectl("delete", "node", large, small, client, "--ignore-not-found")
        lab.kubectl("delete", "remoteservers", large, small, "--ignore-not-found")


def _named(settings: Mapping[str, str]) -> dict[str, str]:
    """The resource names of the scheduler's configuration, from the same settings."""
    kinds = ("count", "memory")
    found = {kind: settings.get(f"pool__resource_{kind}_name") for kind in kinds}
    return {kind: name for kind, name in found.items() if name}


def server_node(name: str, address: str, register: str) -> SimulatedNode:
    return SimulatedNode(
        name=name,
        address=address,
        labels={names.LUPINE_SERVER_LABEL: ""},
        annotations={names.NODE_REGISTER: register},
    )
