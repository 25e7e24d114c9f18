"""Wire types of the scheduler extender (Kubernetes, k8s.io/kube-scheduler/extender/v1).

Those Go types carry no JSON tags, so names travel capitalised; Go itself reads any case, and so do we, as far as
the first letter goes. Only what is needed is decoded: the pod's identity and requests. The candidate nodes, thousands
of names in a large cluster, stay the bytes that they came as: to decode and encode them again would be most of the
cost of a call.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec

from service.objects import Pod

# A search for any of more names than this costs more than to decode the list.
_SEARCHED = 32


class FilterArgs(msgspec.Struct, frozen=True, rename="pascal"):
    """ExtenderArgs of a `nodeCacheCapable` extender: names only."""

    pod: Pod | None = None
    node_names: msgspec.Raw = msgspec.Raw(b"null")


class _LowerFilterArgs(msgspec.Struct, frozen=True, rename={"node_names": "nodeNames"}):
    pod: Pod | None = None
    node_names: msgspec.Raw = msgspec.Raw(b"null")


class FilterResult(msgspec.Struct, frozen=True, rename="pascal"):
    """ExtenderFilterResult. Preemption cannot help a node in `failed_and_unresolvable_nodes`."""

    node_names: msgspec.Raw = msgspec.Raw(b"[]")
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
_names = msgspec.json.Decoder(list[str]).decode
_encode = msgspec.json.Encoder().encode


class WireError(ValueError):
    """A call that is not what kube-scheduler sends; one sentence."""


@dataclass(frozen=True, slots=True)
class NodeNames:
    """A JSON list of node names, as bytes."""

    raw: bytes

    def decoded(self) -> list[str]:
        """The names. Raises WireError."""
        try:
            return _names(self.raw)
        except msgspec.DecodeError as error:
            raise WireError(f"NodeNames is not a list of names: {error}") from None

    def without(self, unwanted: Collection[str]) -> tuple["NodeNames", list[str]]:
        """The list without some names, and those of them that were in it.

        A node's name is a DNS subdomain, so its JSON is the name between quotes, and no other name contains that:
        one search over the bytes finds them all. Go writes no space between the elements; where somebody does, the
        list is decoded.
        """
        if not unwanted:
            return self, []
        if len(unwanted) > _SEARCHED or b" " in self.raw or b"\n" in self.raw:
            return self._without_decoded(unwanted)
        pattern = _pattern(frozenset(unwanted))
        found = pattern.findall(self.raw)
        if not found:
            return self, []
        kept = pattern.sub(b"", self.raw)
        # The last element takes no comma with it, so the one before it is left.
        kept = kept[:-2] + b"]" if kept.endswith(b",]") else kept
        return NodeNames(kept), [name.decode() for name in found]

    def _without_decoded(self, unwanted: Collection[str]) -> tuple["NodeNames", list[str]]:
        names, out = self.decoded(), frozenset(unwanted)
        kept = [name for name in names if name not in out]
        return NodeNames(_encode(kept)), [name for name in names if name in out]


@lru_cache(maxsize=8)
def _pattern(names: frozenset[str]) -> re.Pattern[bytes]:
    """Any of these elements of a compact JSON list, with the comma behind it. The set of servers seldom changes."""
    return re.compile(b'"(' + b"|".join(re.escape(name.encode()) for name in sorted(names)) + b')",?')


def decode_filter(body: bytes) -> tuple[Pod, NodeNames]:
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
    raw = bytes(args.node_names)
    if not raw.startswith(b"["):
        raise WireError("the call has no NodeNames; set nodeCacheCapable: true for this extender")
    return args.pod, NodeNames(raw)


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
