"""What the agent tells the pool: `spec.observed` of its own node's RemoteServer. Pure."""

from collections.abc import Iterable
from typing import Any

import msgspec

from controllers.occupancy.damping import Standing
from controllers.occupancy.holders import State
from controllers.pool.servers import Observed, Phase, RemoteServer

# The bounds of the custom resource: entries, and characters of a card's id.
_MOST, _ID_LIMIT = 256, 128


def observed(standings: Iterable[Standing], server: RemoteServer, now: str) -> tuple[Observed, ...]:
    """One entry for each card of the node, by id.

    A card that the server lists and no source of the agent knows is unknown: without an entry the pool would take
    the node for one without an agent. `now` (RFC 3339) dates a new entry of that kind.
    """
    entries = {s.verdict.card.id: _entry(s) for s in standings if len(s.verdict.card.id) <= _ID_LIMIT}
    before = {entry.card: entry for entry in server.spec.observed}
    for card in server.status.cards:
        if card.id not in entries:
            old = before.get(card.id)
            since = old.since if old is not None and old.state == State.UNKNOWN else now
            entries[card.id] = Observed(card.id, State.UNKNOWN, since=since)
    return tuple(entries[card] for card in sorted(entries))[:_MOST]


def _entry(standing: Standing) -> Observed:
    return Observed(standing.verdict.card.id, standing.observed, standing.clients, standing.since)


def drains(server: RemoteServer | None) -> bool:
    """True while somebody waits for a card of this server to be empty."""
    return server is not None and any(a.phase == Phase.DRAINING for a in server.status.allocations)


def change(server: RemoteServer, entries: tuple[Observed, ...], looked: str) -> dict[str, Any] | None:
    """The merge patch that tells `entries`, seen by a look that began at `looked`; None when there is no news.

    While a card drains each look is news: what was seen before the pod ended frees nothing.
    """
    news: dict[str, Any] = {}
    if entries != server.spec.observed:
        news["observed"] = msgspec.to_builtins(entries)
    if news or drains(server):
        news["seen"] = looked
    return {"spec": news} if news else None
