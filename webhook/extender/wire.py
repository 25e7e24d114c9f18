"""Wire types of the scheduler extender (Kubernetes, k8s.io/kube-scheduler/extender/v1).

Those Go types carry no JSON tags, so names travel capitalised; Go itself reads any case, and so do we, as far as
the first letter goes. Only what is needed is decoded: node names, and the pod's identity and requests.
"""

from typing import Any

import msgspec

from service.objects import Pod


class FilterArgs(msgspec.Struct, frozen=True, rename="pascal"):
    """ExtenderArgs of a `nodeCacheCapable` extender: names only."""

    pod: Pod | None = None
    node_names: list[str] | None = None


class _LowerFilterArgs(msgspec.Struct, frozen=True, rename={"node_names": "nodeNames"}):
    pod: Pod | None = None
    node_names: list[str] | None = None


class FilterResult(msgspec.Struct, frozen=True, rename="pascal"):
    """ExtenderFilterResult. Preemption cannot help a node in `failed_and_unresolvable_nodes`."""

    node_names: list[str] = []
    failed_nodes: dict[str, str] = {}
    failed_and_unresolvable_nodes: dict[str, str] = {}
    error: str = ""


class BindArgs(
    msgspec.Struct,
    frozen=True,
    rename={"pod_name": "PodName", "pod_namespace": "PodNamespace", "pod_uid": "PodUID", "node": "Node"},
):
    """ExtenderBindingArgs."""

    pod_name: str
    pod_namespace: str
    pod_uid: str
    node: str


class PreemptArgs(msgspec.Struct, frozen=True, rename="pascal"):
    """ExtenderPreemptionArgs; victims pass through as they came."""

    pod: Pod | None = None
    node_name_to_meta_victims: dict[str, Any] | None = None


_filter = msgspec.json.Decoder(FilterArgs).decode
_lower_filter = msgspec.json.Decoder(_LowerFilterArgs).decode
_preempt = msgspec.json.Decoder(PreemptArgs).decode
_bind = msgspec.json.Decoder(BindArgs).decode


class WireError(ValueError):
    """A call that is not what kube-scheduler sends; one sentence."""


def decode_filter(body: bytes) -> tuple[Pod, list[str]]:
    """Pod and candidate node names. Raises WireError."""
    try:
        args = _filter(body)
        if args.pod is None:
            lower = _lower_filter(body)
            args = FilterArgs(lower.pod, lower.node_names)
    except (msgspec.DecodeError, RecursionError) as error:
        raise WireError(f"not a filter call: {error}") from None
    if args.pod is None:
        raise WireError("the call has no Pod")
    if args.node_names is None:
        raise WireError("the call has no NodeNames; set nodeCacheCapable: true for this extender")
    return args.pod, args.node_names


def decode_bind(body: bytes) -> BindArgs:
    """The pod and its node. Raises WireError."""
    try:
        return _bind(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise WireError(f"not a bind call: {error}") from None


def decode_preempt(body: bytes) -> tuple[Pod, dict[str, Any]]:
    """The pod and its candidate victims by node. Raises WireError."""
    try:
        args = _preempt(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise WireError(f"not a preempt call: {error}") from None
    if args.pod is None:
        raise WireError("the call has no Pod")
    return args.pod, args.node_name_to_meta_victims or {}
