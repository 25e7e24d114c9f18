"""How many pods a template still serves."""

from typing import Any

import pytest

from controllers.claims import capacity
from controllers.claims.slices import DeviceId
from tests.unit.claims.build import (
    NIC,
    NPU,
    NUMA,
    ROOT,
    aligned,
    allocated,
    cluster,
    device,
    nics,
    npus,
    pods,
    reference,
    request,
    slice_,
    wanted,
)


def answer(claim: dict[str, Any], slices: list[dict[str, Any]], **more: Any) -> capacity.NodeCapacity:
    made = cluster(slices, **more)
    (found,) = capacity.of(wanted(claim), made, made.inventory.nodes)
    return found


def test_the_reference_node_serves_two_pods_one_on_each_numa_node() -> None:
    found = answer(aligned(), reference())
    assert found.pods == 2
    assert found.by_numa == (("0", 1), ("1", 1))
    assert found.limit == "npu"
    assert found.reason == "request npu needs 4 of 8 devices, 0 are free"


def test_nics_on_the_wrong_side_leave_no_pod_and_the_reason_says_what_is_where() -> None:
    found = answer(aligned(), [npus("n1", [0] * 4), nics("n1", [1, 1])])
    assert found.pods == 0
    assert found.limit == "npu"
    assert found.reason == (
        f"matchAttribute {NUMA} over request npu needs 4, free: 4 with 0; request nic needs 2, free: 2 with 1"
    )


def test_two_nics_behind_one_root_are_no_two_roots() -> None:
    same = slice_(
        NIC,
        "n1",
        [
            device(f"nic{i}", {"rdma": True, "pciSubsystem": "9140", NUMA: 0, ROOT: "pci0000:10"})
            for i in (0, 1)
        ],
    )
    found = answer(aligned(), [npus("n1", [0] * 4), same])
    assert (found.pods, found.limit) == (0, "nic")
    assert f"distinctAttribute {ROOT}" in found.reason


def test_allocated_tainted_and_host_held_devices_are_not_free() -> None:
    claim = {"requests": [request("npu", "npu", 2)]}
    taint = [{"key": "sick", "effect": "NoSchedule"}]
    tainted = slice_(NPU, "n1", [device(f"npu{i}", {}, taints=taint if i == 7 else []) for i in range(8)])
    has = allocated("c", ("npu", NPU, "n1", "npu0"), ("npu", NPU, "n1", "npu1"))
    held = [DeviceId(NPU, "n1", "npu2")]
    assert answer(claim, [tainted]).pods == 3
    assert answer(claim, [tainted], claims=[has]).pods == 2
    assert answer(claim, [tainted], claims=[has], held=held).pods == 2
    assert answer(claim, [tainted], claims=[has], held=[*held, DeviceId(NPU, "n1", "npu3")]).pods == 1
    tolerant = {"requests": [request("npu", "npu", 2, tolerations=[{"key": "sick", "operator": "Exists"}])]}
    assert answer(tolerant, [tainted]).pods == 4


@pytest.mark.parametrize(("effect", "room"), [("NoSchedule", 0), ("NoExecute", 0), ("None", 1)])
def test_a_taint_without_effect_is_only_a_note(effect: str, room: int) -> None:
    one = slice_(NPU, "n1", [device("npu0", {}, taints=[{"key": "sick", "effect": effect}])])
    assert answer({"requests": [request("npu", "npu")]}, [one]).pods == room


def test_admin_access_takes_nothing() -> None:
    has = allocated("c", ("npu", NPU, "n1", "npu0"), adminAccess=True)
    assert answer({"requests": [request("npu", "npu", 4)]}, [npus("n1", [0] * 4)], claims=[has]).pods == 1


def test_the_search_goes_back_where_the_first_choice_leads_nowhere() -> None:
    # The first NPUs are beside no NIC: only NUMA node 1 has both.
    assert answer(aligned(), [npus("n1", [0] * 4 + [1] * 4), nics("n1", [1, 1])]).pods == 1


def test_the_next_alternative_is_taken_where_the_first_does_not_fit() -> None:
    first = [
        {"name": "many", "deviceClassName": "npu", "count": 3},
        {"name": "few", "deviceClassName": "npu", "count": 1},
    ]
    claim = {"requests": [{"name": "npu", "firstAvailable": first}]}
    assert answer(claim, [npus("n1", [0] * 5)]).pods == 3  # 3, then 1, then 1


def test_all_devices_are_one_pod_and_none_while_one_of_them_is_used() -> None:
    claim = {"requests": [{"name": "npu", "exactly": {"deviceClassName": "npu", "allocationMode": "All"}}]}
    assert answer(claim, [npus("n1", [0] * 5)]).pods == 1
    used = allocated("c", ("npu", NPU, "n1", "npu3"))
    assert answer(claim, [npus("n1", [0] * 5)], claims=[used]).pods == 0


def test_values_of_different_types_never_match() -> None:
    mixed = slice_(NPU, "n1", [device("a", {NUMA: 1}), device("b", {NUMA: "1"}), device("c", {NUMA: True})])
    claim = {"requests": [request("npu", "npu", 2)], "constraints": [{"matchAttribute": NUMA}]}
    assert answer(claim, [mixed]).pods == 0
    distinct = {"requests": [request("npu", "npu", 3)], "constraints": [{"distinctAttribute": NUMA}]}
    assert answer(distinct, [mixed]).pods == 1


