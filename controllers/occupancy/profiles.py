"""What a card's AcceleratorProfile says about its occupancy: keys of `spec.extra`, all of them strings. Pure.

The keys are rm-accel's. A card that is not known has none of them: silence is the only honest "unknown" for readers
that know two values. Other daemons may own the same keys: their values are remembered in an annotation while ours
stand there, and put back when ours go. Whose a key is, the API server says (meta/v1, managedFields).
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from controllers.occupancy.cards import Card
from controllers.occupancy.damping import Standing
from controllers.occupancy.holders import Holder, State, Verdict
from service.objects import Projection

IN_USE = "inUse"
HOLDERS = "holders"
HEALTH = "health"
HEALTHY = "healthy"
REPLACED = "tenure.dev/replaced"
MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGER = "tenure-node"
# Gives replaced values back, and owns them until their daemon writes again.
RESTORER = "tenure-restored"
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


class ManagedFields(Projection, frozen=True):
    """meta/v1 ManagedFieldsEntry, without its times."""

    manager: str = ""
    operation: str = ""
    fields: dict[str, Any] = msgspec.field(default_factory=dict, name="fieldsV1")


class ProfileMeta(Projection, frozen=True):
    """meta/v1 ObjectMeta of a profile."""

    name: str
    uid: str = ""
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    annotations: dict[str, str] = msgspec.field(default_factory=dict)
    managed_fields: tuple[ManagedFields, ...] = ()


class ProfileSpec(Projection, frozen=True):
    """`spec` of an AcceleratorProfile, ours or another daemon's."""

    node_name: str = ""
    vendor: str = ""
    model: str = ""
    extra: dict[str, Any] = msgspec.field(default_factory=dict)


class Profile(Projection, frozen=True):
    """An AcceleratorProfile."""

    metadata: ProfileMeta
    spec: ProfileSpec = ProfileSpec()

    @property
    def own(self) -> bool:
        """True when Tenure made it; the others are another daemon's."""
        return self.metadata.labels.get(MANAGED_BY) == "tenure"

    def of_node(self, node: str) -> bool:
        """True when it speaks of a card of this node."""
        return self.spec.node_name == node or (
            not self.spec.node_name and self.metadata.name.startswith(f"{node}-")
        )

    def of_card(self, card: Card) -> bool:
        """True when one of its values is a stable name of the card."""
        values = [value for value in self.spec.extra.values() if isinstance(value, str)]
        return any(card.called(value) for value in values) or self.metadata.name.endswith(
            f"-{card.id.lower()}"
        )


@dataclass(frozen=True, slots=True)
class Current:
    """`spec.extra` of a profile as it stands: the values, which keys are Tenure's, and what these replaced.

    `given` are the keys that were put back and that their daemon has not written since.
    """

    extra: Mapping[str, Any] = field(default_factory=dict)
    owned: frozenset[str] = frozenset()
    given: frozenset[str] = frozenset()
    replaced: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def of(profile: Profile) -> "Current":
        """Read a profile. A record that cannot be read is none."""
        try:
            text = profile.metadata.annotations.get(REPLACED, "{}")
            replaced = msgspec.json.decode(text, type=dict[str, str])
        except (msgspec.MsgspecError, RecursionError):
            replaced = {}
        return Current(
            profile.spec.extra,
            _keys_of(profile.metadata.managed_fields, MANAGER),
            _keys_of(profile.metadata.managed_fields, RESTORER),
            replaced,
        )


def _keys_of(entries: Iterable[ManagedFields], manager: str) -> frozenset[str]:
    applied = (entry for entry in entries if entry.manager == manager and entry.operation == "Apply")
    return frozenset(key for entry in applied for key in _extra_keys(entry.fields))


def _extra_keys(fields: Mapping[str, Any]) -> set[str]:
    """Keys below `spec.extra` in a fieldsV1 document, in which a field is called `f:NAME`."""
    below: Any = fields
    for step in ("f:spec", "f:extra"):
        below = below.get(step, {}) if isinstance(below, Mapping) else {}
    return (
        {key.removeprefix("f:") for key in below if key.startswith("f:")}
        if isinstance(below, Mapping)
        else set()
    )


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do with one profile. `restore`: values that must have another owner before Tenure lets go of them."""

    needed: bool
    replaced: Mapping[str, str]
    restore: Mapping[str, str]


def plan(current: Current, told: Mapping[str, str]) -> Plan:
    """How to make `told` the occupancy keys of a profile. A foreign value is remembered as it is now."""
    gone = current.owned - told.keys()
    kept = {key: value for key, value in current.replaced.items() if key in told}
    foreign = {key: text for key in told if key not in current.owned and (text := _text(current, key))}
    back = {key: value for key, value in current.replaced.items() if key in gone}
    given = {key: text for key in current.given - told.keys() if (text := _text(current, key))}
    same = all(key in current.owned and current.extra.get(key) == value for key, value in told.items())
    needed = not same or bool(gone) or kept | foreign != dict(current.replaced)
    return Plan(needed, kept | foreign, given | back if back else {})


def _text(current: Current, key: str) -> str | None:
    value = current.extra.get(key)
    return value if isinstance(value, str) else None
