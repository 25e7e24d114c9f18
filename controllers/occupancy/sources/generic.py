"""Cards that only their device nodes tell of."""

from collections.abc import Sequence

from controllers.occupancy.sources.host import Host, device_nodes
from controllers.occupancy.sources.look import Look
from controllers.occupancy.vendors.generic import CardClass, cards
from controllers.occupancy.walk import Walker


class GenericSource:
    """All vendors of the table. Their holders are found by open files alone."""

    vendor = "generic"
    by_open_files = True

    def __init__(self, host: Host, classes: Sequence[CardClass], *, deadline_s: float) -> None:
        self._host = host
        self._classes = classes
        self._deadline_s = deadline_s
        self._walker = Walker("occupancy generic", most_stuck=1)

    async def look(self) -> Look:
        """The cards below /dev. Raises TimeoutError."""
        found = await self._walker.call(
            lambda: cards(device_nodes(self._host), self._classes), deadline_s=self._deadline_s
        )
        return Look(found)
