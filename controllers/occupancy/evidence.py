"""What sources say: who was seen on a card, and where a source could not look.

A source never says "free". It says whom it saw, and confesses its gaps; a card is free only when nobody was seen and
no gap covers it. So a source that is absent, slow or wrong can only ever make a card unknown.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Why(StrEnum):
    """Why a source did not see; the label values of `tenure_occupancy_source_errors_total`."""

    ABSENT = "absent"
    SLOW = "slow"
    DENIED = "denied"
    FAILED = "failed"
    GARBLED = "garbled"
    NAMESPACE = "namespace"
    UNATTRIBUTED = "unattributed"
    CLAIMED = "claimed"
    DRAINED = "drained"
    MISSING = "missing"
    PROCESS_GONE = "process gone"


@dataclass(frozen=True, slots=True)
class Gap:
    """A source that must see did not. `cards` are the ids that it covers; None: every card of the vendor; none at
    all: a card whose id nobody knows, so that the node as a whole is not known to be free of host holders.

    `text` is for people: it names the source and what it said, never more than a line. With `pid`, the source saw that
    process on one of `cards` and cannot say on which; another source that saw it there closes the gap.
    """

    source: str
    why: Why
    text: str
    cards: frozenset[str] | None = None
    pid: int | None = None

    def covers(self, card: str) -> bool:
        """True when the gap makes an empty card unknown."""
        return self.cards is None or card in self.cards


@dataclass(frozen=True, slots=True)
class Sighting:
    """A source saw a process on a card. `start` is the process's start time in clock ticks since boot, where known.

    `command` is the source's own word for the process, used only when /proc has none.
    """

    card: str
    pid: int
    source: str
    start: int | None = None
    command: str = ""


@dataclass(frozen=True, slots=True)
class Findings:
    """All that one source, or several together, say."""

    sightings: tuple[Sighting, ...] = ()
    gaps: tuple[Gap, ...] = ()

    @staticmethod
    def joined(parts: Iterable["Findings"]) -> "Findings":
        """The words of several sources."""
        listed = tuple(parts)
        return Findings(
            tuple(sighting for part in listed for sighting in part.sightings),
            tuple(gap for part in listed for gap in part.gaps),
        )
