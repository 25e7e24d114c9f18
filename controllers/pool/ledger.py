"""The next status of a `RemoteServer`: pure, so that every rule about holding a card is in one place.

Three writers meet in that status: the inventory (cards), promises (new allocations) and the end of pods (release).
Each computes a whole new status from the object it read; the compare-and-swap decides whose reading was current.
"""

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum

import msgspec

from controllers.pool.servers import (
    Allocation,
    Card,
    Inventory,
    Observed,
    Phase,
    Reason,
    RemoteServer,
    RemoteServerSpec,
    RemoteServerStatus,
    status_of,
)
from service.objects import parse_time


class Fate(Enum):
    """What is known about the pod of an allocation."""

    UNKNOWN = "unknown"
    """Not seen yet, or the read failed: nothing is given back on this word."""
    WAITING = "waiting"
    PLACED = "placed"
    NEVER_PLACED = "never placed"
    """Ended without ever having had a node: nothing can be left on its cards."""
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class DrainRules:
    """How long a card stays `Draining` (design decision 6)."""

    cool_down: timedelta = timedelta(0)
    """Without an agent."""
    silent: timedelta = timedelta(seconds=120)
    """After the agent fell silent or unknown; a dead client was seen to hold 20 GB for 110 s."""


@dataclass(frozen=True, slots=True)
class Witness:
    """A placed pod whose valid annotation says that it holds cards of a server (second witness, decision 1)."""

    uid: str
    namespace: str
    name: str
    cards: tuple[str, ...]


def stamp(now: datetime) -> str:
    """RFC 3339 with whole seconds, as the API server writes times."""
    return now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def reserve(server: RemoteServer, *, pod: Witness, now: datetime) -> RemoteServerStatus | None:
    """The status in which `pod` is promised `pod.cards`, or None when one of them is not free here."""
    free = {card.id for card in server.free_cards()}
    if not pod.cards or not free.issuperset(pod.cards) or len(set(pod.cards)) != len(pod.cards):
        return None
    new = (Allocation(c, pod.uid, pod.namespace, pod.name, Phase.RESERVED, stamp(now)) for c in pod.cards)
    status = server.status
    return status_of(status.endpoint, status.cards, (*status.allocations, *new))


def revoke(server: RemoteServer, uids: AbstractSet[str], *, now: datetime) -> RemoteServerStatus:
    """The status in which unused promises may no longer be used: the first of two steps to pass cards on."""
    return _changed(
        server,
        lambda item: (
            _enter(item, Phase.PASSING, now)
            if item.pod_uid in uids and item.phase == Phase.RESERVED
            else item
        ),
    )


def resolve(server: RemoteServer, placed: Mapping[str, bool], *, now: datetime) -> RemoteServerStatus:
    """The second step, when each pod was asked: whoever was placed after all keeps his cards, the rest is free."""

    def outcome(item: Allocation) -> Allocation | None:
        if item.phase != Phase.PASSING or item.pod_uid not in placed:
            return item
        return _enter(item, Phase.BOUND, now) if placed[item.pod_uid] else None

    return _changed(server, outcome)


def _changed(server: RemoteServer, change: Callable[[Allocation], Allocation | None]) -> RemoteServerStatus:
    kept = [new for item in server.status.allocations if (new := change(item)) is not None]
    return status_of(server.status.endpoint, server.status.cards, kept)


@dataclass(frozen=True, slots=True)
class Scene:
    """Everything outside the object that its next status depends on."""

    inventory: Inventory
    fate: Callable[[Allocation], Fate]
    witnesses: Iterable[Witness]
    rules: DrainRules
    now: datetime


def settle(server: RemoteServer, scene: Scene) -> RemoteServerStatus:
    """The status that cards, agent and pods ask for now; equal to the old one when nothing changed."""
    kept = [step for a in server.status.allocations if (step := _step(a, server.spec, scene)) is not None]
    kept += _from_witnesses(kept, scene)
    return status_of(scene.inventory.endpoint or server.status.endpoint, _cards(server, scene, kept), kept)


def _step(allocation: Allocation, spec: RemoteServerSpec, scene: Scene) -> Allocation | None:
    """One allocation's next state; None when its card is free again."""
    if allocation.phase != Phase.DRAINING:
        fate = scene.fate(allocation)
        if fate is Fate.NEVER_PLACED and allocation.phase != Phase.BOUND:
            return None
        if fate in {Fate.ENDED, Fate.NEVER_PLACED}:
            allocation = _enter(allocation, Phase.DRAINING, scene.now)
        elif fate is Fate.PLACED and allocation.phase != Phase.BOUND:
            return _enter(allocation, Phase.BOUND, scene.now)
    if allocation.phase == Phase.DRAINING and _is_empty(allocation, spec, scene):
        return None
    return allocation


def _enter(allocation: Allocation, phase: Phase, now: datetime) -> Allocation:
    return msgspec.structs.replace(allocation, phase=phase, since=stamp(now))


def _is_empty(allocation: Allocation, spec: RemoteServerSpec, scene: Scene) -> bool:
    """Whether a draining card may be given again (design decision 6).

    The agent's word counts only when it looked after the pod had ended: an older "free" was said before a client
    that nobody had noticed yet.
    """
    since = _time(allocation.since, scene.now)
    view = next((item for item in spec.observed if item.card == allocation.card), None)
    if view is None:
        return scene.now - since >= scene.rules.cool_down
    seen = _time(spec.seen, datetime.min.replace(tzinfo=UTC))
    if seen > since and _sees_nobody(view):
        return True
    spoke = seen if view.state != "unknown" else since
    return scene.now - max(spoke, since) >= scene.rules.silent


def _sees_nobody(view: Observed) -> bool:
    return view.state == "free" and not view.lupine_clients


def _time(text: str, otherwise: datetime) -> datetime:
    try:
        moment = parse_time(text)
    except ValueError:
        return otherwise
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _from_witnesses(kept: list[Allocation], scene: Scene) -> list[Allocation]:
    """Allocations that only pods know of: written back before anything is given away.

    A card that somebody else holds already is not taken from him; the older witness wins by order.
    """
    known = {card.id for card in scene.inventory.cards}
    taken = {item.card for item in kept}
    added: list[Allocation] = []
    for witness in scene.witnesses:
        for card in witness.cards:
            if card in known and card not in taken:
                taken.add(card)
                added.append(
                    Allocation(
                        card, witness.uid, witness.namespace, witness.name, Phase.BOUND, stamp(scene.now)
                    )
                )
    return added


def _cards(server: RemoteServer, scene: Scene, kept: list[Allocation]) -> Iterable[Card]:
    """The inventory, and cards that left it while somebody still holds them: those are missing, not free."""
    yield from scene.inventory.cards
    present = {card.id for card in scene.inventory.cards}
    held = {item.card for item in kept}
    for card in server.status.cards:
        if card.id in held and card.id not in present:
            yield msgspec.structs.replace(card, offered=False, reasons=(Reason.MISSING,))
