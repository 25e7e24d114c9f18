"""Builders: the shortest way to an object that a test is about."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

from controllers.pool.demand import Demand, Kind, Need
from controllers.pool.placement import Offer, Waiting
from controllers.pool.servers import (
    Allocation,
    Card,
    Observed,
    RemoteServer,
    RemoteServerSpec,
    status_of,
)
from service import names
from service.objects import (
    Container,
    EnvVar,
    EnvVarSource,
    FieldRef,
    Node,
    NodeAddress,
    NodeCondition,
    NodeSpec,
    NodeStatus,
    ObjectMeta,
    Pod,
    PodSpec,
    PodStatus,
    Quantity,
    ResourceRequirements,
    SchedulingGate,
)

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def card(name: str = "GPU-0", *, mib: int = 1000, index: int = 0, offered: bool = True) -> Card:
    return Card(name, index, "NVIDIA X", mib, 100, 0, "10.0.0.1:14833", offered)


def cards(*sizes: int) -> tuple[Card, ...]:
    return tuple(card(f"GPU-{i}", mib=size, index=i) for i, size in enumerate(sizes))


def allocation(
    name: str = "GPU-0", uid: str = "u1", phase: str = "Reserved", since: datetime = NOW
) -> Allocation:
    return Allocation(name, uid, "ns", uid, phase, since.strftime("%Y-%m-%dT%H:%M:%SZ"))


def server(
    name: str = "s1",
    *,
    of: Sequence[Card] = (card(),),
    held: Sequence[Allocation] = (),
    observed: Sequence[Observed] = (),
    seen: datetime | None = None,
    version: str = "1",
) -> RemoteServer:
    spec = RemoteServerSpec(tuple(observed), seen.isoformat() if seen else "")
    meta = ObjectMeta(name=name, uid=f"uid-{name}", resource_version=version)
    return RemoteServer(meta, spec, status_of("10.0.0.1:14833", of, held))


def offer(name: str, *sizes: int, held: Sequence[int] = ()) -> Offer:
    free = tuple(card(f"{name}-{i}", mib=size, index=i) for i, size in enumerate(sizes))
    busy = tuple(card(f"{name}-held-{i}", mib=size, index=50 + i) for i, size in enumerate(held))
    return Offer(name, free, free + busy)


def demand(count: int = 1, mib: int = 0) -> Demand:
    return Demand((Need("main", Kind.APP, count, mib),))


def waiting(
    uid: str = "u1", *, count: int = 1, mib: int = 0, priority: int = 0, since: datetime = NOW
) -> Waiting:
    return Waiting(uid, "ns", uid, demand(count, mib), priority, since)


def asks(
    name: str = "main", *, always: bool = False, injected: bool = True, **resources: str | int
) -> Container:
    limits: dict[str, Quantity] = {
        f"hami.io/{key.replace('_', '-')}": value for key, value in resources.items()
    }
    path = f"metadata.annotations['{names.LUPINE_ENDPOINT}']"
    env = (EnvVar(names.LUPINE_SERVER_ENV, EnvVarSource(FieldRef(path))),) if injected else None
    return Container(name, "Always" if always else None, ResourceRequirements(limits), env)


def pod(
    uid: str = "u1",
    *containers: Container,
    inits: Sequence[Container] = (),
    gates: Sequence[str] = (names.GATE,),
    node: str = "",
    phase: str = "Pending",
    annotations: Mapping[str, str] | None = None,
    deleting: bool = False,
    priority: int = 0,
    version: str = "1",
) -> Pod:
    return Pod(
        ObjectMeta(
            name=uid,
            namespace="ns",
            uid=uid,
            resource_version=version,
            annotations=dict(annotations or {}),
            creation_timestamp="2026-01-01T12:00:00Z",
            deletion_timestamp="2026-01-01T12:00:30Z" if deleting else None,
        ),
        PodSpec(
            containers=containers or (asks(remote_gpu="1"),),
            init_containers=tuple(inits) or None,
            node_name=node,
            scheduling_gates=tuple(SchedulingGate(gate) for gate in gates) or None,
            priority=priority,
        ),
        PodStatus(phase),
    )


def node(
    name: str = "s1",
    *,
    register: str | None = None,
    label: str | None = "",
    addresses: Sequence[tuple[str, str]] = (("InternalIP", "10.0.0.1"),),
    ready: str = "True",
    annotations: Mapping[str, str] | None = None,
    deleting: bool = False,
    unschedulable: bool = False,
) -> Node:
    notes = dict(annotations or {})
    if register is not None:
        notes[names.NODE_REGISTER] = register
    return Node(
        ObjectMeta(
            name=name,
            uid=f"node-{name}",
            labels={} if label is None else {names.LUPINE_SERVER_LABEL: label},
            annotations=notes,
            deletion_timestamp="2026-01-01T12:00:30Z" if deleting else None,
        ),
        NodeSpec(unschedulable),
        NodeStatus(
            tuple(NodeAddress(kind, address) for kind, address in addresses),
            (NodeCondition("Ready", ready),),
        ),
    )
