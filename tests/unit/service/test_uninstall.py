"""Who still needs Tenure, and what is taken back when it has gone."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from service import cli, names
from service.objects import Node
from service.uninstall_check import HOLDS, VOLUMES, WAITS, Blocker, Pod, blocker, report
from service.uninstall_clean import taken_back


def pod(phase: str = "Running", annotations: dict[str, str] | None = None, **spec: Any) -> Pod:
    metadata = {"name": "train-0", "namespace": "team-a", "annotations": annotations or {}}
    return msgspec.convert({"metadata": metadata, "spec": spec, "status": {"phase": phase}}, Pod)


CARDS = {names.DEVICES_ALLOCATED: "gpu-1/GPU-1,NVIDIA,1,100:;"}
GATED: dict[str, Any] = {"schedulingGates": [{"name": names.GATE}]}
REGIONS: dict[str, Any] = {"volumes": [{"name": "v", "csi": {"driver": names.CSI_DRIVER}}]}


def test_a_pod_is_named_with_everything_that_it_needs_tenure_for() -> None:
    assert blocker(pod("Running", CARDS, **REGIONS)) == Blocker("team-a/train-0", (HOLDS, VOLUMES))
    assert blocker(pod("Pending", None, **GATED)) == Blocker("team-a/train-0", (WAITS,))


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"schedulingGates": [{"name": "example.com/quota"}]},
        {
            "volumes": [
                {"name": "v", "csi": {"driver": "secrets-store.csi.k8s.io"}},
                {"name": "w", "emptyDir": {}},
            ]
        },
    ],
)
def test_a_pod_of_others_is_not_in_the_way(spec: dict[str, Any]) -> None:
    assert blocker(pod(**spec)) is None


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_has_ended_is_not_in_the_way(phase: str) -> None:
    assert blocker(pod(phase, CARDS, **REGIONS)) is None


def test_the_report_names_the_pods_and_says_what_to_do() -> None:
    found = [Blocker(f"team-a/train-{number}", (HOLDS,)) for number in range(60)]
    text = report(found, warn_only=False)
    assert text.startswith("60 pods still need Tenure:\n  team-a/train-0: holds remote cards\n")
    assert "and 10 more" in text
    assert "`helm rollback`" in text
    assert report(found, warn_only=True).endswith("Going all the same.")
    assert report([], warn_only=False) == "No pod needs Tenure any more."


def node(labels: dict[str, str], annotations: dict[str, str]) -> Node:
    return msgspec.convert({"metadata": {"name": "n", "labels": labels, "annotations": annotations}}, Node)


def test_our_keys_are_taken_off_a_node_and_no_other() -> None:
    labels = {names.REGIONS_READY_LABEL: "ready", names.HOST_HELD_LABEL: "1", "example.com/mine": "1"}
    notes = {
        names.DEVICE_CORDON: "GPU-theirs,GPU-ours",
        names.CORDON_OWNED: "GPU-ours",
        names.RDMA_DEVICES: "",
        names.NODE_REGISTER: "[]",
    }
    assert taken_back(node(labels, notes)) == {
        "labels": {names.REGIONS_READY_LABEL: None, names.HOST_HELD_LABEL: None},
        "annotations": {
            names.RDMA_DEVICES: None,
            names.DEVICE_CORDON: "GPU-theirs",
            names.CORDON_OWNED: None,
        },
    }


def test_a_cordon_that_an_administrator_wrote_stays() -> None:
    assert taken_back(node({}, {names.DEVICE_CORDON: "GPU-theirs"})) == {}


@pytest.mark.parametrize("command", ["uninstall-check", "uninstall-clean", "selftest"])
def test_without_a_cluster_a_command_says_what_to_set(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    assert cli.run([command]) == cli.WRONG_USE
    said = capsys.readouterr().err
    assert said.startswith("tenure: there is no kubeconfig")
    assert len(said.splitlines()) == 1