def test_three_devices_of_one_request_have_three_roots() -> None:
    # kubernetes/kubernetes#140438: the scheduler gave the third one a root that was taken.
    roots = ["pci0000:01", "pci0000:02", "pci0000:01"]
    slices = [slice_(NPU, "n1", [device(f"npu{i}", {ROOT: root}) for i, root in enumerate(roots)])]
    claim = {"requests": [request("npu", "npu", 3)], "constraints": [{"distinctAttribute": ROOT}]}
    assert answer(claim, slices).pods == 0


def test_lists_match_where_they_have_a_value_in_common() -> None:
    slices = [
        slice_(NPU, "n1", [device("a", {NUMA: [0, 1]}), device("b", {NUMA: 1}), device("c", {NUMA: [2]})])
    ]
    claim = {"requests": [request("npu", "npu", 2)], "constraints": [{"matchAttribute": NUMA}]}
    assert answer(claim, slices).pods == 1


def test_a_selector_error_ends_the_attempt_only_when_that_device_is_reached() -> None:
    claim = {"requests": [request("npu", "npu", selectors=['device.attributes["npu.example"].arch == "x"'])]}
    slices = [slice_(NPU, "n1", [device("a", {"arch": "x"}), device("b", {}), device("c", {"arch": "x"})])]
    found = answer(claim, slices)
    assert (found.pods, found.aborts) == (1, True)
    assert "lacks attribute arch" in found.reason


def test_shared_counters_bound_what_partitions_can_be_had_together() -> None:
    counters = {"sharedCounters": [{"name": "gpu0", "counters": {"memory": {"value": "80Gi"}}}]}
    sets = slice_(NPU, "n1", [], name="a", pool={"resourceSliceCount": 2}, **counters)
    parts = slice_(
        NPU,
        "n1",
        [
            device(
                f"p{i}",
                {},
                consumesCounters=[{"counterSet": "gpu0", "counters": {"memory": {"value": "30Gi"}}}],
            )
            for i in range(4)
        ],
        name="b",
        pool={"resourceSliceCount": 2},
    )
    claim = {"requests": [request("npu", "npu")]}
    assert answer(claim, [sets, parts]).pods == 2
    assert answer(claim, [sets, parts], claims=[allocated("c", ("npu", NPU, "n1", "p3"))]).pods == 1


def test_network_devices_serve_one_node_after_the_other() -> None:
    net = slice_(NIC, None, [device("nic0", {"rdma": True, "pciSubsystem": "9140"})])
    claim = {"requests": [request("npu", "npu"), request("nic", "dranet")]}
    assert pods(claim, cluster([npus("n1", [0]), npus("n2", [0]), net])) == {"n1": 1, "n2": 0}


def test_a_device_that_claims_share_is_not_covered_and_so_unknown() -> None:
    shared = slice_(NPU, "n1", [device("npu0", {}, allowMultipleAllocations=True)])
    found = answer({"requests": [request("npu", "npu")]}, [shared])
    assert found.pods is None
    assert "not covered" in found.reason


def test_slices_that_disagree_about_their_number_make_the_capacity_unknown() -> None:
    for counts in ((2, 3), (3, 2)):
        slices = [
            slice_(NPU, "n1", [device(f"g{i}", {})], name=f"s{i}", pool={"resourceSliceCount": count})
            for i, count in enumerate(counts)
        ]
        found = answer({"requests": [request("npu", "npu")]}, slices)
        assert found.pods is None
        assert "s0, s1" in found.reason


def test_an_incomplete_pool_gives_nothing_and_the_older_generation_is_not_taken_instead() -> None:
    slices = [
        slice_(
            NPU,
            "n1",
            [device("gpu-0", {}), device("gpu-1", {})],
            pool={"generation": 2, "resourceSliceCount": 2},
        ),
        slice_(NPU, "n1", [device("gpu-0", {})]),
    ]
    found = answer({"requests": [request("npu", "npu")]}, slices)
    assert found.pods == 0
    assert "1 of 2 slices of generation 2" in found.reason


def test_a_higher_generation_of_another_node_hides_nothing() -> None:
    here = slice_(NPU, "n1", [device("a", {})], pool={"name": "p", "generation": 1})
    there = slice_(NPU, "n2", [device("b", {})], pool={"name": "p", "generation": 5})
    assert pods({"requests": [request("npu", "npu")]}, cluster([here, there])) == {"n1": 1, "n2": 1}


@pytest.mark.timeout(10)
def test_a_large_node_without_a_solution_is_answered_without_trying_all_combinations() -> None:
    slices = [npus("n1", [i % 2 for i in range(64)])]
    claim = {"requests": [request("npu", "npu", 32)], "constraints": [{"matchAttribute": NUMA}]}
    assert answer(claim, slices).pods == 2
    none = {**claim, "requests": [request("npu", "npu", 32), request("nic", "dranet")]}
    assert answer(none, slices).pods == 0
