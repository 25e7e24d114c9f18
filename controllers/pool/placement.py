"""Which server and which cards: pure, deterministic, and blind to who asks (extender or DRA).

Whole cards of one server. Memory is a filter, and the tightest fit wins, so that large cards stay for requests that
need them. The policy orders servers that fit equally well: `binpack` fills one server first, `spread` evens out.
"""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from controllers.pool.demand import Demand
from controllers.pool.servers import Card

Policy = Literal["binpack", "spread"]


@dataclass(frozen=True, slots=True)
class Offer:
    """One server as placement sees it: cards free now, and all that it could offer if nobody held any."""

    server: str
    free: tuple[Card, ...]
    offered: tuple[Card, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """Cards of one server that serve a demand."""

    server: str
    cards: tuple[Card, ...]


@dataclass(frozen=True, slots=True)
class Waiting:
    """A pod in the queue. `since` is its creation: a pod that lost its promise is in the queue by its age again."""

    uid: str
    namespace: str
    name: str
    demand: Demand
    priority: int
    since: datetime

    @property
    def place(self) -> tuple[int, datetime, str]:
        """Sort key: priority, then age, then uid."""
        return (-self.priority, self.since, self.uid)


KeptCard = tuple[str, str]
"""Server and card id."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What one round decides: promises in order, and cards that are kept for a pod that starves."""

    promises: tuple[tuple[Waiting, Choice], ...]
    kept: Mapping[KeptCard, str]
    """Free cards that nobody else gets, and the uid of the pod they are kept for."""


def fit(slots: Sequence[int], cards: Iterable[Card]) -> tuple[Card, ...] | None:
    """The smallest cards that fill every slot (MiB, in any order), or None. Ties go to the lower index."""
    left = sorted(cards, key=lambda card: (card.memory_mib, card.index, card.id))
    chosen: list[Card] = []
    for least in sorted(slots):
        # Slots and cards both ascend, so a card too small for this slot is too small for all that follow.
        while left and left[0].memory_mib < least:
            left.pop(0)
        if not left:
            return None
        chosen.append(left.pop(0))
    return tuple(chosen)


def choose(demand: Demand, offers: Iterable[Offer], policy: Policy) -> Choice | None:
    """The best server for a demand, or None when the free cards of no single server serve it."""
    ranked = (
        (_rank(cards, offer, policy), Choice(offer.server, cards))
        for offer in offers
        if (cards := fit(demand.slots, offer.free)) is not None
    )
    best = min(ranked, key=lambda pair: pair[0], default=None)
    return best[1] if best else None


def _rank(cards: Sequence[Card], offer: Offer, policy: Policy) -> tuple[int, int, str]:
    free = len(offer.free)
    return sum(card.memory_mib for card in cards), free if policy == "binpack" else -free, offer.server


def plan(
    waiting: Iterable[Waiting],
    offers: Iterable[Offer],
    *,
    policy: Policy,
    now: datetime,
    starvation: timedelta,
) -> Plan:
    """Serve the queue in order. A pod is passed over only when the free cards cannot serve it.

    A pod that was passed over for `starvation` gets a server: the one that lacks the fewest cards. Those it needs
    there and that are free already are kept for it; nobody behind it gets them.
    """
    pool = {offer.server: offer for offer in offers}
    promises: list[tuple[Waiting, Choice]] = []
    kept: dict[KeptCard, str] = {}
    # Cards only become fewer during a plan: what found none finds none later. Hundreds of pods ask for the same.
    hopeless: set[tuple[int, ...]] = set()
    for pod in sorted(waiting, key=lambda pod: pod.place):
        choice = None if pod.demand.slots in hopeless else choose(pod.demand, pool.values(), policy)
        if choice is None:
            hopeless.add(pod.demand.slots)
        if choice is not None:
            promises.append((pod, choice))
        elif now - pod.since >= starvation and (choice := _best_chance(pod.demand, pool.values())):
            kept |= {(choice.server, card.id): pod.uid for card in choice.cards}
        if choice is not None:
            pool[choice.server] = _without(pool[choice.server], {card.id for card in choice.cards})
    return Plan(tuple(promises), kept)


def _without(offer: Offer, ids: AbstractSet[str]) -> Offer:
    return Offer(offer.server, tuple(card for card in offer.free if card.id not in ids), offer.offered)


def _best_chance(demand: Demand, offers: Iterable[Offer]) -> Choice | None:
    """The server that could serve the demand if it were empty and lacks the fewest cards; its free cards for it."""
    ranked = []
    for offer in offers:
        target = _target(demand.slots, offer)
        if target is not None:
            ready = tuple(card for card in target if card in offer.free)
            ranked.append((len(target) - len(ready), offer.server, ready))
    best = min(ranked, key=lambda item: item[:2], default=None)
    return Choice(best[1], best[2]) if best else None


def _target(slots: Sequence[int], offer: Offer) -> list[Card] | None:
    """Cards of a server that would fill every slot, free ones first.

    Largest slot first: whatever it takes would have fitted all other slots too, so it cannot spoil the rest.
    """
    left = sorted(
        offer.offered, key=lambda card: (card not in offer.free, card.memory_mib, card.index, card.id)
    )
    chosen: list[Card] = []
    for least in sorted(slots, reverse=True):
        found = next((card for card in left if card.memory_mib >= least), None)
        if found is None:
            return None
        left.remove(found)
        chosen.append(found)
    return chosen


@dataclass(frozen=True, slots=True)
class Overdue:
    """A promise that was not used in time: its pod was let in and no node took it."""

    uid: str
    server: str
    cards: tuple[Card, ...]
    since: datetime


@dataclass(frozen=True, slots=True)
class Passing:
    """Cards that go from unused promises to a pod that could start at once."""

    pod: Waiting
    choice: Choice
    losers: tuple[str, ...]
    """Uids whose promises on that server end, oldest first."""


def pass_on(
    pod: Waiting, offers: Iterable[Offer], overdue: Iterable[Overdue], policy: Policy
) -> Passing | None:
    """How the cards of unused promises would serve `pod`, taking away as few promises as possible, oldest first."""
    late = sorted(overdue, key=lambda item: (item.since, item.uid))
    pool = list(offers)
    for losers in range(1, len(late) + 1):
        for offer in sorted(pool, key=lambda item: item.server):
            here = [item for item in late if item.server == offer.server][:losers]
            cards = offer.free + tuple(card for item in here for card in item.cards)
            choice = choose(pod.demand, [Offer(offer.server, cards, offer.offered)], policy)
            if len(here) == losers and choice:
                return Passing(pod, choice, tuple(item.uid for item in here))
    return None
