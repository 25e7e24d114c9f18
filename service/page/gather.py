"""Where the status page has its facts from: the same sources as the JSON API and the commands."""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from controllers.claims.watch import Seen
from controllers.occupancy.holdings import CardHoldings, Holdings
from controllers.pool.explain import Explainer
from service import api
from service.kube.errors import KubeError
from service.lifecycle import Lifecycle
from service.metrics import VERSION
from service.page import view
from service.page.render import Pace
from service.page.view import Capped
from webhook.guard import Standing

# Seconds that what the agents published is shown before it is read again, and that a reader of the page waits for it.
HOLDINGS_FRESH_S: Final = 15.0
HOLDINGS_DEADLINE_S: Final = 2.0

HOLDING_ORDER: Final = ("host", "unknown", "k8s", "free")
HOLDING_WORDS: Mapping[str, str] = {"free": "free", "host": "held by the host", "k8s": "held by pods"}


def _nobody() -> str:
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """What there is to show; None where this process has nothing to say about it."""

    lifecycle: Lifecycle
    identity: str
    now: Callable[[], datetime]
    pool: Callable[[], Explainer] | None = None
    incomplete: Callable[[], str | None] = lambda: None
    """Why the caches behind `pool` are not complete."""
    holdings: Callable[[], Awaitable[Holdings]] | None = None
    claims: Callable[[], Seen | None] | None = None
    certificates: Callable[[], api.Certificates] | None = None
    guard: Callable[[], Mapping[str, Standing]] | None = None
    leader: Callable[[], str] = _nobody


@dataclass(frozen=True, slots=True)
class Attention:
    """A sentence about something that a person should look at, and the section that has more."""

    text: str
    anchor: str = ""


@dataclass(frozen=True, slots=True)
class HoldingsView:
    """Cards of all nodes, or why they are not known."""

    cards: Capped[CardHoldings]
    problem: str
    host_held: int


@dataclass(frozen=True, slots=True)
class ClaimsView:
    """Claim templates; `note` says why there are none, or none newer."""

    templates: Capped[view.ClaimRow]
    note: str


class Gatherer:
    """Puts the page's facts together, a piece at a time."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._holdings: tuple[float, HoldingsView] | None = None

    async def context(self) -> dict[str, Any]:
        """What the template reads."""
        sources, now = self._sources, self._sources.now()
        known = sources.pool is not None and sources.incomplete() is None
        pace = Pace()
        explainer = sources.pool() if sources.pool and known else None
        await pace.rest()
        pool = view.pool(explainer.servers(), now) if explainer else None
        await pace.rest()
        waiting = await _waiting(explainer, pace, now) if explainer else None
        certificates = sources.certificates() if sources.certificates else None
        found: dict[str, Any] = {
            "title": "Tenure"
            if pool is None
            else f"{pool.count('free')} of {pool.cards} cards free - Tenure",
            "now": now.replace(microsecond=0),
            "failing": sources.lifecycle.failing(),
            "identity": sources.identity,
            "leader": sources.leader(),
            "version": VERSION,
            "pool": pool,
            "waiting": waiting,
            "holdings": await self._who_holds(),
            "holding_words": HOLDING_WORDS,
            "claims": self._claims(),
            "certificates": view.certificates(certificates, now) if certificates else None,
            "trust": certificates,
            "guard": sources.guard() if sources.guard else None,
        }
        return found | {"attention": Capped.of(list(_attention(found)), view.MOST_TROUBLES)}

    async def _who_holds(self) -> HoldingsView | None:
        """What the agents published: read when somebody looks, and then not again for a while."""
        read = self._sources.holdings
        if read is None:
            return None
        if self._holdings is None or time.monotonic() - self._holdings[0] > HOLDINGS_FRESH_S:
            self._holdings = (time.monotonic(), await self._read(read))
        return self._holdings[1]

    @staticmethod
    async def _read(read: Callable[[], Awaitable[Holdings]]) -> HoldingsView:
        try:
            async with asyncio.timeout(HOLDINGS_DEADLINE_S):
                found = await read()
        except (KubeError, TimeoutError) as error:
            why = str(error) or f"no answer within {HOLDINGS_DEADLINE_S:.0f} s"
            return HoldingsView(Capped([], 0), why, 0)
        host_held = sum(card.state == "host" for card in found.cards)
        return HoldingsView(_by_urgency(found.cards), found.problem, host_held)

    def _claims(self) -> ClaimsView | None:
        ask = self._sources.claims
        if ask is None:
            return None
        seen = ask()
        if seen is None:
            who = self._sources.leader() or "The leading replica"
            return ClaimsView(Capped([], 0), f"{who} checks them; its page shows what it found.")
        note = f"The last round could not look: {seen.trouble}" if seen.trouble else ""
        if not note and not seen.reports:
            note = "No pod names a claim template."
        return ClaimsView(view.claims(seen.reports), note)


async def _waiting(explainer: Explainer, pace: Pace, now: datetime) -> view.WaitingView:
    groups = []
    for group in itertools.islice(explainer.waiting(), view.MOST_GROUPS):
        groups.append(group)
        await pace.rest()
    return view.waiting(groups, explainer.backlog(), now)


def _by_urgency(cards: Sequence[CardHoldings]) -> Capped[CardHoldings]:
    """Those held outside Kubernetes first, then those that are not known."""
    rank = {state: number for number, state in enumerate(HOLDING_ORDER)}
    ordered = sorted(cards, key=lambda card: (rank.get(card.state, len(rank)), card.node, card.card))
    return Capped.of(ordered, view.MOST_HOLDINGS)


def _attention(found: Mapping[str, Any]) -> Iterator[Attention]:
    for name, why in found["failing"].items():
        yield Attention(f"{name}: {why}")
    yield from _of_trust(found["trust"], found["guard"])
    yield from _of_pool(found["pool"])
    claims, holdings = found["claims"], found["holdings"]
    if holdings and holdings.host_held:
        count = holdings.host_held
        yield Attention(
            f"{count} {'card is' if count == 1 else 'cards are'} held by processes outside Kubernetes",
            "holders",
        )
    for row in claims.templates.rows if claims else ():
        if row.report.verdict == "fail":
            yield Attention(f"claim template {row.report.template} fails a check", "claims")


def _of_trust(trust: api.Certificates | None, guard: Mapping[str, Standing] | None) -> Iterator[Attention]:
    for text in trust.troubles if trust else ():
        yield Attention(f"certificates: {text}", "trust")
    for policy, standing in (guard or {}).items():
        if standing.in_force is False:
            yield Attention(f"guard policy {policy} is not in force: {standing.why}", "trust")


def _of_pool(pool: view.PoolView | None) -> Iterator[Attention]:
    for shown in pool.servers if pool else ():
        if not shown.server.ready:
            yield Attention(f"server {shown.server.name} is not ready", "cards")
        elif not shown.server.cards:
            yield Attention(f"server {shown.server.name} has no card", "cards")
