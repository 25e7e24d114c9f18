"""What the status page shows, worked out before a line of it is written: counts, order, bounds, durations. Pure.

Everything is bounded: what does not fit is counted ("and 12 more"). Texts that tenants choose stay plain text here;
the template escapes them.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Generic, TypeVar

from controllers.claims.report import Report, Verdict
from service import api
from service.objects import parse_time

# Rows of each table: what a browser on a phone still scrolls, and what some tens of milliseconds render.
MOST_CARDS: Final = 600
MOST_GROUPS: Final = 20
MOST_ANSWERS: Final = 5
MOST_TEMPLATES: Final = 50
MOST_HOLDINGS: Final = 200
MOST_FINDINGS: Final = 3
MOST_TROUBLES: Final = 20

T = TypeVar("T")

STATE_WORDS: Mapping[api.CardState, str] = {
    api.CardState.FREE: "free",
    api.CardState.RESERVED: "promised",
    api.CardState.BOUND: "held",
    api.CardState.DRAINING: "draining",
    api.CardState.UNKNOWN: "unknown",
}
VERDICT_WORDS: Mapping[Verdict, str] = {
    Verdict.PASS: "passes",
    Verdict.FAIL: "fails",
    Verdict.UNKNOWN: "unknown",
}


@dataclass(frozen=True, slots=True)
class Capped(Generic[T]):
    """The first of many rows, and how many are left out."""

    rows: Sequence[T]
    more: int

    @staticmethod
    def of(rows: Sequence[T], most: int) -> "Capped[T]":
        """At most `most` rows."""
        return Capped(rows[:most], max(0, len(rows) - most))


@dataclass(frozen=True, slots=True)
class Share:
    """One part of the bar over all cards, in cards; `start` is where it begins."""

    state: api.CardState
    word: str
    cards: int
    start: int


@dataclass(frozen=True, slots=True)
class CardRow:
    """A card of the pool; `since` of its holder as a duration."""

    card: api.Card
    word: str
    since: str


@dataclass(frozen=True, slots=True)
class ServerRows:
    """A server with those of its cards that are shown, and how many of them are free."""

    server: api.Server
    free: int
    cards: Sequence[CardRow]


@dataclass(frozen=True, slots=True)
class PoolView:
    """Servers and cards. `more` cards are left out."""

    servers: Sequence[ServerRows]
    shares: Sequence[Share]
    cards: int
    more: int

    def count(self, state: str) -> int:
        """Cards of a state."""
        return next((share.cards for share in self.shares if share.state == state), 0)


@dataclass(frozen=True, slots=True)
class WaitingRow:
    """Pods with one explanation."""

    group: api.Waiting
    wait: str
    answers: Capped[api.Alike]


@dataclass(frozen=True, slots=True)
class WaitingView:
    """Pods without a node, and `more` of them whose groups are left out; `oldest` as a duration."""

    pods: int
    oldest: str
    groups: Sequence[WaitingRow]
    more: int


@dataclass(frozen=True, slots=True)
class ClaimRow:
    """A claim template with what is wrong with it."""

    report: Report
    word: str
    findings: Capped[str]


@dataclass(frozen=True, slots=True)
class CertificateRow:
    """A certificate and the time until it ends."""

    certificate: api.Certificate
    left: str
    over: bool


def pool(answer: api.Servers, now: datetime) -> PoolView:
    """The cards of the pool, by server."""
    left = MOST_CARDS
    shown = []
    for server in answer.servers:
        rows = [_card_row(card, now) for card in server.cards[:left]]
        if rows or (left and not server.cards):
            free = sum(card.state is api.CardState.FREE for card in server.cards)
            shown.append(ServerRows(server, free, rows))
        left -= len(rows)
    cards = [card for server in answer.servers for card in server.cards]
    return PoolView(shown, _shares(cards), len(cards), max(0, len(cards) - MOST_CARDS))


def _shares(cards: Iterable[api.Card]) -> list[Share]:
    counts = Counter(card.state for card in cards)
    shares, start = [], 0
    for state, word in STATE_WORDS.items():
        shares.append(Share(state, word, counts[state], start))
        start += counts[state]
    return shares


def _card_row(card: api.Card, now: datetime) -> CardRow:
    return CardRow(card, STATE_WORDS[card.state], age(card.holder.since, now) if card.holder else "")


def waiting(groups: Sequence[api.Waiting], backlog: api.Backlog, now: datetime) -> WaitingView:
    """`groups` are the first of the queue; those that are not among them are only counted."""
    rows = [
        WaitingRow(group, age(group.since, now), Capped.of(group.servers, MOST_ANSWERS)) for group in groups
    ]
    more = backlog.pods - sum(group.pods for group in groups)
    return WaitingView(backlog.pods, age(backlog.since, now), rows, max(0, more))


def claims(reports: Iterable[Report]) -> Capped[ClaimRow]:
    """Templates, those that fail first."""
    order = {Verdict.FAIL: 0, Verdict.UNKNOWN: 1, Verdict.PASS: 2}
    ordered = sorted(reports, key=lambda report: (order[report.verdict], report.template))
    capped = Capped.of(ordered, MOST_TEMPLATES)
    return Capped([_claim_row(report) for report in capped.rows], capped.more)


def _claim_row(report: Report) -> ClaimRow:
    findings = [
        f"{check.name}: {finding.subject}: {finding.sentence}"
        for check in report.checks
        for finding in check.findings
        if finding.verdict is not Verdict.PASS
    ]
    return ClaimRow(report, VERDICT_WORDS[report.verdict], Capped.of(findings, MOST_FINDINGS))


def certificates(answer: api.Certificates, now: datetime) -> list[CertificateRow]:
    """Certificates in use, with the time that is left."""
    return [
        CertificateRow(
            one, duration((parse_time(one.expires) - now).total_seconds()), parse_time(one.expires) <= now
        )
        for one in answer.certificates
    ]


def age(since: str, now: datetime) -> str:
    """How long ago an RFC 3339 time was; empty when it is not one."""
    try:
        moment = parse_time(since)
    except ValueError:
        return ""
    return duration((now - moment.astimezone(UTC)).total_seconds())


_UNITS = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def duration(seconds: float) -> str:
    """Two units at most: `3 d 4 h`, `5 min`, `12 s`. What is in the future counts as nothing."""
    left = max(0, int(seconds))
    parts = []
    for size, unit in _UNITS:
        number, left = divmod(left, size)
        if number:
            parts.append(f"{number}\N{NO-BREAK SPACE}{unit}")
        elif parts:
            break
        if len(parts) == 2:  # noqa: PLR2004 - as the docstring says
            break
    return " ".join(parts) or "0\N{NO-BREAK SPACE}s"
