"""What a simulated kubelet decides, and what it leaves alone."""

import msgspec
import pytest

from tests.lab.kubelet import Metadata, Object, Spec, Status, lease, pod_address, running
from tests.lab.simulated import LABEL, SimulatedNode, is_schedulable
from tests.lab.simulator import Simulator


@pytest.fixture
def simulator() -> Simulator:
    return Simulator(session=None)  # type: ignore[arg-type] # Deciding asks nobody.


def node(name: str = "n") -> Object:
    return msgspec.convert(SimulatedNode(name=name, address="10.0.0.1").manifest() | uid(name), Object)


def uid(name: str) -> dict[str, object]:
    return {"metadata": {"name": name, "uid": f"uid-of-{name}"}}


def pod(*, on: str = "n", phase: str = "Pending", deleted: bool = False) -> Object:
    metadata = Metadata(name="p", uid="u", namespace="ns", deletion_timestamp="now" if deleted else None)
    return Object(metadata, Spec(node_name=on), Status(phase))


def jobs(simulator: Simulator, kind: str, item: Object) -> int:
    changed = simulator._pod_changed if item.metadata.namespace else simulator._node_changed
    return len(list(changed(kind, item)))


def test_a_pod_on_a_node_that_is_not_simulated_is_left_alone(simulator: Simulator) -> None:
    assert jobs(simulator, "ADDED", pod(on="real-1")) == 0
    assert jobs(simulator, "MODIFIED", pod(on="real-1", deleted=True)) == 0


def test_a_bound_pod_is_said_to_run_once(simulator: Simulator) -> None:
    jobs(simulator, "ADDED", node())
    assert jobs(simulator, "ADDED", pod()) == 1
    assert jobs(simulator, "MODIFIED", pod(phase="Running")) == 0


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_a_test_ended_stays_ended(simulator: Simulator, phase: str) -> None:
    jobs(simulator, "ADDED", node())
    assert jobs(simulator, "MODIFIED", pod(phase=phase)) == 0


def test_a_deleted_pod_is_removed_in_any_phase(simulator: Simulator) -> None:
    jobs(simulator, "ADDED", node())
    assert jobs(simulator, "MODIFIED", pod(phase="Running", deleted=True)) == 1
    assert jobs(simulator, "MODIFIED", pod(phase="Succeeded", deleted=True)) == 1


def test_a_pod_seen_before_its_node_is_served_when_the_node_is_seen(simulator: Simulator) -> None:
    assert jobs(simulator, "ADDED", pod()) == 0
    assert jobs(simulator, "ADDED", node()) == 1


def test_a_pod_that_went_before_its_node_was_seen_is_forgotten(simulator: Simulator) -> None:
    jobs(simulator, "ADDED", pod())
    jobs(simulator, "DELETED", pod())
    assert jobs(simulator, "ADDED", node()) == 0


def test_pods_of_a_deleted_node_still_go_but_none_starts(simulator: Simulator) -> None:
    jobs(simulator, "ADDED", node())
    jobs(simulator, "DELETED", node())
    assert jobs(simulator, "MODIFIED", pod(phase="Running", deleted=True)) == 1
    assert jobs(simulator, "ADDED", pod()) == 0


def test_the_patch_that_says_running_is_for_this_pod_only(simulator: Simulator) -> None:
    patch = running(pod(), node(), address="198.18.0.1")
    assert patch["metadata"] == {"uid": "u"}
    assert (patch["status"]["hostIP"], patch["status"]["podIP"]) == ("10.0.0.1", "198.18.0.1")


def testpod_addresses_stay_in_their_range() -> None:
    assert [pod_address(number) for number in (256, 511, 65535, 65536)] == [
        "198.18.1.0",
        "198.18.1.255",
        "198.18.255.255",
        "198.18.0.0",
    ]


def test_a_renewed_lease_names_its_version_and_its_node() -> None:
    new, renewed = lease(node(), version=None), lease(node(), version="7")
    assert "resourceVersion" not in new["metadata"]
    assert renewed["metadata"]["resourceVersion"] == "7"
    assert new["metadata"]["ownerReferences"][0]["uid"] == "uid-of-n"


def test_every_simulated_node_carries_the_label_that_marks_it() -> None:
    manifest = SimulatedNode(name="n", labels={"a": "b"}).manifest()
    assert manifest["metadata"]["labels"] == manifest["metadata"]["labels"] | {LABEL: "true", "a": "b"}


def test_a_new_node_is_schedulable_when_the_controller_took_its_taint() -> None:
    taint = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
    assert not is_schedulable({"spec": {"taints": [taint]}})
    assert is_schedulable({"spec": {"taints": [{"key": "own", "effect": "NoSchedule"}]}})
    assert is_schedulable({"spec": {}})
