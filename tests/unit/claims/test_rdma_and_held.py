"""What nodes tell about NICs and cards, and how it meets the slices."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from controllers.claims.held import Profile, held_devices
from controllers.claims.objects import ResourceSlice
from controllers.claims.rdma import seen
from controllers.claims.reading import plugin_of
from controllers.claims.slices import DeviceId
from controllers.claims.taintrules import VERSIONS, rule
from service.kube.resources import Resource
from tests.unit.claims.build import NPU, device, slice_

RULES = Resource("resource.k8s.io", VERSIONS[0], "devicetaintrules", "DeviceTaintRule", namespaced=False)


def test_the_entries_of_the_infiniband_folder_are_listed_and_its_absence_is_no_entry(tmp_path: Path) -> None:
    assert seen(tmp_path) == ""
    for name in ("bnxt_re1", "bnxt_re0"):
        (tmp_path / "class" / "infiniband" / name).mkdir(parents=True)
    assert seen(tmp_path) == "bnxt_re0,bnxt_re1"


def profile(node: str, **extra: str) -> Profile:
    spec = {"nodeName": node, "extra": extra}
    return msgspec.convert({"metadata": {"name": f"{node}-x"}, "spec": spec}, Profile)


@pytest.mark.parametrize(
    ("attributes", "extra"),
    [
        ({"uuid": "GPU-ABC"}, {"uuid": "gpu-abc"}),
        ({"resource.kubernetes.io/pciBusID": "0000:16:00.0"}, {"pciAddress": "00000000:16:00.0"}),
        ({"serial": "S1"}, {"id": "s1"}),
    ],
)
def test_a_card_is_found_among_the_devices_by_any_stable_name(
    attributes: dict[str, object], extra: dict[str, str]
) -> None:
    slices = [msgspec.convert(slice_(NPU, "n1", [device("a", attributes), device("b", {})]), ResourceSlice)]
    busy = {**extra, "health": "busy"}
    assert held_devices(slices, [profile("n1", **busy)]) == {DeviceId(NPU, "n1", "a")}
    assert held_devices(slices, [profile("n2", **busy)]) == set()  # the same name on another node
    assert held_devices(slices, [profile("n1", **extra)]) == set()  # nobody holds it


def test_a_taint_rule_never_has_an_empty_selector() -> None:
    # kubernetes/kubernetes#141620: without a selector it taints every device of the cluster.
    made = rule(DeviceId("d", "p", "x"), RULES)
    assert made["spec"]["deviceSelector"] == {"driver": "d", "pool": "p", "device": "x"}
    for part in (("", "p", "x"), ("d", "", "x"), ("d", "p", "")):
        with pytest.raises(ValueError, match="does not name one device"):
            rule(DeviceId(*part), RULES)


@pytest.mark.parametrize(
    ("path", "text", "driver"),
    [
        ("/var/lib/kubelet/plugins/dra.net", "", "dra.net"),
        ("/var/lib/kubelet/plugins_registry/", "--driver=npu.example", "npu.example"),
        ("/var/lib/kubelet/plugins_registry", "", None),
        ("/var/log", "dra.net", None),
    ],
)
def test_a_driver_s_pod_is_known_by_what_it_mounts(path: str, text: str, driver: str | None) -> None:
    spec: dict[str, Any] = {
        "containers": [{"name": "c", "args": [text]}],
        "volumes": [{"name": "v", "hostPath": {"path": path}}],
    }
    assert plugin_of(spec, {"dra.net", "npu.example"}) == driver
