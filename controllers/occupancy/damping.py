"""From verdicts to what is said and done: quick to believe a holder, slow to believe that he is gone. Pure.

Two things are kept apart. What is *said* (profile, label, gauge) follows the evidence of the last scan and falls silent
when nobody could look. What is *done* (cordon, exclusion from the pool) was done on evidence, and is undone on
evidence only: after `clean_rounds` scans in a row in which every source saw the card and no host process on it.
"""

from dataclasses import dataclass, replace

from controllers.occupancy.holders import State, Verdict


@dataclass(frozen=True, slots=True)
class Standing:
    """A card between scans. `excluded` keeps new work away; `clean` counts scans towards the end of that.

    `clients` of lupine are never damped: a draining card waits for their end. `since` is the
    RFC 3339 time at which state or number of clients last changed.
    """

    verdict: Verdict
    state: State
    excluded: bool = False
    host: int = 0
    clean: int = 0
    clients: int | None = None
    since: str = ""

    @property
    def observed(self) -> State:
        """What the pool is told: it keeps a card out only as long as it is told `host`."""
        return State.HOST if self.excluded else self.state


@dataclass(frozen=True, slots=True)
class Damping:
    """Scans in a row that change a card's state: `host_rounds` with a host holder, `clean_rounds` without."""

    host_rounds: int = 1
    clean_rounds: int = 2

    def __post_init__(self) -> None:
        if min(self.host_rounds, self.clean_rounds) < 1:
            raise ValueError("a change needs at least one round")


def settle(before: Standing | None, verdict: Verdict, rules: Damping, now: str) -> Standing:
    """The card's standing after one more scan at `now` (RFC 3339)."""
    was = before or Standing(verdict, State.UNKNOWN, since=now)
    if verdict.state is State.HOST:
        after = _held(was, verdict, rules)
    elif verdict.clean:
        after = _clean(was, verdict, rules)
    else:
        after = replace(was, verdict=verdict, state=verdict.state, host=0, clean=0)
    after = replace(after, clients=verdict.lupine_clients)
    changed = (after.observed, after.clients) != (was.observed, was.clients)
    return replace(after, since=now if changed else was.since)


def _held(was: Standing, verdict: Verdict, rules: Damping) -> Standing:
    """A host holder, seen often enough, or on a card that is excluded already."""
    host = was.host + 1
    if was.excluded or host >= rules.host_rounds:
        return replace(was, verdict=verdict, state=State.HOST, excluded=True, host=host, clean=0)
    return replace(was, verdict=verdict, state=State.UNKNOWN, host=host, clean=0)


def _clean(was: Standing, verdict: Verdict, rules: Damping) -> Standing:
    """A clean scan. Until there are enough in a row, an excluded card is said to be what it was before."""
    clean = was.clean + 1
    if was.excluded and clean < rules.clean_rounds:
        return replace(was, host=0, clean=clean)
    return replace(was, verdict=verdict, state=verdict.state, excluded=False, host=0, clean=clean)


def restored(verdict: Verdict, now: str) -> Standing:
    """The standing of a card that an earlier life of the agent excluded: what was done then is still done."""
    return Standing(verdict, State.UNKNOWN, excluded=True, since=now)
