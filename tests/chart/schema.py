"""values.schema.json: the shape of values.yaml, what its types cannot say, and the program's own settings."""

from collections.abc import Mapping
from typing import Any, Final

from service.settings import Settings
from tests.chart import values

_MODE: Final = {"enum": ["dra", "devicePlugin"]}
_COUNT: Final = {"type": "integer", "minimum": 1, "maximum": 64}
_IMAGE_PULL: Final = {"enum": ["Always", "IfNotPresent", "Never"]}
_DIGEST: Final = {"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"}
_NAME: Final = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", "maxLength": 253}
_RESOURCE: Final = {"type": "string", "pattern": "^[a-z0-9.-]+/[A-Za-z0-9._-]+$", "maxLength": 253}
_FOLDER: Final = {"type": "string", "pattern": "^/[^/].*[^/]$"}
_AMOUNT: Final = {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": "^[0-9]+%$"}]}
_NAMED: Final = {
    "type": "array",
    "items": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}},
}

# What the default alone does not say, by path. The rest follows from the defaults' types.
CONSTRAINTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "image.pullPolicy": _IMAGE_PULL,
    "image.digest": _DIGEST,
    "imagePullSecrets": _NAMED,
    "pool.placement": {"enum": ["extender", "dra"]},
    "pool.policy": {"enum": ["binpack", "spread"]},
    "pool.resources.count": _RESOURCE,
    "pool.resources.memory": _RESOURCE,
    "regions.backend": {"enum": ["csi", "hostPath", "off"]},
    "regions.root": _FOLDER,
    "regions.kubeletRoot": _FOLDER,
    "regions.resources": {"type": "array", "items": _RESOURCE},
    "devices.npu.mode": _MODE,
    "devices.npu.resourceName": _RESOURCE,
    "devices.npu.count": _COUNT,
    "devices.rdma.mode": _MODE,
    "devices.rdma.resourceName": _RESOURCE,
    "devices.rdma.count": _COUNT,
    "webhook.failurePolicy": {"enum": ["Ignore", "Fail"]},
    "webhook.timeoutSeconds": {"type": "integer", "minimum": 1, "maximum": 30},
    "webhook.decisionAccounts": {"type": "array", "items": {"type": "string"}},
    "certificates.mode": {"enum": ["self", "certManager", "files"]},
    "certificates.issuerRef.kind": {"enum": ["Issuer", "ClusterIssuer"]},
    "scheduler.image.pullPolicy": _IMAGE_PULL,
    "scheduler.image.digest": _DIGEST,
    "scheduler.qps": {"type": "number", "exclusiveMinimum": 0},
    "scheduler.burst": {"type": "integer", "minimum": 1},
    "scheduler.verbosity": {"type": "integer", "minimum": 0, "maximum": 10},
    # No server at all would leave gated pods to nobody.
    "server.replicas": {"type": "integer", "minimum": 1, "maximum": 9},
    "server.maxUnavailable": _AMOUNT,
    "node.maxUnavailable": _AMOUNT,
    "priorityClasses.value": {"type": "integer", "minimum": -1000000000, "maximum": 1000000000},
    "networkPolicy.apiServerCIDRs": {
        "type": "array",
        "items": {"type": "string", "pattern": "^[0-9a-fA-F.:]+/[0-9]{1,3}$"},
    },
    "metrics.serviceMonitor.interval": {"type": "string", "pattern": "^([0-9]+(ms|s|m|h))+$"},
    "uninstall.blockers": {"enum": ["refuse", "warn"]},
    "test.namespace": _NAME,
}
_PLAIN: Final = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
}
# Of what pydantic writes, the parts that Helm checks.
_NOISE: Final = {"title", "default", "description", "format"}


def schema(text: str) -> dict[str, Any]:
    """The whole document for the text of values.yaml. Raises KeyError for a constraint of a value that is not there."""
    root: dict[str, Any] = {"$schema": "https://json-schema.org/draft/2020-12/schema", **_closed()}
    paths = {value.path: value for value in values.values(text)}
    for path in CONSTRAINTS:
        _ = paths[path]
    for value in paths.values():
        *parents, name = value.path.split(".")
        group = root
        for parent in parents:
            group = group["properties"].setdefault(parent, _closed())
        group["properties"][name] = dict(CONSTRAINTS.get(value.path, {"type": _PLAIN[type(value.default)]}))
    settings = _without_noise(Settings.model_json_schema())
    root["$defs"] = settings.pop("$defs")
    root["properties"]["settings"] = settings
    root["properties"]["global"] = {"type": "object"}  # Helm puts it into the values of a subchart.
    return root


def _closed() -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": {}}


def _without_noise(part: Any) -> Any:
    if isinstance(part, list):
        return [_without_noise(item) for item in part]
    if not isinstance(part, dict):
        return part
    # A setting may be called as one of the keywords: names of properties stay.
    kept = {
        key: {name: _without_noise(one) for name, one in found.items()} if key == "properties" else found
        for key, found in part.items()
        if key not in _NOISE
    }
    return {key: found if key == "properties" else _without_noise(found) for key, found in kept.items()}
