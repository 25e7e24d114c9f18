from dataclasses import replace
from typing import Any

import pytest

from service.settings import RegionSettings, Settings
from tests.unit.admission.pods import Json, body, container, decision, env, mutated, pod, refusal
from webhook.admission import review
from webhook.admission.mutate import Policy, decide

VGPU = {"nvidia.com/vgpu-number": "1"}
HOST_PATH = Policy.of(Settings(regions=RegionSettings(backend="hostPath")))
PATHS = ["/tmp/.sm_node", "/tmp/.vmem_node"]
SWITCHES = {"CUDA_SM_SHARED_BUCKET": "true", "VMEMORY_NODE_ENABLED": "true"}


def regions(result: Json, name: str = "main") -> dict[str, Json]:
    """The mounts of a container by path; each must name a volume of the pod."""
    spec = result["spec"]
    found = next(c for c in [*spec.get("initContainers", []), *spec["containers"]] if c["name"] == name)
    volumes = [volume["name"] for volume in spec.get("volumes", [])]
    assert len(set(volumes)) == len(volumes)
    mounts = found.get("volumeMounts", [])
    assert all(mount["name"] in volumes for mount in mounts)
    return {mount["mountPath"]: mount for mount in mounts if mount["mountPath"] in PATHS}


def volume_of(result: Json, mount: Json) -> Json:
    found: Json = next(v for v in result["spec"]["volumes"] if v["name"] == mount["name"])
    return found


@pytest.mark.parametrize("resource", ["number", "cores", "memory"])
def test_a_container_that_asks_for_a_vgpu_gets_both_folders_and_their_switches(resource: str) -> None:
    result = mutated(pod(container(limits={f"nvidia.com/vgpu-{resource}": "1"}), container("plain")))
    sm, vmem = (regions(result)[path] for path in PATHS)
    assert (sm["subPath"], vmem["subPath"], sm["name"]) == ("sm_node", "vmem_node", vmem["name"])
    assert volume_of(result, sm)["csi"] == {
        "driver": "csi.tenure.dev",
        "volumeAttributes": {"container": "main"},
    }
    assert env(result) == SWITCHES
    assert result["spec"]["nodeSelector"] == {"tenure.dev/regions": "ready"}
    assert regions(result, "plain") == {}
    assert env(result, "plain") == {}


def test_a_pod_that_needs_none_is_untouched() -> None:
    assert decision(pod(container(limits={"nvidia.com/gpu": "1", "nvidia.com/vgpu-number": "0"}))).patch == ()


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ("", {"init", "side", "main", "b"}),
        ("b", {"b"}),
        (" b , init ", {"init", "b"}),
        (",", {"init", "side", "main", "b"}),
        ("missing", set()),
    ],
)
def test_the_annotation_names_containers_or_all(named: str, expected: set[str]) -> None:
    inits = [container("init"), container("side", restartPolicy="Always")]
    obj = pod(container(), container("b"), initContainers=inits, annotations={"tenure.dev/regions": named})
    result = mutated(obj)
    assert {name for name in ("init", "side", "main", "b") if len(regions(result, name)) == 2} == expected
    assert bool(decision(obj).warnings) == (named == "missing")
    assert ("nodeSelector" in result["spec"]) == bool(expected)


def test_the_annotation_adds_to_what_is_asked_for() -> None:
    result = mutated(pod(container(limits=VGPU), container("b"), annotations={"tenure.dev/regions": "b"}))
    assert len(regions(result)) == len(regions(result, "b")) == 2


def test_long_names_that_differ_in_the_last_letter_get_volumes_of_their_own() -> None:
    long = ["a" * 62 + "b", "a" * 62 + "c"]
    result = mutated(pod(*(container(name, VGPU) for name in long), metadata={}))
    names = [regions(result, name)["/tmp/.sm_node"]["name"] for name in long]
    assert len(set(names)) == 2
    assert all(len(name) <= 63 and name.replace("-", "").isalnum() for name in names)
    assert [volume_of(result, {"name": n})["csi"]["volumeAttributes"]["container"] for n in names] == long


