"""DeviceTaintRules in the capacity: rules of others count as kube-scheduler counts them."""

from typing import Any

import msgspec
import pytest
from rich.console import Console

from controllers.claims.check import Subject, World, run
from controllers.claims.objects import DeviceClass, DeviceTaintRule, ResourceSlice, Template
from controllers.claims.report import Report
from controllers.claims.slices import DeviceId
from service import claims_command
from tests.unit.claims.build import CLASSES, NIC, NPU, aligned, reference, request


def rule(
    selector: dict[str, Any] | None, effect: str = "NoSchedule", name: str = "maintenance"
) -> DeviceTaintRule:
    spec = {"deviceSelector": selector, "taint": {"key": "example.com/broken", "effect": effect}}
    return msgspec.convert({"metadata": {"name": name}, "spec": spec}, DeviceTaintRule)


def report(
    *rules: DeviceTaintRule,
    claim: dict[str, Any] | None = None,
    served: bool = True,
    held: frozenset[DeviceId] = frozenset(),
) -> Report:
    template = {
        "metadata": {"name": "npu-rdma", "namespace": "team"},
        "spec": {"spec": {"devices": claim or aligned()}},
    }
    world = World(
        classes={c["metadata"]["name"]: msgspec.convert(c, DeviceClass) for c in CLASSES},
        slices=tuple(msgspec.convert(s, ResourceSlice) for s in reference()),
        taint_rules=rules if served else None,
        held=held,
    )
    return run(Subject("team/npu-rdma", msgspec.convert(template, Template)), world)


def told(found: Report) -> dict[str, str]:
    (capacity,) = (check for check in found.checks if check.name == "capacity")
    return {f"{finding.verdict.value} {finding.subject}": finding.sentence for finding in capacity.findings}


@pytest.mark.parametrize(
    ("selector", "pods"),
    [
        ({"driver": NPU, "pool": "n1", "device": "npu0"}, 1),
        ({"driver": NPU, "pool": "n2", "device": "npu0"}, 2),
        ({"driver": NIC, "pool": "n1", "device": "npu0"}, 2),
        ({"device": "nic3"}, 1),
        ({"driver": NPU}, 0),
        ({"pool": "n1"}, 0),
        ({"pool": "n2"}, 2),
        ({"driver": ["npu.example"]}, 2),
        ({}, 0),
        (None, 0),
    ],
)
def test_a_rule_takes_the_devices_that_it_selects_from_the_capacity(
    selector: dict[str, Any] | None, pods: int
) -> None:
    assert report(rule(selector)).pods == pods


def test_rules_add_up_with_each_other_and_with_the_slice_s_own_taints() -> None:
    first, second = rule({"device": "npu0"}), rule({"driver": NPU, "pool": "n1", "device": "npu7"})
    assert report(first, second).pods == 0


@pytest.mark.parametrize(("effect", "pods"), [("NoSchedule", 1), ("NoExecute", 1), ("None", 2)])
def test_a_rule_without_effect_takes_nothing(effect: str, pods: int) -> None:
    assert report(rule({"device": "npu0"}, effect)).pods == pods


def test_a_request_that_tolerates_the_taint_has_the_device() -> None:
    tolerations = [{"key": "example.com/broken", "operator": "Exists"}]
    tolerant = {"requests": [request("npu", "npu", 4, tolerations=tolerations)]}
    assert report(rule({"driver": NPU}), claim=tolerant).pods == 2
    assert report(rule({"driver": NPU}), claim={"requests": [request("npu", "npu", 4)]}).pods == 0


def test_a_rule_without_selector_is_named_because_it_taints_everything() -> None:
    assert "taints every device" in told(report(rule(None)))["pass DeviceTaintRule maintenance"]


def test_criteria_that_are_not_known_are_named_and_no_device_is_counted_that_may_be_tainted() -> None:
    strange = rule({"driver": NPU, "deviceClassName": "npu"})
    assert report(strange).pods == 0
    assert "not covered" in told(report(strange))["unknown DeviceTaintRule maintenance"]


def test_where_the_api_server_serves_no_rules_that_is_named_and_is_no_failure() -> None:
    held = frozenset({DeviceId(NPU, "n1", "npu0")})
    found = report(served=False, held=held)
    assert (found.verdict.value, found.pods) == ("pass", 1)
    assert told(found) == {
        "pass DeviceTaintRule": "is not available on this API server: kube-scheduler is not kept off 1 host-held cards"
    }
    assert told(report(served=False)) == {"pass DeviceTaintRule": "is not available on this API server"}
    assert told(report()) == {}


def test_a_check_with_nothing_but_hints_is_shown_as_passed_and_the_hint_below() -> None:
    console = Console(width=200)
    with console.capture() as captured:
        console.print(claims_command.table([report(served=False)]))
    lines = [line.split()[:3] for line in captured.get().splitlines() if line.startswith("capacity")]
    assert lines == [["capacity", "pass"], ["capacity", "hint", "DeviceTaintRule"]]
