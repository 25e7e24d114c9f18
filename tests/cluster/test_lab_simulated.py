"""Simulated nodes: only the kubelet is imitated, so the real scheduler and controllers must accept them."""

from collections.abc import Callable, Iterable
from typing import Any

from tests.lab import Lab
from tests.lab.api import Call
from tests.lab.simulated import SimulatedNode

Simulate = Callable[[Iterable[SimulatedNode]], None]


def pod(namespace: str, name: str, **spec: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace}
    full = {"containers": [{"name": "main", "image": "none"}], "nodeSelector": {"pool": namespace}, **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": full}


def path(namespace: str, name: str = "") -> str:
    return f"/api/v1/namespaces/{namespace}/pods/{name}".rstrip("/")


def is_running(found: Any) -> bool:
    return bool(found["status"]["phase"] == "Running")


def test_a_node_has_what_the_caller_gave_it(lab: Lab, namespace: str, simulate: Simulate) -> None:
    node = SimulatedNode(
        name="given",
        address="10.77.0.9",
        labels={"a": "label"},
        annotations={"an": "annotation"},
        capacity={"example.com/card": "8"},
        taints=[{"key": "k", "value": "v", "effect": "NoSchedule"}],
    )
    simulate([node])
    found = lab.api.ok(Call("GET", "/api/v1/nodes/given"))
    assert found["metadata"]["labels"]["a"] == "label"
    assert found["metadata"]["annotations"]["an"] == "annotation"
    assert found["status"]["allocatable"]["example.com/card"] == "8"
    assert found["status"]["addresses"] == [{"type": "InternalIP", "address": "10.77.0.9"}]
    assert {"key": "k", "value": "v", "effect": "NoSchedule"} in found["spec"]["taints"]


def test_pods_are_bound_by_the_scheduler_then_run_and_go_when_deleted(
    lab: Lab, namespace: str, simulate: Simulate
) -> None:
    simulate(SimulatedNode(name=f"{namespace}-{number}", labels={"pool": namespace}) for number in range(3))
    for number in range(10):
        lab.api.ok(Call("POST", path(namespace), pod(namespace, f"p{number}")))
    for number in range(10):
        found = lab.wait_for(path(namespace, f"p{number}"), accept=is_running)
        assert found["spec"]["nodeName"].startswith(namespace)
        assert found["status"]["podIP"].startswith("198.18.")
    lab.kubectl("wait", "--for=condition=Ready", "pod", "--all", "-n", namespace, "--timeout=10s")
    lab.kubectl("delete", "pod", "--all", "-n", namespace, "--timeout=30s")


def test_capacity_is_respected(lab: Lab, namespace: str, simulate: Simulate) -> None:
    simulate([SimulatedNode(name=namespace, labels={"pool": namespace}, capacity={"cpu": "1"})])
    container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": "800m"}}}
    for name in ("first", "second"):
        lab.api.ok(Call("POST", path(namespace), pod(namespace, name, containers=[container])))
        if name == "first":
            lab.wait_for(path(namespace, name), accept=is_running)
    waiting = lab.wait_for(path(namespace, "second"), accept=lambda found: "conditions" in found["status"])
    (condition,) = waiting["status"]["conditions"]
    assert condition["reason"] == "Unschedulable"
    lab.kubectl("delete", "pod", "first", "-n", namespace)
    lab.wait_for(path(namespace, "second"), accept=is_running)


def test_a_node_that_a_test_calls_unready_stays_unready(lab: Lab, namespace: str, simulate: Simulate) -> None:
    simulate([SimulatedNode(name=namespace)])
    node = f"/api/v1/nodes/{namespace}"
    unready = {"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "Test"}]}}
    lab.api.ok(Call("PATCH", f"{node}/status", unready, "application/strategic-merge-patch+json"))
    found = lab.wait_for(node, accept=lambda seen: bool(seen["spec"].get("taints")))
    assert {taint["key"] for taint in found["spec"]["taints"]} == {"node.kubernetes.io/not-ready"}


def test_a_restarted_simulator_goes_on_with_its_nodes_and_pods(
    lab: Lab, namespace: str, simulate: Simulate
) -> None:
    simulate([SimulatedNode(name=namespace, labels={"pool": namespace})])
    lab.components.kill("simulator")
    lab.api.ok(Call("POST", path(namespace), pod(namespace, "p")))
    lab.wait_for(path(namespace, "p"), accept=lambda found: bool(found["spec"].get("nodeName")))
    lab.components.start("simulator")
    lab.wait_for(path(namespace, "p"), accept=is_running)
