"""The ledger is right when answers are late, lost, or of no use: on the real API server and scheduler."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from service import names
from tests.cluster.api_proxy import ApiProxy, Trouble, api_proxy
from tests.cluster.pool import Tenure, manifest, running
from tests.lab import Lab
from tests.lab.api import Call
from tests.lab.product import ACCOUNT, Product

# Seconds that the product waits for one answer here; the default of 10 would only make the tests longer.
DEADLINE_S = 2.0
PROMISE_S = 6.0
BIG = {names.REMOTE_GPU: "2", names.REMOTE_GPU_MEMORY: "100000"}


@dataclass(frozen=True, slots=True)
class Stage:
    tenure: Tenure
    proxy: ApiProxy

    def phases(self) -> list[tuple[str, str]]:
        """Pod name and phase of each allocation of the large server."""
        held = self.tenure.server(self.tenure.large)["status"]["allocations"]
        return sorted((item["name"], item["phase"]) for item in held)

    def becomes(self, *expected: tuple[str, str]) -> None:
        wanted = sorted(expected)

        def has(server: Any) -> bool:
            held = server.get("status", {}).get("allocations", ())
            return sorted((item["name"], item["phase"]) for item in held) == wanted

        self.tenure.server(self.tenure.large, has)


@pytest.fixture(scope="module")
def stage(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    Product(lab).install()
    folder = tmp_path_factory.mktemp("proxy")
    with (
        api_proxy(lab.kubeconfig_for(ACCOUNT), folder) as (proxy, kubeconfig),
        running(
            lab,
            kubeconfig=kubeconfig,
            kube__deadline_s=str(DEADLINE_S),
            pool__promise_s=str(PROMISE_S),
        ) as tenure,
    ):
        yield Stage(tenure, proxy)


@pytest.fixture
def _empty(stage: Stage, namespace: str) -> Iterator[None]:
    """Every test begins and ends with no card in anybody's hands."""
    stage.becomes()
    yield
    stage.tenure.lab.kubectl("delete", "pods", "--all", "-n", namespace, "--grace-period=0", "--force")
    stage.becomes()


pytestmark = pytest.mark.usefixtures("_empty")


def test_a_binding_that_lands_after_its_time_out_is_refused_and_the_pod_is_bound_once(
    stage: Stage, namespace: str
) -> None:
    trouble = stage.proxy.meet(Trouble("/binding", before=True))
    stage.tenure.create(namespace, manifest("late", BIG))
    assert trouble.met.wait(30)
    pod = stage.tenure.bound(namespace, "late")
    trouble.go.set()
    assert trouble.done.wait(10)
    assert trouble.status == 409
    assert stage.tenure.read(namespace, "late")["metadata"]["uid"] == pod["metadata"]["uid"]
    stage.becomes(("late", "Bound"), ("late", "Bound"))


def test_a_binding_that_lands_while_nobody_listens_any_more_is_found(stage: Stage, namespace: str) -> None:
    trouble = stage.proxy.meet(Trouble("/binding", answered=False))
    stage.tenure.create(namespace, manifest("lost", BIG))
    assert trouble.done.wait(30)
    assert trouble.status == 201
    stage.becomes(("lost", "Bound"), ("lost", "Bound"))
    time.sleep(DEADLINE_S + 1)
    trouble.go.set()
    notes = stage.tenure.read(namespace, "lost")["metadata"]["annotations"]
    assert notes[names.DEVICES_ALLOCATED].count(f"{stage.tenure.large}/") == 2
    stage.becomes(("lost", "Bound"), ("lost", "Bound"))


def test_a_pod_that_is_deleted_between_promise_and_binding_leaves_its_cards(
    stage: Stage, namespace: str
) -> None:
    trouble = stage.proxy.meet(Trouble("/binding", before=True))
    stage.tenure.create(namespace, manifest("gone", BIG))
    assert trouble.met.wait(30)
    assert stage.phases() == [("gone", "Reserved")] * 2
    stage.tenure.delete(namespace, "gone")
    trouble.go.set()
    assert trouble.done.wait(10)
    assert trouble.status == 404
    stage.becomes()


