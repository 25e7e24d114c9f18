"""Why a pod waits, or where it is. One source for the command, the JSON API and the status page; pure."""

from collections.abc import Iterable, Mapping
from datetime import datetime

import msgspec

from controllers.pool import placement
from controllers.pool.book import Book
from controllers.pool.demand import Demand
from controllers.pool.placement import Offer, Waiting
from controllers.pool.pods import PodView
from controllers.pool.servers import Allocation, Card, Phase, RemoteServer
from service.objects import parse_time


class Holder(msgspec.Struct, frozen=True, rename="camel"):
    """Who has a card, since when (RFC 3339)."""

    namespace: str
    name: str
    phase: str
    since: str


class CardState(msgspec.Struct, frozen=True, rename="camel"):
    """One card of a server as people see it. `state`: free, held, draining, or not offered."""

    id: str
    index: int
    type: str
    memory_mib: int = msgspec.field(name="memoryMiB")
    numa: int | None
    endpoint: str
    state: str
    offered: bool
    reasons: tuple[str, ...]
    holder: Holder | None


class ServerState(msgspec.Struct, frozen=True, rename="camel"):
    """One server with its cards."""

    name: str
    endpoint: str
    total: int
    free: int
    held: int
    cards: tuple[CardState, ...]


class ServerAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """Why one server does not serve a pod now."""

    name: str
    free: int
    sentence: str


class Explanation(msgspec.Struct, frozen=True, rename="camel"):
    """The answer about one pod. `place` counts from 1 among the waiting."""

    pod: str
    state: str
    sentence: str
    place: int | None = None
    gates: tuple[str, ...] = ()
    node: str = ""
    server: str = ""
    cards: tuple[str, ...] = ()
    servers: tuple[ServerAnswer, ...] = ()


def server_state(server: RemoteServer) -> ServerState:
    """A server for tables and pages."""
    held = {item.card: item for item in server.status.allocations}
    status = server.status
    cards = tuple(_card_state(card, held.get(card.id)) for card in status.cards)
    return ServerState(server.name, status.endpoint, status.total, status.free, status.held, cards)


def _card_state(card: Card, held: Allocation | None) -> CardState:
    if held:
        state = "draining" if held.phase == Phase.DRAINING else "held"
    else:
        state = "free" if card.offered else "not offered"
    holder = Holder(held.namespace, held.name, held.phase, held.since) if held else None
    return CardState(
        id=card.id,
        index=card.index,
        type=card.type,
        memory_mib=card.memory_mib,
        numa=card.numa,
        endpoint=card.endpoint,
        state=state,
        offered=card.offered,
        reasons=card.reasons,
        holder=holder,
    )


def pod(
    seen: PodView, *, book: Book, queue: Iterable[Waiting], kept_free: Mapping[str, str], now: datetime
) -> Explanation:
    """Where this pod stands. `queue` are all waiting pods, in any order."""
    promise = book.promise(seen.uid)
    if promise and seen.node:
        ids = tuple(card.id for card in promise.cards)
        sentence = f"runs on node {seen.node} with {_cards(len(ids))} of server {promise.server.name}"
        return Explanation(
            seen.key, "placed", sentence, node=seen.node, server=promise.server.name, cards=ids
        )
    if promise:
        return Explanation(
            seen.key,
            "promised",
            _promised(seen, promise.allocations, now),
            gates=seen.other_gates,
            server=promise.server.name,
            cards=tuple(card.id for card in promise.cards),
        )
    if seen.node or seen.ended or seen.demand is None:
        return Explanation(seen.key, "ended" if seen.ended else "placed", _without(seen), node=seen.node)
    if not seen.injected:
        return Explanation(
            seen.key, "refused", "came past the webhook and has no LUPINE_SERVER; create it again"
        )
    return _waiting(seen, seen.demand, book=book, queue=queue, kept_free=kept_free)


def _cards(count: int) -> str:
    return "1 card" if count == 1 else f"{count} cards"


def _promised(seen: PodView, allocations: tuple[Allocation, ...], now: datetime) -> str:
    seconds = max(0, int((now - parse_time(allocations[0].since)).total_seconds())) if allocations else 0
    if seen.gated:
        return f"{_cards(len(allocations))} promised {seconds} s ago; the gate is being removed"
    return (
        f"{_cards(len(allocations))} promised {seconds} s ago; the scheduler has not found a node for it yet "
        "(CPU, memory, taints: see kubectl describe pod)"
    )


def _without(seen: PodView) -> str:
    if seen.suspicion:
        return f"its allocation annotation is not believed: {seen.suspicion}"
    return "has ended" if seen.ended else "holds no card of the pool"


def _waiting(
    seen: PodView, asked: Demand, *, book: Book, queue: Iterable[Waiting], kept_free: Mapping[str, str]
) -> Explanation:
    places = {item.uid: number for number, item in enumerate(sorted(queue, key=lambda i: i.place), start=1)}
    offers = book.offers()
    answers = tuple(
        ServerAnswer(offer.server, len(offer.free), _why(asked, offer, kept_free, seen.uid))
        for offer in sorted(offers, key=lambda offer: offer.server)
    )
    if seen.other_gates:
        sentence = f"held by other gates first: {', '.join(seen.other_gates)}"
    elif not offers:
        sentence = "there is no server with remote cards"
    else:
        sentence = f"waits for {_cards(len(asked.slots))} on one server"
    return Explanation(
        seen.key,
        "waiting",
        sentence,
        place=places.get(seen.uid),
        gates=seen.other_gates,
        servers=answers,
    )


def _why(asked: Demand, offer: Offer, kept_free: Mapping[str, str], uid: str) -> str:
    """One server's answer to one demand."""
    wanted = len(asked.slots)
    keeper = kept_free.get(offer.server)
    if placement.fit(asked.slots, offer.free) is not None:
        if keeper and keeper != uid:
            return "kept free for a pod that has waited too long for more cards"
        return "could serve it; it is its turn when those before it are served"
    if placement.fit(asked.slots, offer.offered) is not None:
        return f"{len(offer.free)} of {len(offer.offered)} cards are free, {wanted} are needed"
    least = min(asked.slots)
    large = sum(card.memory_mib >= least for card in offer.offered)
    if large < wanted <= len(offer.offered):
        return f"{large} of {len(offer.offered)} cards has the memory ({least} MiB)"
    return f"offers {_cards(len(offer.offered))}, {wanted} are needed"
