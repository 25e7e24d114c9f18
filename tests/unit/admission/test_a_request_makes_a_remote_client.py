from dataclasses import replace

import pytest

from service.settings import Settings
from tests.unit.admission.pods import (
    CARD,
    COUNT,
    MEMORY,
    asking,
    container,
    decision,
    env,
    mutated,
    operations,
    pod,
    refusal,
)
from webhook.admission.mutate import UNTOUCHED, Policy

GATE = {"name": "tenure.dev/remote-gpu"}
ENDPOINT = {"fieldRef": {"fieldPath": "metadata.annotations['hami.io/lupine-endpoint']"}}
POLICY = Policy.of(Settings())


def test_a_request_gets_gate_scheduler_and_endpoint() -> None:
    result = mutated(asking())
    assert result["spec"]["schedulingGates"] == [GATE]
    assert result["spec"]["schedulerName"] == "tenure-scheduler"
    assert env(result) == {"LUPINE_SERVER": ENDPOINT, "LUPINE_DISABLE_LOCAL": "1"}


def test_a_pod_without_a_request_gets_an_empty_patch() -> None:
    assert decision(pod(container(limits={"cpu": "1", "nvidia.com/gpu": "1"}))).patch == ()


def test_gates_of_others_stay_before_ours() -> None:
    result = mutated(asking(schedulingGates=[{"name": "kueue.x-k8s.io/admission"}]))
    assert result["spec"]["schedulingGates"] == [{"name": "kueue.x-k8s.io/admission"}, GATE]


def test_the_gate_of_a_pod_that_asks_for_nothing_is_opened() -> None:
    found = decision(pod(schedulingGates=[{"name": "a"}, GATE, {"name": "b"}]))
    assert operations(found) == [{"op": "remove", "path": "/spec/schedulingGates/1"}]
    assert found.warnings


@pytest.mark.parametrize("where", ["init", "sidecar", "app"])
def test_containers_of_every_kind_are_served(where: str) -> None:
    asks = container("asks", CARD) | ({"restartPolicy": "Always"} if where == "sidecar" else {})
    plain = container("plain")
    obj = pod(asks, plain) if where == "app" else pod(plain, initContainers=[container("first"), asks])
    result = mutated(obj)
    assert env(result, "asks")["LUPINE_SERVER"] == ENDPOINT
    assert env(result, "plain") == {}