def test_a_successor_of_the_same_name_does_not_get_its_predecessors_binding(
    stage: Stage, namespace: str
) -> None:
    trouble = stage.proxy.meet(Trouble("/binding", before=True))
    stage.tenure.create(namespace, manifest("same", BIG))
    assert trouble.met.wait(30)
    stage.tenure.delete(namespace, "same")
    stage.tenure.create(namespace, manifest("same", {names.REMOTE_GPU: "1"}))
    trouble.go.set()
    assert trouble.done.wait(10)
    assert trouble.status == 409
    notes = stage.tenure.bound(namespace, "same")["metadata"]["annotations"]
    assert notes[names.DEVICES_ALLOCATED].count("NVIDIA") == 1


def test_a_node_that_vanishes_between_promise_and_binding_costs_no_card(stage: Stage, namespace: str) -> None:
    tenure = stage.tenure
    trouble = stage.proxy.meet(Trouble("/binding", before=True))
    tenure.create(namespace, manifest("stray", BIG))
    assert trouble.met.wait(30)
    client = tenure.lab.api.ok(Call("GET", f"/api/v1/nodes/{tenure.client}"))
    tenure.lab.api.ok(Call("DELETE", f"/api/v1/nodes/{tenure.client}"))
    trouble.go.set()
    assert trouble.done.wait(10)
    meta = {"name": tenure.client, "labels": client["metadata"]["labels"]}
    tenure.lab.api.ok(Call("POST", "/api/v1/nodes", client | {"metadata": meta}))
    placed = tenure.read(namespace, "stray")["spec"].get("nodeName")
    stage.becomes(*[("stray", "Bound" if placed else "Reserved")] * 2)


def test_a_volume_that_takes_its_time_costs_the_promise_when_others_wait_and_not_the_ledger(
    stage: Stage, namespace: str
) -> None:
    """The scheduler holds the pod after `filter` until the volume is there; `bind` comes only then."""
    tenure = stage.tenure
    slow = manifest("slow", BIG)
    claim = {"claimName": "slow"}
    slow["spec"]["volumes"] = [{"name": "data", "persistentVolumeClaim": claim}]
    tenure.lab.apply(*storage(namespace))
    tenure.create(namespace, slow)
    stage.becomes(("slow", "Reserved"), ("slow", "Reserved"))
    tenure.create(namespace, manifest("quick", BIG))
    assert tenure.bound(namespace, "quick")
    stage.becomes(("quick", "Bound"), ("quick", "Bound"))
    tenure.lab.apply(volume(namespace, tenure.client))
    tenure.lab.wait_for(
        f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/slow",
        accept=lambda claim: claim["status"].get("phase") == "Bound",
    )
    time.sleep(3)
    assert not tenure.read(namespace, "slow")["spec"].get("nodeName")
    tenure.delete(namespace, "quick")
    assert tenure.bound(namespace, "slow")
    stage.becomes(("slow", "Bound"), ("slow", "Bound"))


def storage(namespace: str) -> list[dict[str, Any]]:
    """A class whose volumes nobody makes, and a claim of it."""
    return [
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": "slow"},
            "provisioner": "example.com/slow",
            "volumeBindingMode": "WaitForFirstConsumer",
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "slow", "namespace": namespace},
            "spec": {
                "storageClassName": "slow",
                "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Gi"}},
            },
        },
    ]


def volume(namespace: str, node: str) -> dict[str, Any]:
    """What the provisioner makes at last."""
    term = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"slow-{namespace}"},
        "spec": {
            "storageClassName": "slow",
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "hostPath": {"path": "/tmp"},
            "claimRef": {"name": "slow", "namespace": namespace},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [term]}]}},
        },
    }
