"""What holds for every pod: the patch applies, nothing of the user's is lost, and a second call has nothing to do."""

import copy
from collections.abc import Iterator
from typing import Any

import kubernetes_validate
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from service.settings import RegionSettings, Settings, WebhookSettings
from tests.unit.admission.pods import COUNT, Json, body, decision, operations, patched
from tests.unit.admission.shapes import pods
from webhook.admission import review
from webhook.admission.mutate import Decision, Policy, decide
from webhook.admission.reserved import is_decision_key

_GATE = {"name": "tenure.dev/remote-gpu"}
_OURS = {
    *("LUPINE_SERVER", "LUPINE_DISABLE_LOCAL", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"),
    *("CUDA_SM_SHARED_BUCKET", "VMEMORY_NODE_ENABLED", "TENURE_POD_UID"),
}
_PATHS = {"/tmp/.sm_node", "/tmp/.vmem_node"}
POLICIES = [
    Policy.of(Settings()),
    Policy.of(
        Settings(
            webhook=WebhookSettings(
                inject_visible_devices=True, hide_local_cards=True, scheduler_names=("volcano",)
            ),
            regions=RegionSettings(backend="hostPath"),
        )
    ),
]
any_pod = given(obj=pods(), policy=st.sampled_from(POLICIES))
_quick = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def judged(obj: Json, policy: Policy) -> Decision:
    return decision(obj, policy, lambda _: {})


def result(obj: Json, policy: Policy) -> Json | None:
    """The pod as it comes in, None when it is refused."""
    found = judged(obj, policy)
    if found.refusal is not None:
        assert found.refusal.sentence.isprintable()
        return None
    return patched(obj, operations(found))


def all_containers(obj: Json) -> list[Json]:
    return [*obj["spec"].get("initContainers", []), *obj["spec"]["containers"]]


@_quick
@any_pod
def test_the_output_as_input_gives_no_patch(obj: Json, policy: Policy) -> None:
    once = result(obj, policy)
    if once is not None:
        assert judged(once, policy).patch == ()


def without_ours(obj: Json) -> Json:
    """A pod without the fields that admission may write."""
    rest = copy.deepcopy(obj)
    for field in ("annotations", "labels"):
        entries = rest["metadata"].pop(field, {})
        rest["metadata"][field] = {k: v for k, v in entries.items() if not is_decision_key(k)}
    spec = rest["spec"]
    spec.pop("schedulerName", None)
    spec["schedulingGates"] = [gate for gate in spec.get("schedulingGates", []) if gate != _GATE]
    spec["nodeSelector"] = {
        k: v for k, v in spec.get("nodeSelector", {}).items() if k != "tenure.dev/regions"
    }
    spec["resourceClaims"] = [claim for claim in spec.get("resourceClaims", []) if claim["name"] != "tenure"]
    volumes = spec.get("volumes", [])
    spec["volumes"] = [v for v in volumes if not v["name"].startswith("tenure-regions")]
    for container in all_containers(rest):
        container["resources"] = container.get("resources", {})
        container["resources"].pop("claims", None)
        container["env"] = [e for e in container.get("env", []) if e["name"] not in _OURS]
        mounts = container.get("volumeMounts", [])
        container["volumeMounts"] = [m for m in mounts if m["mountPath"] not in _PATHS]
    return rest


@_quick
@any_pod
def test_every_field_that_is_not_ours_stays(obj: Json, policy: Policy) -> None:
    once = result(obj, policy)
    if once is not None:
        assert without_ours(once) == without_ours(obj)
        # Volumes and mounts of the user stay too, under whatever name.
        assert once["spec"].get("volumes", [])[: len(obj["spec"].get("volumes", []))] == obj["spec"].get(
            "volumes", []
        )
        for before, after in zip(all_containers(obj), all_containers(once), strict=True):
            had = before.get("volumeMounts", [])
            assert after.get("volumeMounts", [])[: len(had)] == had


@_quick
@any_pod
def test_no_decision_key_comes_in_and_none_is_written(obj: Json, policy: Policy) -> None:
    once = result(obj, policy)
    if once is not None:
        meta = once["metadata"]
        assert not [k for k in (*meta.get("annotations", {}), *meta.get("labels", {})) if is_decision_key(k)]


def asks(container: Json) -> bool:
    return str(container.get("resources", {}).get("limits", {}).get(COUNT, "0")) != "0"


@_quick
@any_pod
def test_exactly_those_that_ask_for_cards_become_clients(obj: Json, policy: Policy) -> None:
    once = result(obj, policy)
    if once is None:
        return
    wanted = [asks(container) for container in all_containers(obj)]
    assert (_GATE in once["spec"].get("schedulingGates", [])) == any(wanted)
    for before, after, asked in zip(all_containers(obj), all_containers(once), wanted, strict=True):
        if asked:
            path = "metadata.annotations['hami.io/lupine-endpoint']"
            (entry,) = [e for e in after["env"] if e["name"] == "LUPINE_SERVER"]
            assert entry["valueFrom"]["fieldRef"]["fieldPath"] == path
        else:
            lupine = ("LUPINE_SERVER", "LUPINE_DISABLE_LOCAL")
            assert [e for e in after.get("env", []) if e["name"] in lupine] == [
                e for e in before.get("env", []) if e["name"] in lupine
            ]


@_quick
@any_pod
def test_names_and_mount_paths_stay_unique(obj: Json, policy: Policy) -> None:
    once = result(obj, policy)
    if once is None:
        return
    volumes = [volume["name"] for volume in once["spec"].get("volumes", [])]
    assert len(set(volumes)) == len(volumes)
    for container in all_containers(once):
        mounts = [mount["mountPath"] for mount in container.get("volumeMounts", [])]
        assert len(set(mounts)) == len(mounts)
        assert all(mount["name"] in volumes for mount in container.get("volumeMounts", []))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@any_pod
def test_the_result_is_a_pod_by_the_published_schema(obj: Json, policy: Policy) -> None:
    once = result(obj, policy)
    if once is not None:
        kubernetes_validate.validate(once, "1.33", strict=True)


@_quick
@any_pod
def test_every_warning_is_one_short_line(obj: Json, policy: Policy) -> None:
    warnings = judged(obj, policy).warnings
    assert all(w.isprintable() and 0 < len(w) <= 120 for w in warnings)
    assert len(set(warnings)) == len(warnings)


def test_the_decision_is_a_function_of_request_and_policy() -> None:
    def decisions() -> Iterator[Any]:
        for policy in POLICIES:
            for limits in ({COUNT: "2"}, {"nvidia.com/vgpu-number": "1"}):
                obj = {
                    "metadata": {},
                    "spec": {"containers": [{"name": "c", "resources": {"limits": limits}}]},
                }
                yield decide(review.read(body(obj)), policy)

    assert list(decisions()) == list(decisions())
