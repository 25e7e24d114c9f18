"""What every source of a vendor has in common: it looks once, and answers with cards and findings."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Protocol

from controllers.occupancy.cards import Card, DeviceNumber
from controllers.occupancy.evidence import Findings, Gap, Why
from controllers.occupancy.tools import ToolError


@dataclass(frozen=True, slots=True)
class SharedNode:
    """A device node that stands for several cards. `cards` are ids; who opens it holds at least one of them."""

    number: DeviceNumber
    name: str
    cards: frozenset[str]


@dataclass(frozen=True, slots=True)
class Look:
    """One look at the cards of a vendor."""

    cards: tuple[Card, ...] = ()
    findings: Findings = field(default_factory=Findings)
    shared: tuple[SharedNode, ...] = ()


class Source(Protocol):
    """A vendor's cards on this node."""

    @property
    def vendor(self) -> str:
        """The vendor's name in profiles and metrics."""

    @property
    def by_open_files(self) -> bool:
        """Whether who has a compute node open holds the card."""

    async def look(self) -> Look:
        """Look at everything but open files. Returns in time; what it could not see is a gap."""


def gap_of(error: ToolError, source: str, *, optional: Collection[str] = ()) -> Findings:
    """A tool that gave no answer, as a finding. Only an absence may be optional: what is there must work."""
    if error.why is Why.ABSENT and source.split(maxsplit=1)[0] in optional:
        return Findings()
    return Findings(gaps=(Gap(source, error.why, str(error)),))
