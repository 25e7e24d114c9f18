"""Projections of Kubernetes objects: the few fields that Tenure reads, frozen, decoded straight from bytes.

Unknown fields are skipped while decoding, so a pod of several KiB becomes about one. Field names follow the
Kubernetes API reference (core/v1, meta/v1), in snake case. Timestamps stay RFC 3339 text until needed.
"""

from datetime import datetime
from typing import Any, Protocol

import msgspec


class Projection(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """Base of all projections: camel case on the wire, absent when default, never changed after decoding."""


class ObjectMeta(Projection, frozen=True):
    """meta/v1 ObjectMeta. `resource_version` is opaque text."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None

    @property
    def key(self) -> str:
        """`namespace/name`, or `name` for cluster-scoped objects."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class KubeObject(Protocol):
    """Anything with metadata."""

    @property
    def metadata(self) -> ObjectMeta:
        """meta/v1 ObjectMeta."""


# A quantity may arrive as text ("1", "2Gi") or as a bare number (hand-written YAML passes as an integer).
Quantity = str | int | float


class ResourceRequirements(Projection, frozen=True):
    """core/v1 ResourceRequirements, without claims."""

    limits: dict[str, Quantity] | None = None
    requests: dict[str, Quantity] | None = None


class Container(Projection, frozen=True):
    """core/v1 Container as far as scheduling needs it; `restart_policy` Always marks a sidecar."""

    name: str = ""
    restart_policy: str | None = None
    resources: ResourceRequirements | None = None
    env: tuple["EnvVar", ...] | None = None


class FieldRef(Projection, frozen=True):
    """core/v1 ObjectFieldSelector."""

    field_path: str = ""


class EnvVarSource(Projection, frozen=True):
    """core/v1 EnvVarSource, only the downward API field."""

    field_ref: FieldRef | None = None


class EnvVar(Projection, frozen=True):
    """core/v1 EnvVar without its literal value: values of tenants are none of our business."""

    name: str = ""
    value_from: EnvVarSource | None = None


class SchedulingGate(Projection, frozen=True):
    """core/v1 PodSchedulingGate."""

    name: str = ""


class Toleration(Projection, frozen=True):
    """core/v1 Toleration."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""


class PodSpec(Projection, frozen=True):
    """core/v1 PodSpec as far as pool, queue and the estimate of decision 4 need it."""

    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] | None = None
    node_name: str = ""
    scheduler_name: str = ""
    scheduling_gates: tuple[SchedulingGate, ...] | None = None
    priority: int | None = None
    node_selector: dict[str, str] | None = None
    affinity: dict[str, Any] | None = None
    tolerations: tuple[Toleration, ...] | None = None
    overhead: dict[str, Quantity] | None = None


class PodStatus(Projection, frozen=True):
    """core/v1 PodStatus: the phase only."""

    phase: str = ""


class Pod(Projection, frozen=True):
    """core/v1 Pod."""

    metadata: ObjectMeta
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def ended(self) -> bool:
        """True when no container of this pod can run again."""
        return self.status.phase in {"Succeeded", "Failed"}


class NodeAddress(Projection, frozen=True):
    """core/v1 NodeAddress."""

    type: str = ""
    address: str = ""


class NodeCondition(Projection, frozen=True):
    """core/v1 NodeCondition."""

    type: str = ""
    status: str = ""


class NodeStatus(Projection, frozen=True):
    """core/v1 NodeStatus."""

    addresses: tuple[NodeAddress, ...] = ()
    conditions: tuple[NodeCondition, ...] = ()
    allocatable: dict[str, Quantity] = {}


class Taint(Projection, frozen=True):
    """core/v1 Taint."""

    key: str = ""
    value: str = ""
    effect: str = ""


class NodeSpec(Projection, frozen=True):
    """core/v1 NodeSpec."""

    unschedulable: bool = False
    taints: tuple[Taint, ...] | None = None


class Node(Projection, frozen=True):
    """core/v1 Node."""

    metadata: ObjectMeta
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()

    @property
    def ready(self) -> bool:
        """True only when the Ready condition says so; no condition is no evidence."""
        return any(c.type == "Ready" and c.status == "True" for c in self.status.conditions)


class Namespace(Projection, frozen=True):
    """core/v1 Namespace: its labels say what Pod Security lets in."""

    metadata: ObjectMeta


def parse_time(text: str) -> datetime:
    """RFC 3339 text of the API server as an aware datetime. Raises ValueError on anything else."""
    return datetime.fromisoformat(text)
