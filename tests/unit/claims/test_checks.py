"""Each verdict of a check, from a recording or built from one."""

import copy
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from controllers.claims.check import Subject, World, run
from controllers.claims.objects import Claim, DeviceClass, ResourceSlice, Template
from controllers.claims.report import Code, Finding, Report, Verdict
from service.objects import Node
from tests.unit.claims.build import (
    CLASSES,
    NIC,
    NPU,
    NUMA,
    RDMA,
    ROOT,
    aligned,
    allocated,
    device,
    nics,
    npus,
    reference,
    request,
    slice_,
)

RECORDED = Path(__file__).parents[2] / "fixtures" / "dra"


def template(claim: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"name": "npu-rdma", "namespace": "team"}, "spec": {"spec": {"devices": claim}}}


def node(
    name: str, allocatable: dict[str, str] | None = None, *, annotations: dict[str, str] | None = None
) -> Node:
    return msgspec.convert(
        {
            "metadata": {"name": name, "annotations": annotations or {}},
            "status": {"allocatable": allocatable or {}},
        },
        Node,
    )


def check(
    claim: dict[str, Any],
    slices: list[dict[str, Any]],
    *,
    classes: list[dict[str, Any]] = CLASSES,
    claims: list[dict[str, Any]] | None = None,
    meant: dict[str, Any] | None = None,
    minor: int | None = 36,
    **more: Any,
) -> Report:
    stored = template(claim)
    world = World(
        classes={c["metadata"]["name"]: msgspec.convert(c, DeviceClass) for c in classes},
        slices=tuple(msgspec.convert(found, ResourceSlice) for found in slices),
        claims=tuple(msgspec.convert(found, Claim) for found in claims or ()),
        minor=minor,
        **more,
    )
    subject = Subject("team/npu-rdma", msgspec.convert(stored, Template), stored, meant and template(meant))
    return run(subject, world)


def found(report: Report, code: Code) -> list[Finding]:
    return [finding for one in report.checks for finding in one.findings if finding.code is code]


def only(report: Report, code: Code) -> Finding:
    (finding,) = found(report, code)
    return finding


def changed(
    slices: list[dict[str, Any]], driver: str, place: int, key: str, value: Any
) -> list[dict[str, Any]]:
    """A copy in which one device of a driver has another attribute; None removes it."""
    made = copy.deepcopy(slices)
    (target,) = (found for found in made if found["spec"]["driver"] == driver)
    attributes = target["spec"]["devices"][place]["attributes"]
    if value is None:
        del attributes[key]
    else:
        attributes[key] = value
    return made


def test_the_reference_node_passes_every_check_with_two_pods() -> None:
    report = check(aligned(), reference())
    assert [(one.name, one.verdict) for one in report.checks] == [
        ("classes", Verdict.PASS),
        ("slices", Verdict.PASS),
        ("template", Verdict.PASS),
        ("allocations", Verdict.PASS),
        ("attributes", Verdict.PASS),
        ("rdma", Verdict.PASS),
        ("capacity", Verdict.PASS),
    ]
    assert (report.verdict, report.pods) == (Verdict.PASS, 2)
    assert report.capacity[0].by_numa == {"0": 1, "1": 1}


def test_a_class_that_is_missing_is_named() -> None:
    report = check(aligned(), reference(), classes=CLASSES[:1])
    assert only(report, Code.CLASS_MISSING).subject == "class dranet"
    assert (report.verdict, report.pods) == (Verdict.FAIL, 0)


def test_a_template_that_is_missing_fails_with_what_to_apply() -> None:
    report = run(Subject("team/npu-rdma", None), World())
    assert "manifests/rct" in only(report, Code.TEMPLATE_MISSING).advice


def test_a_driver_without_any_slice_is_named() -> None:
    report = check(aligned(), [npus("n1", [0] * 4)])
    assert only(report, Code.NO_SLICE).subject == f"driver {NIC}"


