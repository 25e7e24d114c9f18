"""Pods as the pool sees them: who waits, who holds, who has ended. Pure state, fed by the pod informer.

Most pods of a cluster are none of our business and leave no trace here.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from controllers.pool import demand, grant
from controllers.pool.demand import Demand, DemandError
from controllers.pool.fresh import BELIEVED_S, OwnWrites, newer
from controllers.pool.ledger import Fate, Witness
from controllers.pool.placement import Waiting
from controllers.pool.servers import Allocation
from service import names
from service.objects import Container, Pod, parse_time

# Ends are remembered so that a release needs no read; one that is forgotten costs one read. 10,000 uids are 1 MiB.
_REMEMBERED_ENDS = 10_000
# The annotations that are read here.
_NOTES = {*names.DECISION_KEYS, names.WAKE}


@dataclass(frozen=True, slots=True)
class PodView:
    """A pod that asks for cards or claims to hold some."""

    uid: str
    namespace: str
    name: str
    resource_version: str
    demand: Demand | None
    priority: int
    since: datetime
    node: str
    ended: bool
    deleting: bool
    gated: bool
    """Our gate is still on."""
    other_gates: tuple[str, ...]
    injected: bool
    """Every container with cards reads LUPINE_SERVER from our annotation."""
    witness: tuple[str, Witness] | None
    """Server and cards, when the pod is placed and its annotation fits its request (rule 29)."""
    suspicion: str = ""
    """Why an allocation annotation is not believed, for a report."""
    shares: tuple[tuple[str, ...], ...] = ()
    """Card ids of each container as the annotation names them, init containers first."""
    woken: bool = False
    """The scheduler was told to look at it again: it lost a promise, or a new leader did not know who was told."""

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"

    def container_of(self, card: str) -> int:
        """Position of the first container that has this card; 0 when the annotation does not say."""
        return next((index for index, share in enumerate(self.shares) if card in share), 0)

    @property
    def may_be_served(self) -> bool:
        """In the queue, unless it has a promise: no other gate holds it, and it has no node yet."""
        return bool(
            self.demand
            and self.injected
            and not (self.node or self.ended or self.deleting or self.other_gates)
        )

    def waiting(self) -> Waiting:
        """Its entry in the queue. Only for a pod with a demand."""
        if self.demand is None:
            raise ValueError("a pod without a demand does not wait")
        return Waiting(self.uid, self.namespace, self.name, self.demand, self.priority, self.since)


@dataclass(frozen=True, slots=True)
class Resources:
    """The two resource names."""

    count: str = names.REMOTE_GPU
    memory: str = names.REMOTE_GPU_MEMORY


def view(pod: Pod, resources: Resources) -> PodView | None:
    """What the pool must know of a pod, or None when it is none of our business."""
    try:
        asked = demand.of(pod.spec.containers, pod.spec.init_containers, resources.count, resources.memory)
    except DemandError:
        asked = None
    if asked is None and names.DEVICES_ALLOCATED not in pod.metadata.annotations:
        return None
    meta = pod.metadata
    gates = [gate.name for gate in pod.spec.scheduling_gates or ()]
    witness, suspicion = _witness(pod, asked)
    return PodView(
        uid=meta.uid,
        namespace=meta.namespace,
        name=meta.name,
        resource_version=meta.resource_version,
        demand=asked,
        priority=pod.spec.priority or 0,
        since=_created(meta.creation_timestamp),
        node=pod.spec.node_name,
        ended=pod.ended,
        deleting=meta.deletion_timestamp is not None,
        gated=names.GATE in gates,
        other_gates=tuple(gate for gate in gates if gate != names.GATE),
        injected=asked is not None and _injected(pod, asked),
        witness=witness,
        suspicion=suspicion,
        shares=_shares(pod) if witness else (),
        woken=names.WAKE in meta.annotations,
    )


def _created(text: str | None) -> datetime:
    return parse_time(text) if text else datetime.max.replace(tzinfo=UTC)


def _injected(pod: Pod, asked: Demand) -> bool:
    containers = (*(pod.spec.init_containers or ()), *pod.spec.containers)
    return all(
        _reads_endpoint(container)
        for container, need in zip(containers, asked.needs, strict=True)
        if need.count
    )


def _reads_endpoint(container: Container) -> bool:
    """One entry of that name, and it is ours: a later entry of the same name would win."""
    path = f"metadata.annotations['{names.LUPINE_ENDPOINT}']"
    entries = [entry for entry in container.env or () if entry.name == names.LUPINE_SERVER_ENV]
    return len(entries) == 1 and bool(
        (source := entries[0].value_from) and source.field_ref and source.field_ref.field_path == path
    )


def _witness(pod: Pod, asked: Demand | None) -> tuple[tuple[str, Witness] | None, str]:
    """The cards that a placed pod's annotation names, if they can be true; else why not."""
    text = pod.metadata.annotations.get(names.DEVICES_ALLOCATED)
    if text is None or not pod.spec.node_name or pod.ended:
        return None, ""
    try:
        shares = grant.decode(text)
    except grant.GrantError as error:
        return None, str(error)
    cards = list(dict.fromkeys((held.server, held.card) for share in shares for held in share))
    if asked is None or len(cards) != len(asked.slots):
        return None, "the number of cards is not what the pod asks for"
    if len({server for server, _ in cards}) != 1:
        return None, "the cards belong to several servers"
    meta = pod.metadata
    return (cards[0][0], Witness(meta.uid, meta.namespace, meta.name, tuple(card for _, card in cards))), ""