def test_the_own_lupine_server_of_a_requesting_container_is_replaced_in_its_place() -> None:
    own = [
        {"name": "A", "value": "1"},
        {"name": "LUPINE_SERVER", "value": "10.9.9.9:1"},
        {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        {"name": "LUPINE_SERVER", "value": "10.9.9.8:1"},
        {"name": "LUPINE_DISABLE_LOCAL", "value": "0"},
        {"name": "LUPINE_SERVER", "value": "10.9.9.7:1"},
        {"name": "C", "value": "$(A)"},
    ]
    result = mutated(pod(container(limits=CARD, env=own, envFrom=[{"configMapRef": {"name": "c"}}])))
    entries = result["spec"]["containers"][0]["env"]
    assert entries == [own[0], {"name": "LUPINE_SERVER", "valueFrom": ENDPOINT}, own[2], own[4], own[6]]


def test_the_own_lupine_server_of_a_container_without_request_is_untouched() -> None:
    own = [{"name": "LUPINE_SERVER", "value": "x"}, {"name": "LUPINE_SERVER", "value": "y"}]
    result = mutated(pod(container("asks", CARD), container("own", env=own)))
    assert result["spec"]["containers"][1]["env"] == own


def test_a_field_reference_with_the_default_api_version_is_already_ours() -> None:
    once = mutated(asking())
    once["spec"]["containers"][0]["env"][0]["valueFrom"]["fieldRef"]["apiVersion"] = "v1"
    assert decision(once).patch == ()


def test_visible_devices_come_from_the_container_s_own_annotation_when_switched_on() -> None:
    policy = replace(POLICY, visible_devices=True)
    own = [{"name": "CUDA_VISIBLE_DEVICES", "value": "0"}]
    result = mutated(pod(container("c-1", CARD, env=own), container("c2")), policy)
    path = "metadata.annotations['allocation.tenure.dev/c-1']"
    assert env(result, "c-1")["CUDA_VISIBLE_DEVICES"] == {"fieldRef": {"fieldPath": path}}
    assert env(result, "c2") == {}
    assert env(mutated(pod(container(limits=CARD, env=own))))["CUDA_VISIBLE_DEVICES"] == "0"


def test_local_cards_are_hidden_by_setting_with_one_warning() -> None:
    obj = pod(
        container(
            limits=CARD,
            envFrom=[{"configMapRef": {"name": "gpu-env"}}],
            env=[{"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "all"}],
        ),
        container("plain", env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]),
    )
    policy = replace(POLICY, hide_local_cards=True)
    result = mutated(obj, policy)
    assert env(result)["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert env(result)["NVIDIA_DRIVER_CAPABILITIES"] == "all"
    assert env(result)["LUPINE_DISABLE_LOCAL"] == "1"
    assert env(result, "plain") == {"NVIDIA_VISIBLE_DEVICES": "all"}
    assert len(decision(obj, policy).warnings) == 1
    assert "NVIDIA_VISIBLE_DEVICES" not in env(mutated(obj))


def test_a_container_that_also_asks_for_local_cards_keeps_them() -> None:
    obj = asking(limits=CARD | {"nvidia.com/gpu": "1"})
    assert env(mutated(obj, replace(POLICY, hide_local_cards=True))) == {"LUPINE_SERVER": ENDPOINT}


@pytest.mark.parametrize(
    "limits", [{COUNT: "0"}, {COUNT: "0", MEMORY: "0"}, {MEMORY: "0"}, {COUNT: 0}, {}], ids=str
)
def test_zero_cards_are_no_request(limits: dict[str, object]) -> None:
    assert decision(pod(container(limits=limits))).patch == ()


@pytest.mark.parametrize("limits", [{COUNT: "0", MEMORY: "8192"}, {MEMORY: "8192"}], ids=str)
def test_memory_without_a_count_is_refused(limits: dict[str, str]) -> None:
    assert f"{MEMORY} without {COUNT}" in refusal(pod(container(limits=limits)))


@pytest.mark.parametrize("count", ["1500m", "0.5", "-1", "many", "1e9", 1.5], ids=str)
def test_a_count_that_is_no_small_whole_number_is_refused(count: object) -> None:
    assert COUNT in refusal(pod(container(limits={COUNT: count})))


def test_a_preset_node_is_refused_beside_a_request_only() -> None:
    assert "remove it" in refusal(asking(nodeName="n1"))
    assert decision(pod(nodeName="n1")).patch == ()


def test_a_windows_pod_is_refused_beside_a_request_only() -> None:
    assert "Linux" in refusal(asking(os={"name": "windows"}))
    assert decision(pod(os={"name": "windows"})).patch == ()
    assert mutated(asking(os={"name": "linux"}))["spec"]["os"] == {"name": "linux"}


def test_a_foreign_scheduler_is_refused_by_name_unless_it_is_listed() -> None:
    obj = asking(schedulerName="hub-user-scheduler")
    sentence = refusal(obj)
    for part in ("hub-user-scheduler", "tenure-scheduler", "webhook.scheduler_names"):
        assert part in sentence
    result = mutated(obj, replace(POLICY, schedulers=POLICY.schedulers | {"hub-user-scheduler"}))
    assert result["spec"]["schedulerName"] == "hub-user-scheduler"
    assert result["spec"]["schedulingGates"] == [GATE]
    assert decision(pod(schedulerName="hub-user-scheduler")).patch == ()


def test_an_injected_proxy_does_not_shift_what_is_changed() -> None:
    proxy = container("mesh-proxy", restartPolicy="Always", env=[{"name": "PROXY_CONFIG", "value": "{}\n"}])
    notebook = container("nb", CARD, env=[{"name": "NB_PREFIX", "value": "/nb/a"}])
    once = mutated(pod(notebook, initContainers=[container("mesh-init"), proxy]))
    assert env(once, "mesh-proxy") == {"PROXY_CONFIG": "{}\n"}
    assert env(once, "nb")["LUPINE_SERVER"] == ENDPOINT
    once["spec"]["containers"].insert(0, container("mesh-late"))
    assert decision(once).patch == ()


def test_other_operations_resources_and_subresources_are_let_through() -> None:
    forged = asking(annotations={"hami.io/lupine-endpoint": "x"})
    for fields in (
        {"operation": "UPDATE", "oldObject": forged},
        {"operation": "DELETE"},
        {"operation": "CONNECT"},
        {"operation": "SOMETHING"},
        {"subResource": "binding"},
        {"resource": {"group": "apps", "version": "v1", "resource": "deployments"}},
    ):
        assert decision(forged, **fields) is UNTOUCHED


def test_a_disabled_pool_asks_for_nothing_but_still_strips() -> None:
    policy = replace(POLICY, count_name="", memory_name="")
    result = mutated(asking(annotations={"hami.io/lupine-endpoint": "x"}), policy)
    assert result["metadata"]["annotations"] == {}
    assert "schedulingGates" not in result["spec"]


def test_renamed_resources_are_the_only_ones_that_count() -> None:
    policy = replace(POLICY, count_name="example.com/card", memory_name="example.com/mib")
    assert decision(asking(), policy).patch == ()
    assert mutated(asking(limits={"example.com/card": "1"}), policy)["spec"]["schedulingGates"] == [GATE]


def test_a_dry_run_is_decided_like_any_other() -> None:
    assert decision(asking(), dryRun=True) == decision(asking())


def test_pods_without_containers_or_lists_written_as_null_are_survived() -> None:
    obj = pod()
    obj["spec"] |= {"containers": None, "initContainers": None, "schedulingGates": None, "volumes": None}
    obj["metadata"] |= {"annotations": None, "labels": None}
    assert decision(obj).patch == ()
    assert decision({"metadata": {}, "spec": {}}).patch == ()


def test_a_hostile_name_stays_on_one_short_line() -> None:
    sentence = refusal(asking(schedulerName="a\n\x1b[31m" + "b" * 10_000))
    assert sentence.isprintable()
    assert len(sentence) <= 400
    obj = pod(container("x\r\n" * 5000, CARD, env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]))
    (warning,) = decision(obj).warnings
    assert warning.isprintable()
    assert len(warning) <= 120
