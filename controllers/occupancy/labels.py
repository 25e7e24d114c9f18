"""What the node itself says: the label with the number of host-held cards, and the cordon of NVIDIA cards. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from controllers.occupancy.damping import Standing
from controllers.occupancy.holders import State
from controllers.occupancy.vendors.nvidia import VENDOR as NVIDIA


@dataclass(frozen=True, slots=True)
class Cordon:
    """The annotation `hami.io/device-cordon` (a comma list of card ids), and which of its entries are Tenure's."""

    listed: tuple[str, ...] = ()
    own: tuple[str, ...] = ()

    @staticmethod
    def parse(listed: str | None, own: str | None) -> "Cordon":
        """From the two annotations. An entry that is not listed any more is nobody's."""
        entries = _entries(listed)
        return Cordon(entries, tuple(entry for entry in _entries(own) if entry in entries))

    def annotations(self) -> tuple[str | None, str | None]:
        """Values of the two annotations; None: absent."""
        return ",".join(self.listed) or None, ",".join(self.own) or None


def _entries(text: str | None) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part for item in (text or "").split(",") if (part := item.strip())))


def host_held(standings: Sequence[Standing], *, complete: bool) -> str | None:
    """The label's value: the number of host-held cards; None (no label) when it would be zero by ignorance.

    `complete` is False when something of the node was not seen that belongs to no known card.
    """
    held = sum(standing.state is State.HOST for standing in standings)
    if held:
        return str(held)
    seen = all(s.state is not State.UNKNOWN and not s.verdict.gaps for s in standings)
    return "0" if standings and complete and seen else None


def cordon(before: Cordon, standings: Iterable[Standing]) -> Cordon:
    """The cordon with exactly the excluded NVIDIA cards as Tenure's entries.

    What others listed stays theirs, also when Tenure would list it too; what they took out of Tenure's own entries
    comes back as long as the reason lasts.
    """
    wanted = {s.verdict.card.uuid for s in standings if s.excluded and s.verdict.card.vendor == NVIDIA}
    others = tuple(entry for entry in before.listed if entry not in before.own)
    own = tuple(sorted(wanted - set(others)))
    return Cordon((*others, *own), own)