def slim(pod: Pod, resources: Resources) -> Pod:
    """The same pod with only what the pool reads; a cluster has ten thousand of them in memory.

    The requests of all containers stay: the estimate of room on a node needs them (design decision 4).
    """
    ours = _asks(pod, resources) or names.DEVICES_ALLOCATED in pod.metadata.annotations
    kept = {key: text for key, text in pod.metadata.annotations.items() if ours and key in _NOTES}
    meta = msgspec.structs.replace(pod.metadata, labels={}, annotations=kept)
    inits = pod.spec.init_containers
    spec = msgspec.structs.replace(
        pod.spec,
        containers=tuple(_slim(c) for c in pod.spec.containers),
        init_containers=tuple(_slim(c) for c in inits) if inits else None,
    )
    return msgspec.structs.replace(pod, metadata=meta, spec=spec)


def _asks(pod: Pod, resources: Resources) -> bool:
    containers = (*(pod.spec.init_containers or ()), *pod.spec.containers)
    return any(resources.count in ((c.resources and c.resources.limits) or {}) for c in containers)


def _slim(container: Container) -> Container:
    kept = tuple(entry for entry in container.env or () if entry.name == names.LUPINE_SERVER_ENV)
    return msgspec.structs.replace(container, env=kept or None)


def _shares(pod: Pod) -> tuple[tuple[str, ...], ...]:
    decoded = grant.decode(pod.metadata.annotations[names.DEVICES_ALLOCATED])
    return tuple(tuple(held.card for held in share) for share in decoded)


class Pods:
    """All pods of interest, by uid; and the ends of pods that were."""

    def __init__(self, own: OwnWrites) -> None:
        self._own = own
        self._by_uid: dict[str, PodView] = {}
        self._by_server: dict[str, dict[str, Witness]] = {}
        self._unplaced: dict[str, PodView] = {}
        self._ends: OrderedDict[str, Fate] = OrderedDict()
        self._unheard: dict[str, float] = {}
        """Pods that only answers to our own calls told of, and until when that is believed: the watch may have missed
        a pod's whole life, and then it tells of no end either."""

    def learn(self, pod: PodView, *, fresh: bool = False) -> None:
        """Take a reading: `fresh` from an answer to our own call, else from the watch, which may lag behind it.

        An answer may be late as well: the watch has told something newer by then, or that the pod is gone.
        """
        known = self._by_uid.get(pod.uid)
        late = fresh and known is not None and newer(known.resource_version, pod.resource_version)
        if pod.uid in self._ends or late:
            return
        if fresh:
            self._own.wrote(pod.uid, pod.resource_version)
            if known is None:
                self._unheard[pod.uid] = self._own.now + BELIEVED_S
        else:
            self._unheard.pop(pod.uid, None)
            if self._own.outdated(pod.uid, pod.resource_version):
                return
        self._drop(pod.uid)
        self._by_uid[pod.uid] = pod
        if not (pod.node or pod.ended):
            self._unplaced[pod.uid] = pod
        if pod.witness:
            server, witness = pod.witness
            self._by_server.setdefault(server, {})[pod.uid] = witness

    def forget(self, uid: str) -> None:
        """A pod left our business without having ended, for example because its request was never ours."""
        self._drop(uid)
        self._unheard.pop(uid, None)

    def end(self, uid: str, *, placed: bool) -> None:
        """A pod is gone. Uids are never used twice, so this is final. Unsure means placed."""
        self._drop(uid)
        self._unheard.pop(uid, None)
        self._ends[uid] = Fate.ENDED if placed else Fate.NEVER_PLACED
        if len(self._ends) > _REMEMBERED_ENDS:
            self._ends.popitem(last=False)

    def _drop(self, uid: str) -> None:
        old = self._by_uid.pop(uid, None)
        self._unplaced.pop(uid, None)
        if old and old.witness:
            del self._by_server[old.witness[0]][uid]

    def get(self, uid: str) -> PodView | None:
        """The pod of this uid, if it is alive and ours."""
        return self._by_uid.get(uid)

    def unheard(self, uid: str) -> bool:
        """True while the watch has not told of this pod."""
        return uid in self._unheard

    def unplaced(self) -> list[PodView]:
        """Pods without a node that have not ended: the queue, and whoever has a promise."""
        return list(self._unplaced.values())

    def __iter__(self) -> Iterator[PodView]:
        return iter(self._by_uid.values())

    def fate(self, allocation: Allocation) -> Fate:
        """What is known of an allocation's pod."""
        pod = self._by_uid.get(allocation.pod_uid)
        if pod is None:
            return self._ends.get(allocation.pod_uid, Fate.UNKNOWN)
        if self._own.now >= self._unheard.get(pod.uid, float("inf")):
            return Fate.UNKNOWN
        if pod.ended:
            return Fate.ENDED if pod.node else Fate.NEVER_PLACED
        return Fate.PLACED if pod.node else Fate.WAITING

    def witnesses(self, server: str) -> list[Witness]:
        """Who claims to hold cards of a server, older pods first."""
        found = self._by_server.get(server, {}).values()
        return sorted(found, key=lambda item: (self._by_uid[item.uid].since, item.uid))