def test_forty_containers_get_forty_volumes() -> None:
    result = mutated(pod(*(container(f"c{i}", VGPU) for i in range(40))))
    assert len(result["spec"]["volumes"]) == 40
    assert all(len(regions(result, f"c{i}")) == 2 for i in range(40))


def test_a_volume_of_the_user_with_our_name_is_stepped_round() -> None:
    ours = mutated(pod(container(limits=VGPU)))["spec"]["volumes"][0]["name"]
    own = [{"name": ours, "emptyDir": {}}, {"name": f"{ours}-2", "secret": {"secretName": "s"}}]
    result = mutated(pod(container(limits=VGPU), volumes=own))
    assert result["spec"]["volumes"][:2] == own
    assert regions(result)["/tmp/.sm_node"]["name"] == f"{ours}-3"


@pytest.mark.parametrize("path", ["/tmp/.sm_node", "/tmp/.sm_node/", "tmp/.sm_node", "//tmp/./.sm_node"])
def test_an_own_mount_at_the_place_is_kept_and_said(path: str) -> None:
    own = {"name": "mine", "mountPath": path}
    obj = pod(container(limits=VGPU, volumeMounts=[own]), volumes=[{"name": "mine", "emptyDir": {}}])
    result = mutated(obj)
    mounts = result["spec"]["containers"][0]["volumeMounts"]
    assert [mount["mountPath"] for mount in mounts] == [path, "/tmp/.vmem_node"]
    assert env(result) == {"VMEMORY_NODE_ENABLED": "true"}
    assert decision(obj).warnings == ("container main keeps its own mount at /tmp/.sm_node; no region there",)


def test_a_block_device_at_the_place_is_kept() -> None:
    obj = pod(container(limits=VGPU, volumeDevices=[{"name": "d", "devicePath": "/tmp/.sm_node"}]))
    assert list(regions(mutated(obj))) == ["/tmp/.vmem_node"]


CLAIM = {"persistentVolumeClaim": {"claimName": "models"}}


@pytest.mark.parametrize(
    ("mounts", "source", "mounted"),
    [
        ([{"mountPath": "/tmp", "readOnly": True}], CLAIM, False),
        ([{"mountPath": "/tmp/", "readOnly": True}], CLAIM, False),
        ([{"mountPath": "/", "readOnly": True}], CLAIM, False),
        ([{"mountPath": "/tmp"}], {"persistentVolumeClaim": {"claimName": "m", "readOnly": True}}, False),
        ([{"mountPath": "/tmp"}], {"image": {"reference": "example/data"}}, False),
        ([{"mountPath": "/tmp"}], {"csi": {"driver": "x", "readOnly": True}}, False),
        ([{"mountPath": "/tmp"}], CLAIM, True),
        ([{"mountPath": "/tmp"}], {"emptyDir": {}}, True),
        ([{"mountPath": "/tmpfiles", "readOnly": True}], CLAIM, True),
        ([{"mountPath": "/tmp/.sm_node/deeper", "readOnly": True}], CLAIM, True),
        ([{"mountPath": "/tmp"}], {"configMap": {"name": "c"}}, True),
        ([{"mountPath": "/tmp", "readOnly": True}], {"projected": {"sources": []}}, True),
        ([{"mountPath": "/tmp", "subPath": "x"}], {"secret": {"secretName": "s"}}, False),
        ([{"mountPath": "/", "readOnly": True}, {"mountPath": "/tmp", "name": "rw"}], CLAIM, True),
        ([{"mountPath": "/tmp", "name": "rw"}, {"mountPath": "/tmp/", "readOnly": True}], CLAIM, False),
    ],
)
def test_below_a_read_only_parent_there_is_no_place(mounts: list[Json], source: Json, mounted: bool) -> None:  # noqa: FBT001 - a column
    obj = pod(
        container(
            limits=VGPU,
            securityContext={"readOnlyRootFilesystem": True},
            volumeMounts=[{"name": "scratch"} | mount for mount in mounts],
        ),
        volumes=[{"name": "scratch"} | source, {"name": "rw", "emptyDir": {}}],
    )
    result = mutated(obj)
    assert (len(regions(result)) == 2, bool(decision(obj).warnings)) == (mounted, not mounted)
    if not mounted:
        assert result == obj


