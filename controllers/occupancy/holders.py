"""Who holds which card: all sources' words about one scan, merged into one verdict for each card. Pure.

A card is free only when nobody was seen on it and no gap covers it. Whoever was seen counts, whatever the gaps.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from controllers.occupancy.cards import Card
from controllers.occupancy.cgroups import Managed
from controllers.occupancy.evidence import Findings, Gap, Sighting, Why
from controllers.occupancy.kin import Kin, Kind
from controllers.occupancy.pods import PodIndex
from controllers.occupancy.processes import Described, Missing, Process

GONE = "process gone, memory still allocated"


class State(StrEnum):
    """What a card is; the values of `RemoteServer` `spec.observed[].state`."""

    FREE = "free"
    HOST = "host"
    K8S = "k8s"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Holder:
    """A process on a card. `start` in clock ticks since boot, None for a process that /proc does not show."""

    pid: int
    command: str
    managed: Managed
    start: int | None = None
    pod_uid: str = ""
    container_id: str = ""
    namespace: str = ""
    pod: str = ""

    @property
    def names_pod(self) -> str:
        """`namespace/name`, or empty."""
        return f"{self.namespace}/{self.pod}" if self.pod else ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One card after one scan. `lupine_clients` is None when the card could not be looked at."""

    card: Card
    state: State
    holders: tuple[Holder, ...] = ()
    gaps: tuple[Gap, ...] = ()
    lupine_clients: int | None = None

    @property
    def in_use(self) -> bool | None:
        """True when somebody holds it, False when it was seen to be empty, else None."""
        return True if self.holders else False if self.state is State.FREE else None

    @property
    def clean(self) -> bool:
        """True when every source saw the card and no host process holds it."""
        return not self.gaps and self.state in {State.FREE, State.K8S}

    @property
    def reason(self) -> str:
        """Why the card is not fully known, for people; empty when it is."""
        return "; ".join(dict.fromkeys(gap.text for gap in self.gaps))


@dataclass(frozen=True, slots=True)
class Scene:
    """What the sightings are judged by. `tardy` are monitors (card, pid, start) that held a card for too long."""

    processes: Mapping[int, Described]
    kin: Kin
    pods: PodIndex
    tardy: frozenset[tuple[str, int, int]] = frozenset()


def judge(cards: Iterable[Card], findings: Findings, scene: Scene) -> tuple[Verdict, ...]:
    """A verdict for each card, in the order given."""
    by_card: dict[str, list[Sighting]] = defaultdict(list)
    for sighting in findings.sightings:
        by_card[sighting.card].append(sighting)
    pids = {card: {sighting.pid for sighting in seen} for card, seen in by_card.items()}
    gaps = [gap for gap in findings.gaps if not _explained(gap, pids, scene)]
    return tuple(_verdict(card, by_card.get(card.id, ()), gaps, scene) for card in cards)


def _explained(gap: Gap, pids: Mapping[str, set[int]], scene: Scene) -> bool:
    """The process that a source could not place does not count, or another source placed it on one of the cards."""
    if gap.pid is None:
        return False
    process = scene.processes.get(gap.pid)
    if isinstance(process, Process) and scene.kin.kind(process) in {Kind.MONITOR, Kind.LUPINE_SERVER}:
        return True
    return any(gap.pid in seen for card, seen in pids.items() if gap.covers(card))


def _verdict(card: Card, sightings: Iterable[Sighting], gaps: Iterable[Gap], scene: Scene) -> Verdict:
    merged = {sighting.pid: sighting for sighting in sightings if _holds(sighting, scene)}
    judged = (_holder(merged[pid], scene) for pid in sorted(merged))
    holders = tuple(holder for holder in judged if holder is not None)
    mine = [gap for gap in gaps if gap.covers(card.id) and not (gap.why is Why.CLAIMED and holders)]
    mine += [_nobody(holder) for holder in holders if holder.managed is Managed.UNKNOWN]
    clients = sum(holder.managed is Managed.LUPINE for holder in holders)
    known = clients if clients or not mine else None
    return Verdict(card, _state(holders, blind=bool(mine)), holders, tuple(mine), known)


def _holds(sighting: Sighting, scene: Scene) -> bool:
    """An open file dies with its process; what a tool lists for a dead one is memory that is still allocated.

    A start time tells the process that was seen from a later one with the same number.
    """
    if sighting.start is None:
        return True
    described = scene.processes.get(sighting.pid, Missing.UNREADABLE)
    if isinstance(described, Process):
        return sighting.start == described.start
    return described is Missing.UNREADABLE


def _nobody(holder: Holder) -> Gap:
    if holder.command == GONE:
        return Gap("processes", Why.PROCESS_GONE, f"{GONE} (pid {holder.pid})")
    return Gap("processes", Why.DENIED, f"whose process {holder.pid} is cannot be told")


def _state(holders: tuple[Holder, ...], *, blind: bool) -> State:
    """The host outweighs pods; lupine's clients leave a card free for lupine; unknown company is not freedom."""
    kinds = {holder.managed for holder in holders} - {Managed.LUPINE}
    if Managed.HOST in kinds:
        return State.HOST
    if Managed.UNKNOWN in kinds:
        return State.UNKNOWN
    if Managed.K8S in kinds:
        return State.K8S
    return State.UNKNOWN if blind else State.FREE


def _holder(sighting: Sighting, scene: Scene) -> Holder | None:
    """The holder behind a sighting; None for one that does not count."""
    described = scene.processes.get(sighting.pid, Missing.UNREADABLE)
    if described is Missing.GONE:
        return Holder(sighting.pid, GONE, Managed.UNKNOWN)
    if not isinstance(described, Process):
        return Holder(sighting.pid, sighting.command, Managed.UNKNOWN, sighting.start)
    kind = scene.kin.kind(described)
    if kind is Kind.LUPINE_SERVER:
        return None
    if kind is Kind.MONITOR and (sighting.card, described.pid, described.start) not in scene.tardy:
        return None
    managed = Managed.LUPINE if kind is Kind.LUPINE_CLIENT else described.placement.managed
    holder = Holder(described.pid, described.command or sighting.command, managed, described.start)
    return _with_pod(holder, described, scene.pods)


def _with_pod(holder: Holder, process: Process, pods: PodIndex) -> Holder:
    """Name the pod. A container id that a pod reports places a process whose cgroup path was cut off."""
    placement = process.placement
    pod = pods.find(placement.pod_uid, placement.container_id)
    if pod is None:
        unbelieved = placement.of_user and pods.complete and holder.managed is Managed.K8S
        managed = Managed.HOST if unbelieved else holder.managed
        return replace(
            holder, managed=managed, pod_uid=placement.pod_uid, container_id=placement.container_id
        )
    managed = Managed.K8S if holder.managed is Managed.UNKNOWN else holder.managed
    return replace(
        holder,
        managed=managed,
        pod_uid=pod.uid,
        container_id=placement.container_id,
        namespace=pod.namespace,
        pod=pod.name,
    )