def test_a_node_with_the_driver_s_pod_and_no_slice_is_named() -> None:
    pods = {NIC: frozenset({"n1", "n2"})}
    report = check(aligned(), [*reference("n2"), npus("n1", [0])], driver_pods=pods)
    finding = only(report, Code.NO_SLICE_OF_DRIVER_POD)
    assert "n1" in finding.sentence
    assert "64 bytes" in finding.advice


def test_an_attribute_that_no_device_has_is_missing_with_a_hint_at_the_vendor_s_own() -> None:
    own = slice_(NPU, "n1", [device(f"npu{i}", {"numaNode": 0, ROOT: "pci0000:16"}) for i in range(4)])
    report = check(aligned(), [own, nics("n1", [0, 0])])
    finding = only(report, Code.ATTR_MISSING)
    assert finding.subject == "request npu"
    assert "numa-unaligned.yaml" in finding.advice
    hints = " ".join(one.sentence for one in found(report, Code.HINT))
    assert f"{NPU}/numaNode" in hints
    assert ROOT in hints
    assert report.verdict is Verdict.FAIL


def test_a_constraint_on_the_vendor_s_own_attribute_works_within_one_driver() -> None:
    own = slice_(NPU, "n1", [device(f"npu{i}", {"numaNode": i // 4}) for i in range(8)])
    claim = {"requests": [request("npu", "npu", 4)], "constraints": [{"matchAttribute": f"{NPU}/numaNode"}]}
    report = check(claim, [own])
    assert (report.verdict, report.pods) == (Verdict.PASS, 2)


def test_the_second_device_lacks_what_the_first_has() -> None:
    report = check(aligned(), changed(reference(), NIC, 1, NUMA, None))
    finding = only(report, Code.ATTR_PARTIAL)
    assert "1 of 4 devices (dra.net: n1/nic1)" in finding.sentence


def test_a_numa_node_as_text_is_a_mix_of_types_and_no_numa_node() -> None:
    report = check(aligned(), changed(reference(), NIC, 1, NUMA, {"string": "0"}))
    assert "different types never match" in only(report, Code.TYPE_MIX).sentence
    assert "int or ints" in only(report, Code.FORMAT_MISMATCH).sentence


def test_a_list_beside_single_values_is_unknown_because_it_hangs_on_a_gate() -> None:
    report = check(aligned(), changed(reference(), NPU, 0, NUMA, {"ints": [0, 1]}))
    finding = only(report, Code.TYPE_MIX)
    assert finding.verdict is Verdict.UNKNOWN
    assert "DRAListTypeAttributes" in finding.sentence


def test_a_pcie_root_in_the_form_of_a_bus_address_is_a_format_mismatch() -> None:
    report = check(aligned(), changed(reference(), NIC, 0, ROOT, {"string": "0000:60:01.1"}))
    finding = only(report, Code.FORMAT_MISMATCH)
    assert "0000:60:01.1" in finding.sentence
    assert "pci0000:60" in finding.sentence


def test_a_numa_node_below_zero_is_a_format_mismatch() -> None:
    report = check(aligned(), changed(reference(), NPU, 0, NUMA, {"int": -1}))
    assert "0 or more" in only(report, Code.FORMAT_MISMATCH).sentence


def test_a_selector_that_touches_an_absent_attribute_is_an_error_and_not_no_match() -> None:
    report = check(aligned(), changed(reference(), NIC, 0, "rdma", None))
    finding = only(report, Code.SELECTOR_ERROR)
    assert "lacks attribute rdma" in finding.sentence
    assert "1 of 4 devices" in finding.sentence


def test_a_selector_that_matches_nothing_says_what_the_devices_have() -> None:
    claim = {
        "requests": [
            request("nic", "dranet", selectors=['device.attributes["dra.net"].pciSubsystem == "0101"'])
        ]
    }
    finding = only(check(claim, reference()), Code.NO_DEVICE)
    assert "dra.net/pciSubsystem is 9140 on 4" in finding.sentence


def test_a_literal_that_is_longer_than_any_value_never_matches() -> None:
    name = "MT27500/MT27520 Family [ConnectX-3/ConnectX-3 Pro Virtual Function]"
    claim = {
        "requests": [
            request("nic", "dranet", selectors=[f'device.attributes["dra.net"].?pciDevice == "{name}"'])
        ]
    }
    finding = only(check(claim, reference()), Code.NEVER_MATCHES)
    assert "67 bytes" in finding.sentence


def test_an_expression_beyond_the_engine_is_unknown_with_its_source() -> None:
    claim = {"requests": [request("npu", "npu", selectors=['url("https://x").getHost() == "x"'])]}
    report = check(claim, reference())
    assert report.verdict is Verdict.UNKNOWN
    assert found(report, Code.SELECTOR_UNKNOWN)[0].subject == "request npu, selector 0"
    assert report.capacity[0].pods is None


def test_an_incomplete_pool_is_named_with_its_counts_and_the_older_one_is_not_used() -> None:
    pool = {"generation": 2, "resourceSliceCount": 2}
    slices = [slice_(NPU, "n1", [device("gpu-0", {})], pool=pool), slice_(NPU, "n1", [device("gpu-0", {})])]
    report = check({"requests": [request("npu", "npu")]}, slices)
    finding = only(report, Code.POOL_INCOMPLETE)
    assert "1 of 2 slices of generation 2; slices of an older generation" in finding.sentence
    assert "log" in finding.advice
    assert report.pods == 0


def test_slices_that_disagree_about_their_number_are_named_and_give_no_number() -> None:
    slices = [
        slice_(NPU, "n1", [device(f"g{i}", {})], name=name, pool={"resourceSliceCount": count})
        for i, (name, count) in enumerate([("sa", 2), ("sb", 3)])
    ]
    report = check({"requests": [request("npu", "npu")]}, slices)
    assert "sa, sb" in only(report, Code.POOL_INCONSISTENT).sentence
    assert report.capacity[0].pods is None
    assert report.verdict is Verdict.FAIL


def test_a_device_name_that_is_there_twice_makes_the_pool_invalid() -> None:
    report = check(
        {"requests": [request("npu", "npu")]}, [slice_(NPU, "n1", [device("a", {}), device("a", {})])]
    )
    assert "there twice" in only(report, Code.POOL_INVALID).sentence


@pytest.mark.parametrize(
    ("minor", "advice"),
    [
        (
            34,
            "set --feature-gates=DRAConsumableCapacity=true on kube-apiserver, kube-scheduler and kubelet, or update",
        ),
        (36, "somebody switched it off"),
        (None, "on by itself from 1.36"),
    ],
)
def test_a_field_that_a_gate_dropped_is_named_with_the_gate_by_version(
    minor: int | None, advice: str
) -> None:
    claim = aligned()
    del claim["constraints"][1]["distinctAttribute"]
    finding = only(check(claim, reference(), meant=aligned(), minor=minor), Code.GATE_DROPPED)
    assert "constraints[1].distinctAttribute" in finding.sentence
    assert advice in finding.advice


def test_an_allocation_with_the_same_root_twice_is_found() -> None:
    same = changed(reference(), NIC, 1, ROOT, {"string": "pci0001:00"})
    has = allocated(
        "job-0-npu-rdma",
        *(("npu", NPU, "n1", f"npu{i}") for i in range(4)),
        ("nic", NIC, "n1", "nic0"),
        ("nic", NIC, "n1", "nic1"),
    )
    finding = only(check(aligned(), same, claims=[has]), Code.ALLOCATION_VIOLATES)
    assert finding.subject == "claim team/job-0-npu-rdma"
    assert "pci0001:00 violates distinctAttribute" in finding.sentence


def test_an_allocation_with_a_device_that_is_gone_is_unknown() -> None:
    has = allocated("job-0", ("npu", NPU, "n1", "npu99"))
    report = check({"requests": [request("npu", "npu")]}, reference(), claims=[has])
    assert only(report, Code.ALLOCATION_UNKNOWN).verdict is Verdict.UNKNOWN


def test_a_device_plugin_beside_the_driver_for_the_same_cards_is_found() -> None:
    classes: list[dict[str, Any]] = copy.deepcopy(CLASSES)
    classes[0]["spec"]["extendedResourceName"] = "example.com/npu"
    nodes = {"n1": node("n1", allocatable={"example.com/npu": "8"})}
    report = check(aligned(), reference(), classes=classes, nodes=nodes)
    assert only(report, Code.DOUBLE_ADVERTISED).subject == "node n1"


def test_alignment_exists_only_within_one_claim() -> None:
    # Two templates instead of one: each is served although no NIC is on the NPUs' side.
    slices = [npus("n1", [0] * 4), nics("n1", [1, 1])]
    npu = {"requests": [request("npu", "npu", 4)], "constraints": [{"matchAttribute": NUMA}]}
    nic = {
        "requests": [request("nic", "dranet", 2, selectors=[RDMA])],
        "constraints": [{"matchAttribute": NUMA}],
    }
    assert (check(npu, slices).pods, check(nic, slices).pods) == (1, 1)
    assert check(aligned(), slices).pods == 0


def test_a_node_whose_rdma_driver_is_not_loaded_is_named() -> None:
    slices = reference()
    for place in range(4):
        slices = changed(slices, NIC, place, "rdma", {"bool": False})
    nodes = {"n1": node("n1", annotations={"tenure.dev/rdma-devices": ""})}
    finding = only(check(aligned(), slices, nodes=nodes), Code.RDMA_DRIVER_MISSING)
    assert "bnxt_re" in finding.advice
    seen = {"n1": node("n1", annotations={"tenure.dev/rdma-devices": "bnxt_re0,bnxt_re1"})}
    assert (
        only(check(aligned(), reference(), nodes=seen), Code.RDMA_DRIVER_MISSING).verdict is Verdict.UNKNOWN
    )


RECORDINGS = [
    ("azure_aks-gb300", {"1nic-aligned", "1nic-unaligned", "2nic-aligned", "ib-same-fabric"}),
    ("azure_aks-mi300x", {"4nic-same-numa", "4nic-cross-numa", "8nic-all"}),
    ("aws_eks-gpu-efa", {"gpu-efa-unaligned", "gpu-efa-aligned"}),
]
RECORDED_CLASSES = [
    {
        "metadata": {"name": name},
        "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{driver}"'}}]},
    }
    for name, driver in (
        ("gpu.nvidia.com", "gpu.nvidia.com"),
        ("dranet.net", "dra.net"),
        ("efa.networking.k8s.aws", "dra.net"),
    )
]


def recorded(pattern: str) -> list[dict[str, Any]]:
    loaded = [
        one for file in sorted(RECORDED.glob(pattern)) for one in yaml.safe_load_all(file.read_text()) if one
    ]
    return [item for one in loaded for item in one.get("items", [one])]


@pytest.mark.parametrize(("name", "templates"), RECORDINGS)
def test_recorded_slices_pass_their_own_templates(name: str, templates: set[str]) -> None:
    slices = recorded(f"{name}-resourceslice-*.yaml")
    found_templates = recorded(f"{name}-resource-claim-template.yaml")
    assert {one["metadata"]["name"] for one in found_templates} == templates
    for one in found_templates:
        report = check(one["spec"]["spec"]["devices"], slices, classes=RECORDED_CLASSES)
        wrong = [
            finding for c in report.checks for finding in c.findings if finding.verdict is not Verdict.PASS
        ]
        assert wrong == [], one["metadata"]["name"]
        assert report.pods > 0
