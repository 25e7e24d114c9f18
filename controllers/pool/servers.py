"""The custom resource `RemoteServer` and what its cards should be, computed from a node.

One object per lupine server, named like its node. The server (and nobody else) writes `status`: the cards on offer
and who holds them. The node's agent writes `spec.observed`: what it sees on the cards. Giving a card away is one
compare-and-swap of the status, so the API server is the only lock (design decision 1).
"""

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import AddressValueError, IPv4Address

import msgspec

from controllers.pool import quantity, register
from service import names
from service.objects import Node, ObjectMeta, Projection


class Phase(StrEnum):
    """Life of an allocation: promised, perhaps revoked, used by a placed pod, waiting to be empty."""

    RESERVED = "Reserved"
    PASSING = "Passing"
    """Revoked: no Binding may be made on it any more, but one may have been; the pod is asked."""
    BOUND = "Bound"
    DRAINING = "Draining"


class Reason(StrEnum):
    """Why a card is not offered; the last one is a flag on a card that is offered all the same."""

    UNHEALTHY = "Unhealthy"
    CORDONED = "Cordoned"
    HOST_HELD = "HostHeld"
    MISSING = "Missing"
    DUPLICATE = "DuplicateId"
    NODE_NOT_READY = "NodeNotReady"
    NODE_DELETING = "NodeDeleting"
    NODE_UNSCHEDULABLE = "NodeUnschedulable"
    OCCUPANCY_UNKNOWN = "OccupancyUnknown"


class Card(Projection, frozen=True):
    """One card of a server. `endpoint` is `address:port`; `numa` is absent where unknown."""

    id: str
    index: int = 0
    type: str = ""
    memory_mib: int = msgspec.field(default=0, name="memoryMiB")
    cores: int = 0
    numa: int | None = None
    endpoint: str = ""
    offered: bool = False
    reasons: tuple[str, ...] = ()


class Allocation(Projection, frozen=True, omit_defaults=False):
    """One card in the hands of one pod. `since` is the RFC 3339 time at which the phase began."""

    card: str
    pod_uid: str = msgspec.field(default="", name="podUID")
    namespace: str = ""
    name: str = ""
    phase: str = Phase.RESERVED
    since: str = ""

    @property
    def pod(self) -> str:
        """`namespace/name` of the pod."""
        return f"{self.namespace}/{self.name}"


class Observed(Projection, frozen=True):
    """What the node's agent sees on one card: free, host, k8s or unknown, and the number of lupine clients."""

    card: str
    state: str = "unknown"
    lupine_clients: int | None = None
    since: str = ""


class RemoteServerSpec(Projection, frozen=True):
    """Written by the node's agent only.

    `seen` is the RFC 3339 time of its last look; it is renewed with each look only while a card of the server
    drains, since only then somebody waits for it.
    """

    observed: tuple[Observed, ...] = ()
    seen: str = ""


class RemoteServerStatus(Projection, frozen=True, omit_defaults=False):
    """Written by the server only. The counts are there for the printer columns."""

    endpoint: str = ""
    cards: tuple[Card, ...] = ()
    allocations: tuple[Allocation, ...] = ()
    total: int = 0
    free: int = 0
    held: int = 0


class RemoteServer(Projection, frozen=True):
    """tenure.dev/v1alpha1 RemoteServer."""

    metadata: ObjectMeta
    spec: RemoteServerSpec = RemoteServerSpec()
    status: RemoteServerStatus = RemoteServerStatus()

    @property
    def name(self) -> str:
        """The node's name."""
        return self.metadata.name

    def free_cards(self) -> tuple[Card, ...]:
        """Cards that are offered and in nobody's hands, by index."""
        taken = {allocation.card for allocation in self.status.allocations}
        return tuple(card for card in self.status.cards if card.offered and card.id not in taken)

    def of_pod(self, uid: str) -> tuple[Allocation, ...]:
        """The allocations of one pod here."""
        return tuple(item for item in self.status.allocations if item.pod_uid == uid)


def status_of(endpoint: str, cards: Iterable[Card], allocations: Iterable[Allocation]) -> RemoteServerStatus:
    """A status with its counts: cards by index and id, allocations in the order they were given."""
    ordered = tuple(sorted(cards, key=lambda card: (card.index, card.id)))
    held = tuple(allocations)
    taken = {item.card for item in held}
    free = sum(card.offered and card.id not in taken for card in ordered)
    return RemoteServerStatus(endpoint, ordered, held, len(ordered), free, len(taken))


@dataclass(frozen=True, slots=True)
class Inventory:
    """What a node contributes: its endpoint and cards, and sentences for an event when something is wrong."""

    endpoint: str = ""
    cards: tuple[Card, ...] = ()
    problems: tuple[str, ...] = ()
    warning: str = ""
    """What somebody else might do with the cards; they are offered all the same."""


@dataclass(frozen=True, slots=True)
class InventoryRules:
    """Settings that decide which cards count."""

    mode: str = "remote"
    port: int = names.LUPINE_PORT
    local_resources: tuple[str, ...] = ()
    """Extended resources under which a kubelet would offer the same cards to pods of its own node."""


def is_server(node: Node) -> bool:
    """True when the node serves its cards over the network: it carries the label, whatever its value."""
    return names.LUPINE_SERVER_LABEL in node.metadata.labels