def test_switches_that_the_user_set_stay() -> None:
    own = [{"name": "CUDA_SM_SHARED_BUCKET", "value": "0"}]
    assert env(mutated(pod(container(limits=VGPU, env=own))))["CUDA_SM_SHARED_BUCKET"] == "0"


def test_own_selectors_and_affinity_stay() -> None:
    affinity: Json = {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}
    }
    result = mutated(pod(container(limits=VGPU), nodeSelector={"zone": "a"}, affinity=affinity))
    assert result["spec"]["nodeSelector"] == {"zone": "a", "tenure.dev/regions": "ready"}
    assert result["spec"]["affinity"] == affinity


def test_a_windows_pod_is_refused_with_a_sentence_and_a_host_network_pod_works() -> None:
    assert "Linux" in refusal(pod(container(limits=VGPU), os={"name": "windows"}))
    assert len(regions(mutated(pod(container(limits=VGPU), hostNetwork=True)))) == 2


def test_a_second_call_adds_mounts_to_a_late_container_beside_the_volumes_that_are_there() -> None:
    once = mutated(pod(container(limits=VGPU)))
    assert decision(once).patch == ()
    once["spec"]["containers"].insert(0, container("late", VGPU))
    once["spec"]["containers"][1]["volumeMounts"] = []
    twice = mutated(once)
    assert len(regions(twice)) == len(regions(twice, "late")) == 2
    assert len(twice["spec"]["volumes"]) == 2


def test_switched_off_means_off() -> None:
    policy = Policy.of(Settings(regions=RegionSettings(backend="off")))
    assert decision(pod(container(limits=VGPU), annotations={"tenure.dev/regions": ""}), policy).patch == ()


def with_labels(obj: Json, labels: Json | None, policy: Policy = HOST_PATH) -> Any:
    return decide(review.read(body(obj)), policy, lambda name: labels if name == "tenant" else None)


def test_the_host_path_backend_uses_a_sub_path_by_pod_uid() -> None:
    obj = pod(container(limits=VGPU), container("b", VGPU))
    once = mutated(obj, HOST_PATH, labels=lambda _: {})
    assert once["spec"]["volumes"] == [
        {"name": "tenure-regions", "hostPath": {"path": "/etc/vgpu-manager", "type": "DirectoryOrCreate"}}
    ]
    assert regions(once, "b")["/tmp/.sm_node"]["subPathExpr"] == "$(TENURE_POD_UID)_b/sm_node"
    assert env(once)["TENURE_POD_UID"] == {"fieldRef": {"fieldPath": "metadata.uid"}}
    assert "nodeSelector" not in once["spec"]
    assert with_labels(once, {}).patch == ()


@pytest.mark.parametrize("level", ["baseline", "restricted", "nonsense", None])
def test_where_pod_security_forbids_host_paths_there_are_no_regions_or_no_pod(level: str | None) -> None:
    labels = {"pod-security.kubernetes.io/enforce": level} if level else None
    obj = pod(container(limits=VGPU))
    found = with_labels(obj, labels)
    assert (found.patch, len(found.warnings)) == ((), 1)
    strict = replace(HOST_PATH, regions=replace(HOST_PATH.regions, refuse_when_restricted=True))
    assert "regions.backend" in str(with_labels(obj, labels, strict).refusal)
    assert with_labels(obj, {"pod-security.kubernetes.io/enforce": "privileged"}, strict).refusal is None
