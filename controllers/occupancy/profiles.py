"""What a card's AcceleratorProfile says about its occupancy: keys of `spec.extra`, all of them strings. Pure.

The keys are rm-accel's. A card that is not known has none of them: silence is the only honest "unknown" for readers
that know two values.
"""

import json
from collections.abc import Mapping
from typing import Any

from controllers.occupancy.cards import Card
from controllers.occupancy.damping import Standing
from controllers.occupancy.holders import Holder, State, Verdict

IN_USE = "inUse"
HOLDERS = "holders"
HEALTH = "health"
HEALTHY = "healthy"
KEYS = (IN_USE, HOLDERS, HEALTH, HEALTHY)
_BUSY = {HEALTH: "busy", HEALTHY: "false"}
# Entries of a list; a card with more holders than this is as held as it can be.
_MOST_HOLDERS = 64


def keys(standing: Standing) -> dict[str, str]:
    """The occupancy keys of a card: none when unknown, the health keys only when a host process holds it."""
    verdict = standing.verdict
    if standing.state is State.UNKNOWN and not verdict.holders:
        return {}
    told = {IN_USE: "true" if verdict.in_use else "false", HOLDERS: _holders(verdict)}
    return told | _BUSY if standing.state is State.HOST else told


def _holders(verdict: Verdict) -> str:
    listed = [_holder(holder) for holder in verdict.holders[:_MOST_HOLDERS]]
    return json.dumps(listed, separators=(",", ":"), ensure_ascii=False)


def _holder(holder: Holder) -> dict[str, Any]:
    """Base name and class only: no arguments, users, environment or host names."""
    entry: dict[str, Any] = {"pid": holder.pid, "command": holder.command, "managed": holder.managed.value}
    if holder.names_pod:
        entry["pod"] = holder.names_pod
    return entry


def spec(node: str, card: Card, told: Mapping[str, str]) -> dict[str, Any]:
    """The `spec` of a profile that Tenure owns."""
    identity = {"id": card.id, "pciAddress": card.bdf, "uuid": card.uuid, "serial": card.serial}
    extra = {key: value for key, value in identity.items() if value} | dict(told)
    return {"nodeName": node, "vendor": card.vendor, "model": card.model, "extra": extra}
