"""Pods as hypothesis thinks of them: every field that admission reads, with values that clash with ours on purpose."""

import copy
from typing import Any

from hypothesis import strategies as st

from tests.unit.admission.pods import COUNT, MEMORY, Json

_NAMES = ["main", "x", "side-car", "0", "a" * 62 + "b", "a" * 62 + "c"]
_PATHS = ["/tmp", "/tmp/", "/", "/data", "/tmp/.sm_node", "/tmp/.vmem_node/", "/tmp/.sm_node/x", "/tmp2"]
_VARIABLES = [
    *("LUPINE_SERVER", "LUPINE_DISABLE_LOCAL", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"),
    *("CUDA_SM_SHARED_BUCKET", "VMEMORY_NODE_ENABLED", "TENURE_POD_UID", "PATH", "A"),
]
_RESOURCES = [COUNT, MEMORY, "cpu", "nvidia.com/gpu", "nvidia.com/vgpu-number", "nvidia.com/vgpu-cores"]
_QUANTITIES = st.sampled_from(["0", "1", "2", "16"])
_KEYS = st.sampled_from(
    [
        *("hami.io/lupine-endpoint", "hami.io/remote-gpu-devices-allocated", "allocation.tenure.dev/a"),
        *("allocation.tenure.dev/b~0", "tenure.dev/regions", "tenure.dev/claim-template", "team"),
        *("a/b", "zone~1"),
    ]
)


def _optional(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Json]:
    return st.fixed_dictionaries({}, optional=fields)


_env = st.lists(
    st.one_of(
        st.fixed_dictionaries(
            {"name": st.sampled_from(_VARIABLES), "value": st.sampled_from(["", "true", "x$(A)"])}
        ),
        st.fixed_dictionaries(
            {
                "name": st.sampled_from(_VARIABLES),
                "valueFrom": st.sampled_from(
                    [
                        {"secretKeyRef": {"name": "s", "key": "k"}},
                        {"fieldRef": {"fieldPath": "metadata.annotations['hami.io/lupine-endpoint']"}},
                        {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}},
                    ]
                ),
            }
        ),
    ),
    max_size=5,
)


_VOLUMES = ["data", "tenure-regions", "tenure-regions-2", "tenure-regions-0d6e4079e36703eb"]
_mounts = st.lists(
    st.builds(
        lambda name, path, rest: {"name": name, "mountPath": path} | rest,
        st.sampled_from(_VOLUMES),
        st.sampled_from(_PATHS),
        _optional(readOnly=st.booleans(), subPath=st.sampled_from(["s", "sm_node"])),
    ),
    max_size=3,
    unique_by=lambda mount: mount["mountPath"],
)
_limits = st.dictionaries(st.sampled_from(_RESOURCES), _QUANTITIES, max_size=3)
_container = _optional(
    env=_env,
    envFrom=st.just([{"configMapRef": {"name": "c"}}]),
    resources=st.one_of(_limits.map(lambda found: {"limits": found, "requests": found}), st.just({})),
    volumeMounts=_mounts,
    command=st.just(["sh", "-c", "true"]),
    securityContext=st.just({"readOnlyRootFilesystem": True, "runAsUser": 65534}),
    imagePullPolicy=st.sampled_from(["Always", "Never"]),
)
_SOURCES: list[Json] = [
    {"emptyDir": {}},
    {"configMap": {"name": "c"}},
    {"persistentVolumeClaim": {"claimName": "p", "readOnly": True}},
    {"csi": {"driver": "csi.tenure.dev", "volumeAttributes": {"container": "main"}}},
    {"hostPath": {"path": "/etc/vgpu-manager", "type": "DirectoryOrCreate"}},
]
_gates = st.lists(
    st.sampled_from([{"name": "tenure.dev/remote-gpu"}, {"name": "example.com/q"}]),
    unique_by=lambda gate: gate["name"],
)
_spec = _optional(
    schedulerName=st.sampled_from(["default-scheduler", "tenure-scheduler", "volcano"]),
    nodeName=st.just("n1"),
    os=st.sampled_from([{"name": "linux"}, {"name": "windows"}]),
    nodeSelector=st.dictionaries(st.sampled_from(["zone", "tenure.dev/regions"]), st.just("x")),
    schedulingGates=_gates,
    affinity=st.just({"nodeAffinity": {}}),
    hostNetwork=st.booleans(),
    resourceClaims=st.just([{"name": "mine", "resourceClaimName": "c"}]),
)
_metadata = _optional(
    annotations=st.dictionaries(_KEYS, st.sampled_from(["", "main", "x,y"]), max_size=4),
    labels=st.dictionaries(_KEYS, st.sampled_from(["", "v"]), max_size=3),
    generateName=st.just("job-"),
    ownerReferences=st.just([{"apiVersion": "v1", "kind": "Pod", "name": "o", "uid": "u"}]),
)


def _pod(
    metadata: Json, spec: Json, containers: list[Json], sidecars: list[bool], volumes: dict[str, Json]
) -> Json:
    named: list[Json] = [
        {"name": name, "image": "example/image"} | found
        for name, found in zip(_NAMES, containers, strict=False)
    ]
    for found in named:
        mounts = [mount for mount in found.pop("volumeMounts", []) if mount["name"] in volumes]
        found.update({"volumeMounts": mounts} if mounts else {})
    inits = named[1:][: len(sidecars)]
    for found, sidecar in zip(inits, sidecars, strict=False):
        found.update({"restartPolicy": "Always"} if sidecar else {})
    rest = named[:1] + named[1:][len(sidecars) :]
    lists: Json = {
        "initContainers": inits,
        "volumes": [{"name": n} | source for n, source in volumes.items()],
    }
    filled = {field: items for field, items in lists.items() if items}
    spec = spec | {"containers": rest} | filled
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"} | metadata, "spec": spec}


def pods() -> st.SearchStrategy[Json]:
    """Pods that the API server could have sent: valid but for what admission is there to refuse."""
    return st.builds(
        lambda *parts: _pod(*copy.deepcopy(parts)),
        _metadata,
        _spec,
        st.lists(_container, min_size=1, max_size=4),
        st.lists(st.booleans(), max_size=2),
        st.dictionaries(st.sampled_from(_VOLUMES), st.sampled_from(_SOURCES), max_size=4),
    )
