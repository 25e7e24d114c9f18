"""What the chart's Jobs find and take back on a real API server."""

import json
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import pytest

from service import names, uninstall_check, uninstall_clean
from service.kube.client import KubeClient
from service.kube.metrics import KubeMetrics
from service.kube.pages import everything
from service.kube.resources import Resource
from service.metrics import MetricSet
from service.objects import Namespace
from service.settings import KubeSettings, Settings
from tests.cluster import occupancy
from tests.cluster.occupancy import PROFILES, SERVERS
from tests.lab import Lab
from tests.lab.api import Call
from tests.lab.simulated import SimulatedNode

Simulate = Callable[[Iterable[SimulatedNode]], None]
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap", namespaced=True)


@pytest.fixture
async def client(lab: Lab) -> AsyncIterator[KubeClient]:
    made = await KubeClient.connect(KubeSettings(kubeconfig=lab.kubeconfig), metrics=KubeMetrics(MetricSet()))
    yield made
    await made.close()


async def test_a_collection_is_read_to_its_end_whatever_the_page(
    lab: Lab, client: KubeClient, namespace: str
) -> None:
    labels = {"test": namespace}
    lab.apply(
        *(
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": f"c{n}", "namespace": namespace, "labels": labels},
            }
            for n in range(7)
        )
    )
    for page in (1, 3, 7, 100):
        selector = {"labelSelector": f"test={namespace}"}
        pages = everything(client, CONFIG_MAPS, Namespace, selector, page=page)
        assert sorted([found.metadata.name async for found in pages]) == [f"c{n}" for n in range(7)]


async def test_pods_that_need_tenure_are_found_among_all_others(lab: Lab, namespace: str) -> None:
    gate = {"schedulingGates": [{"name": names.GATE}]}
    volume = {"name": "v", "csi": {"driver": names.CSI_DRIVER}}
    # An unplaced pod never carries an allocation in life; here nobody guards the key.
    cards = {"annotations": {names.DEVICES_ALLOCATED: "gpu-1/GPU-1,NVIDIA,1,100:;"}}
    pods: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "free": ({}, {}),
        "gated": (gate, {}),
        "holding": ({}, cards),
        "mounted": ({"volumes": [volume]}, {}),
    }
    for name, (spec, metadata) in pods.items():
        container = {"name": "main", "image": "none"}
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, **metadata},
            "spec": {"schedulerName": "nobody", "containers": [container], **spec},
        }
        lab.api.ok(Call("POST", f"/api/v1/namespaces/{namespace}/pods", body))
    found = await uninstall_check.blockers(KubeSettings(kubeconfig=lab.kubeconfig))
    mine = {one.pod: one.reasons for one in found if one.pod.startswith(f"{namespace}/")}
    assert mine == {
        f"{namespace}/gated": (uninstall_check.WAITS,),
        f"{namespace}/holding": (uninstall_check.HOLDS,),
        f"{namespace}/mounted": (uninstall_check.VOLUMES,),
    }


async def test_what_nobody_needs_is_taken_back_and_what_is_held_stays_on_record(
    lab: Lab, namespace: str, simulate: Simulate
) -> None:
    occupancy.install_kinds(lab)
    labels = {names.REGIONS_READY_LABEL: "ready", names.HOST_HELD_LABEL: "1"}
    notes = {names.DEVICE_CORDON: "theirs,ours", names.CORDON_OWNED: "ours", names.RDMA_DEVICES: "mlx5_0"}
    simulate([SimulatedNode(name=namespace, labels=labels, annotations=notes)])
    held, free = f"held-{namespace}", f"free-{namespace}"
    for name, phase in ((held, "Bound"), (free, "Draining")):
        lab.apply({"apiVersion": "tenure.dev/v1alpha1", "kind": "RemoteServer", "metadata": {"name": name}})
        allocation = {"card": "GPU-1", "podUID": "u", "namespace": "team-a", "name": "train", "phase": phase}
        status = {"status": {"allocations": [allocation | {"since": "2026-01-01T00:00:00Z"}]}}
        call = Call("PATCH", f"{SERVERS}/{name}/status", status, "application/merge-patch+json")
        lab.api.ok(call)
    ours = {"app.kubernetes.io/managed-by": "tenure"}
    for name, made in ((f"ours-{namespace}", ours), (f"theirs-{namespace}", {})):
        lab.apply(
            {
                "apiVersion": "airm.ai-computing.io/v1alpha1",
                "kind": "AcceleratorProfile",
                "metadata": {"name": name, "labels": made},
                "spec": {"nodeName": namespace},
            }
        )
    said = await uninstall_clean.clean(Settings(kube=KubeSettings(kubeconfig=lab.kubeconfig)))
    try:
        assert f"RemoteServer {held} is kept: team-a/train hold its cards" in said
        left = json.loads(lab.kubectl("get", "remoteservers,acceleratorprofiles", "--output=json"))["items"]
        names_left = {one["metadata"]["name"] for one in left if namespace in one["metadata"]["name"]}
        assert names_left == {held, f"theirs-{namespace}"}
        node = lab.api.ok(Call("GET", f"/api/v1/nodes/{namespace}"))["metadata"]
        assert not labels.keys() & node["labels"].keys()
        assert {key: node["annotations"].get(key) for key in notes} == {
            names.DEVICE_CORDON: "theirs",
            names.CORDON_OWNED: None,
            names.RDMA_DEVICES: None,
        }
        again = await uninstall_clean.clean(Settings(kube=KubeSettings(kubeconfig=lab.kubeconfig)))
        assert [line for line in again if namespace in line] == [
            f"RemoteServer {held} is kept: team-a/train hold its cards"
        ]
    finally:
        lab.api.ok(Call("DELETE", f"{SERVERS}/{held}"))
        lab.api.ok(Call("DELETE", f"{PROFILES}/theirs-{namespace}"))