def inventory(
    node: Node,
    *,
    observed: Iterable[Observed] = (),
    elsewhere: AbstractSet[str] = frozenset(),
    rules: InventoryRules,
) -> Inventory:
    """The cards of a server node. `elsewhere` are card ids that other nodes register too: nobody offers those.

    A node whose label, address or annotation cannot be used has no cards and says so in `problems`.
    """
    try:
        endpoint = f"{_address(node)}:{_port(node, rules.port)}"
        listed = register.decode(_annotation(node))
        ports = _card_ports(node)
    except (ValueError, register.RegisterError) as error:
        return Inventory(problems=(str(error),))
    host = endpoint.partition(":")[0]
    node_reasons = _node_reasons(node)
    cordoned = register.cordoned(node.metadata.annotations.get(names.DEVICE_CORDON))
    states = {item.card: item.state for item in observed}
    cards = tuple(
        _card(
            card,
            f"{host}:{ports[card.id]}" if card.id in ports else endpoint,
            (*_card_reasons(card, cordoned, elsewhere, states.get(card.id)), *node_reasons),
        )
        for card in listed.cards
        if card.mode == rules.mode
    )
    return Inventory(endpoint, cards, listed.left_out, _warning(node, rules) if cards else "")


def offered_locally(node: Node, resources: Iterable[str]) -> str | None:
    """The resource by which a server node's kubelet still offers cards to local pods; None when it does not.

    A HAMi scheduler that does not know mode `remote` reads the same annotation and would give the same card to a
    local pod (HAMi, device plugin: all modes but mig are advertised).
    """
    if not is_server(node):
        return None
    allocatable = node.status.allocatable
    return next((name for name in resources if quantity.parse(allocatable.get(name, 0))), None)


def _warning(node: Node, rules: InventoryRules) -> str:
    name = offered_locally(node, rules.local_resources)
    if name is None:
        return ""
    return (
        f"kubelet still offers {name} of this node to local pods, which would get cards that are served over the"
        " network: taint the node, or use a device plugin that does not advertise cards in remote mode"
    )


def _card(card: register.Registered, endpoint: str, reasons: tuple[Reason, ...]) -> Card:
    offered = all(reason is Reason.OCCUPANCY_UNKNOWN for reason in reasons)
    return Card(
        card.id, card.index, card.type, card.memory_mib, card.cores, card.numa, endpoint, offered, reasons
    )


def _card_reasons(
    card: register.Registered, cordoned: AbstractSet[str], elsewhere: AbstractSet[str], state: str | None
) -> Iterable[Reason]:
    if not card.healthy:
        yield Reason.UNHEALTHY
    if card.id in cordoned:
        yield Reason.CORDONED
    if card.id in elsewhere:
        yield Reason.DUPLICATE
    if state == "host":
        yield Reason.HOST_HELD
    if state in {None, "unknown"}:
        yield Reason.OCCUPANCY_UNKNOWN


def _node_reasons(node: Node) -> tuple[Reason, ...]:
    reasons = []
    if not node.ready:
        reasons.append(Reason.NODE_NOT_READY)
    if node.metadata.deletion_timestamp is not None:
        reasons.append(Reason.NODE_DELETING)
    if node.spec.unschedulable:
        reasons.append(Reason.NODE_UNSCHEDULABLE)
    return tuple(reasons)


def _annotation(node: Node) -> str:
    text = node.metadata.annotations.get(names.NODE_REGISTER)
    if text is None:
        raise ValueError(
            f"the node has no annotation {names.NODE_REGISTER}; is HAMi's device plugin running?"
        )
    return text


def _port(node: Node, default: int) -> int:
    """The label's value is the port (a label value has no room for more); empty means the default."""
    value = node.metadata.labels[names.LUPINE_SERVER_LABEL]
    if not value:
        return default
    if not _is_port(value):
        raise ValueError(f'label {names.LUPINE_SERVER_LABEL}: "{value}" is not a port from 1 to 65535')
    return int(value)


def _is_port(value: object) -> bool:
    text = str(value)
    return text.isascii() and text.isdigit() and 1 <= int(text) <= 65535  # noqa: PLR2004 - TCP


def _address(node: Node) -> str:
    """The first IPv4 InternalIP: lupine's client and server speak IPv4 only (lupine, dialer)."""
    for address in node.status.addresses:
        if address.type == "InternalIP":
            try:
                return str(IPv4Address(address.address))
            except AddressValueError:
                continue
    raise ValueError("the node has no IPv4 InternalIP; lupine speaks IPv4 only")


def _card_ports(node: Node) -> Mapping[str, int]:
    """`tenure.dev/card-endpoints`: a JSON object, card id to port, for servers with one process per card."""
    text = node.metadata.annotations.get(names.CARD_ENDPOINTS)
    if text is None:
        return {}
    try:
        ports = msgspec.json.decode(text, type=dict[str, int])
    except (msgspec.DecodeError, RecursionError):
        raise ValueError(
            f"annotation {names.CARD_ENDPOINTS} is not a JSON object of card id to port"
        ) from None
    if not all(_is_port(port) for port in ports.values()):
        raise ValueError(f"annotation {names.CARD_ENDPOINTS} has a port that is not from 1 to 65535")
    return ports
