"""`tenure holders` and `tenure node --once --dry-run`: what a scan says, and what would be written of it.

Functions for the command line to mount; none of them writes anything.
"""

import socket
from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec

from controllers.occupancy import node as node_object
from controllers.occupancy.assemble import scanner_of
from controllers.occupancy.damping import Damping, Standing, settle
from controllers.occupancy.labels import cordon, host_held
from controllers.occupancy.pods import NodePod, PodIndex
from controllers.occupancy.profiles import HOLDERS, IN_USE, Profile, keys
from controllers.occupancy.publish import Profiles
from service import names
from service.kube.client import KubeClient
from service.kube.errors import NotFound, Undecodable
from service.kube.resources import NODES, PODS
from service.objects import Node, ObjectMeta
from service.settings import Settings

T = TypeVar("T")

OFF = "occupancy is off (occupancy.enabled, AIRM_OCCUPANCY): nothing is scanned, and what was published is taken back"


class Held(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A process on a card. `managed`: k8s, host, lupine or unknown. `pod` is `namespace/name`."""

    pid: int = 0
    command: str = ""
    managed: str = "unknown"
    pod: str = ""


class CardHoldings(msgspec.Struct, frozen=True, rename="camel"):
    """A card and who holds it. `state`: free, host, k8s or unknown; `reason` says why it is not fully known."""

    node: str
    card: str
    vendor: str
    model: str
    state: str
    holders: tuple[Held, ...] = ()
    reason: str = ""


class Holdings(msgspec.Struct, frozen=True, rename="camel"):
    """Cards of a node or of the cluster. `problem`: why nothing of the host could be seen.

    `unnamed`: why holders that are pods are not called by name.
    """

    cards: tuple[CardHoldings, ...]
    problem: str = ""
    unnamed: str = ""

    @property
    def has_findings(self) -> bool:
        """True when a card is held by the host or not known: exit code 1."""
        return bool(self.problem) or any(card.state in {"host", "unknown"} for card in self.cards)


class Preview(msgspec.Struct, frozen=True, rename="camel"):
    """What the agent would write: keys by profile, the node's label (absent: none), and the list of cordoned cards."""

    node: str
    profiles: dict[str, dict[str, str]]
    label: str | None
    cordon: str | None
    problem: str = ""
    homeless: tuple[str, ...] = ()
    """Cards that no profile tells of: the kind is not installed, or another daemon has none of them."""

    @property
    def has_findings(self) -> bool:
        """True when something is not known, or nothing would be written: exit code 1."""
        return bool(self.problem or self.homeless) or not all(self.profiles.values())


HEADER = ("NODE", "CARD", "VENDOR", "MODEL", "STATE", "HELD BY", "NOT FULLY KNOWN BECAUSE")


def rows(found: Holdings) -> Iterable[tuple[str, ...]]:
    """The cells of a table, a row for each card; HEADER names the columns."""
    for card in found.cards:
        held = ", ".join(_sentence(holder) for holder in card.holders)
        yield (card.node, card.card, card.vendor, card.model, card.state, held, card.reason)


def _sentence(held: Held) -> str:
    where = held.pod or {"host": "host", "lupine": "lupine client"}.get(held.managed, held.managed)
    return f"{held.command} ({held.pid}, {where})"


async def of_node(settings: Settings, client: KubeClient | None = None, *, unnamed: str = "") -> Holdings:
    """Scan this node once. Without a client pods are not named, for the reason `unnamed`. Raises KubeError."""
    node = node_name(settings)
    scan = await scanner_of(settings.occupancy).scan(await _pods(client, node))
    cards = tuple(_holdings(node, settle(None, verdict, Damping(), "")) for verdict in scan.verdicts)
    return Holdings(cards, scan.blind, unnamed)


def of_standings(node: str, standings: Iterable[Standing]) -> Holdings:
    """What a running agent knows now of its node's cards."""
    return Holdings(tuple(_holdings(node, standing) for standing in standings))


async def of_cluster(settings: Settings, client: KubeClient) -> Holdings:
    """What all nodes' agents published. Raises KubeError."""
    listed = await _profiles(settings, client, "").everywhere()
    if listed is None:
        return Holdings(
            (), f"this cluster has no {settings.occupancy.profiles.plural}: is the kind installed?"
        )
    return Holdings(tuple(sorted(map(_published, listed), key=lambda card: (card.node, card.card))))


async def preview(settings: Settings, client: KubeClient) -> Preview:
    """One scan, and the writes that would follow from it alone. Raises KubeError."""
    name = node_name(settings)
    before = node_object.before(await _node(client, name))
    if not settings.occupancy.active:
        listed, _ = cordon(before, ()).annotations()
        return Preview(name, {}, None, listed, OFF)
    scan = await scanner_of(settings.occupancy).scan(await _pods(client, name))
    damping = Damping(settings.occupancy.host_rounds, settings.occupancy.clean_rounds)
    standings = tuple(settle(None, verdict, damping, "") for verdict in scan.verdicts)
    targets = await _profiles(settings, client, name).targets(s.verdict.card for s in standings)
    listed, _ = cordon(before, standings).annotations()
    return Preview(
        node=name,
        profiles={target: keys(s) for s in standings if (target := targets[s.verdict.card.id])},
        homeless=tuple(card for card, target in targets.items() if target is None),
        label=host_held(standings, complete=scan.complete and not scan.blind),
        cordon=listed,
        problem=scan.blind,
    )


def lines(seen: Preview) -> Iterable[str]:
    """A preview as text, a line for each thing that would be written."""
    if seen.problem:
        yield seen.problem
    for name, told in seen.profiles.items():
        yield f"profile {name}" + ("" if told else ": no keys (unknown)")
        yield from (f"    {key}: {value}" for key, value in told.items())
    yield from (f"no profile tells of card {card}: nothing is written of it there" for card in seen.homeless)
    yield f"label {names.HOST_HELD_LABEL}: {seen.label if seen.label is not None else 'none'}"
    yield f"annotation {names.DEVICE_CORDON}: {seen.cordon or 'none'}"


def node_name(settings: Settings) -> str:
    """The name of this node in the cluster."""
    return settings.node.name or socket.gethostname().lower()


def _profiles(settings: Settings, client: KubeClient, node: str) -> Profiles:
    occupancy = settings.occupancy
    return Profiles(client, occupancy.profiles, node=node, resync_s=occupancy.resync_s)


class _Pods(msgspec.Struct):
    items: list[NodePod]


async def _pods(client: KubeClient | None, node: str) -> PodIndex:
    if client is None:
        return PodIndex()
    body = await client.get(PODS.path(), params={"fieldSelector": f"spec.nodeName={node}"})
    return PodIndex.of(_decoded(body, _Pods).items)


async def _node(client: KubeClient, name: str) -> Node:
    """The node as it is, or one that nothing was written on."""
    try:
        return _decoded(await client.get(NODES.path(name=name)), Node)
    except NotFound:
        return Node(ObjectMeta(name))


def _decoded(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.MsgspecError as error:
        raise Undecodable(f"{kind.__name__}: {error}") from None


def _holdings(node: str, standing: Standing) -> CardHoldings:
    verdict = standing.verdict
    card = verdict.card
    held = tuple(Held(h.pid, h.command, h.managed.value, h.names_pod) for h in verdict.holders)
    return CardHoldings(node, card.id, card.vendor, card.model, verdict.state.value, held, verdict.reason)


def _published(profile: Profile) -> CardHoldings:
    """A profile as holdings. What is not published is unknown, and what cannot be read too."""
    extra = profile.spec.extra
    try:
        text = extra.get(HOLDERS)
        held = msgspec.json.decode(text, type=tuple[Held, ...]) if isinstance(text, str) else ()
    except (msgspec.MsgspecError, RecursionError):
        held = ()
    name = str(extra.get("id") or profile.metadata.name)
    node, spec = profile.spec.node_name, profile.spec
    return CardHoldings(node, name, spec.vendor, spec.model, _state(extra, held), held)


def _state(extra: dict[str, Any], held: tuple[Held, ...]) -> str:
    kinds = {holder.managed for holder in held}
    if extra.get(IN_USE) not in {"true", "false"} or "unknown" in kinds:
        return "unknown"
    return "host" if "host" in kinds else "k8s" if "k8s" in kinds else "free"
