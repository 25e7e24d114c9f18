from typing import Any

import pytest

from service.settings import DevicesSettings, Settings
from tests.unit.admission.pods import Json, container, decision, mutated, pod, refusal
from webhook.admission.mutate import Policy

TEMPLATE = "tenure.dev/claim-template"
CONTAINERS = "tenure.dev/claim-containers"


def policy(**devices: Any) -> Policy:
    return Policy.of(Settings(devices=DevicesSettings.model_validate(devices)))


def uses(result: Json) -> dict[str, list[str]]:
    spec = result["spec"]
    return {
        c["name"]: [use["name"] for use in c.get("resources", {}).get("claims", [])]
        for c in [*spec.get("initContainers", []), *spec["containers"]]
    }


def test_a_template_by_name_becomes_a_claim_of_the_first_app_container() -> None:
    obj = pod(container(), container("b"), initContainers=[container("i")], annotations={TEMPLATE: "npu-nic"})
    result = mutated(obj)
    assert result["spec"]["resourceClaims"] == [{"name": "tenure", "resourceClaimTemplateName": "npu-nic"}]
    assert uses(result) == {"i": [], "main": ["tenure"], "b": []}


def test_the_named_containers_use_the_claim_init_containers_too() -> None:
    obj = pod(
        container("a"),
        container("b", {"cpu": "1"}),
        initContainers=[container("i")],
        annotations={TEMPLATE: "t", CONTAINERS: "i, b,missing"},
    )
    assert uses(mutated(obj)) == {"i": ["tenure"], "a": [], "b": ["tenure"]}
    assert mutated(obj)["spec"]["containers"][1]["resources"]["limits"] == {"cpu": "1"}
    assert decision(obj).warnings == ("annotation tenure.dev/claim-containers names no container missing",)


def test_when_no_named_container_is_there_no_claim_is_made() -> None:
    assert decision(pod(annotations={TEMPLATE: "t", CONTAINERS: "missing"})).patch == ()


def test_an_empty_annotation_means_the_default_and_without_one_is_refused() -> None:
    obj = pod(annotations={TEMPLATE: " "})
    result = mutated(obj, policy(claim_template_name="default-template"))
    assert result["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] == "default-template"
    assert "devices.claim_template_name" in refusal(obj, policy(claim_template_name=""))


def test_a_pod_that_names_claims_of_its_own_is_left_alone_and_told() -> None:
    own = [{"name": "mine", "resourceClaimName": "c"}]
    obj = pod(container(resources={"claims": [{"name": "mine", "request": "r"}]}), resourceClaims=own)
    obj["metadata"]["annotations"] = {TEMPLATE: "t"}
    assert decision(obj).patch == ()
    assert len(decision(obj).warnings) == 1


def test_a_second_call_adds_only_a_late_container() -> None:
    once = mutated(pod(container("a"), annotations={TEMPLATE: "t", CONTAINERS: "a,late"}))
    assert decision(once).patch == ()
    once["spec"]["containers"].insert(0, {"name": "late", "image": "i", "resources": {"claims": []}})
    assert uses(mutated(once)) == {"late": ["tenure"], "a": ["tenure"]}
    del once["spec"]["containers"][0]["resources"]
    assert uses(mutated(once)) == {"late": ["tenure"], "a": ["tenure"]}


@pytest.mark.parametrize("limits", [None, {}, {"cpu": "1"}])
def test_a_device_plugin_is_asked_by_extended_resource_with_a_warning(limits: Json | None) -> None:
    plugged = {"mode": "devicePlugin", "resource_name": "rebellions.ai/npu", "count": 2}
    nic = {"mode": "devicePlugin", "resource_name": "rdma/nic", "count": 1}
    obj = pod(container(limits=limits), annotations={TEMPLATE: ""})
    result = mutated(obj, policy(npu=plugged, rdma=nic))
    expected = (limits or {}) | {"rebellions.ai/npu": "2", "rdma/nic": "1"}
    assert result["spec"]["containers"][0]["resources"]["limits"] == expected
    assert "resourceClaims" not in result["spec"]
    found = decision(obj, policy(npu=plugged, rdma=nic))
    assert "NUMA" in found.warnings[0]
    assert decision(result, policy(npu=plugged, rdma=nic)).patch == ()


def test_one_kind_by_plugin_and_one_by_claim_go_together() -> None:
    plugged = {"mode": "devicePlugin", "resource_name": "rdma/nic", "count": 1}
    obj = pod(annotations={TEMPLATE: "npu"})
    obj["spec"]["containers"] = [{"name": "main", "image": "i"}]
    resources = mutated(obj, policy(rdma=plugged))["spec"]["containers"][0]["resources"]
    assert resources == {"claims": [{"name": "tenure"}], "limits": {"rdma/nic": "1"}}


def test_the_defaults_are_those_of_the_field() -> None:
    obj = pod(annotations={TEMPLATE: ""})
    (claim,) = mutated(obj)["spec"]["resourceClaims"]
    assert claim["resourceClaimTemplateName"] == "npu-rdma"
    plugin = {"mode": "devicePlugin"}
    result = mutated(obj, policy(npu=plugin, rdma=plugin))
    limits = result["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {"rebellions.ai/npu": "4", "rdma/hca": "2"}


@pytest.mark.parametrize(
    ("mode", "claims", "limits"),
    [("dra", ["npu-only"], None), ("devicePlugin", [], {"rebellions.ai/npu": "4"})],
)
def test_without_rdma_there_is_no_nic_by_plugin_and_no_claim_for_its_sake(
    mode: str, claims: list[str], limits: Json | None
) -> None:
    obj = pod(annotations={TEMPLATE: ""})
    obj["spec"]["containers"] = [{"name": "main", "image": "i"}]
    without = policy(
        claim_template_name="npu-only", npu={"mode": mode}, rdma={"enabled": False, "mode": "devicePlugin"}
    )
    spec = mutated(obj, without)["spec"]
    assert [claim["resourceClaimTemplateName"] for claim in spec.get("resourceClaims", [])] == claims
    assert spec["containers"][0]["resources"].get("limits") == limits


def test_a_plugin_without_a_resource_is_a_wrong_setting() -> None:
    with pytest.raises(ValueError, match="resource_name"):
        policy(npu={"mode": "devicePlugin", "resource_name": ""})
