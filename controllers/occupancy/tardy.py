"""Monitors that stay too long: one that keeps a compute node open is a holder in the end."""

from collections.abc import Iterable, Mapping

from controllers.occupancy.evidence import Sighting
from controllers.occupancy.kin import Kin, Kind
from controllers.occupancy.processes import Described, Process

Key = tuple[str, int, int]


class Tardy:
    """Since when each monitor is on a card, as (card, pid, start). `hold_s` in seconds."""

    def __init__(self, hold_s: float) -> None:
        self._hold_s = hold_s
        self._since: dict[Key, float] = {}

    def update(
        self, sightings: Iterable[Sighting], described: Mapping[int, Described], kin: Kin, *, now: float
    ) -> frozenset[Key]:
        """The monitors whose time is over at `now` (monotonic seconds); one that left begins anew."""
        seen = {
            (sighting.card, process.pid, process.start)
            for sighting in sightings
            if isinstance(process := described.get(sighting.pid), Process)
            and kin.kind(process) is Kind.MONITOR
        }
        self._since = {key: self._since.get(key, now) for key in seen}
        return frozenset(key for key, since in self._since.items() if now - since >= self._hold_s)
