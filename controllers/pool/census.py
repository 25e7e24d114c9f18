"""Before a new `RemoteServer` offers its first card: every placed pod that says it holds one is read.

The object may be new because somebody deleted the old one. What it knew is still written on the pods (second
witness, design decision 1), but this replica's cache may not have seen the latest of them yet.
"""

import msgspec

from controllers.pool.pods import view
from controllers.pool.reading import SharedRead
from controllers.pool.shared import Shared
from service.kube.errors import Gone
from service.kube.resources import PODS
from service.objects import Pod

# Pods per page: some 10 ms of decoding.
_PAGE = 250


class _ListMeta(msgspec.Struct, frozen=True, rename={"next_page": "continue"}):
    next_page: str = ""


class _Page(msgspec.Struct, frozen=True):
    metadata: _ListMeta
    items: list[Pod]


_decode = msgspec.json.Decoder(_Page).decode


class Census:
    """Reads all pods into the cache of interesting ones. KubeErrors are raised to the first who asked."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._reading = SharedRead("census of pods", self._read)

    async def take(self) -> None:
        """Know every pod that was placed before this call."""
        await self._reading.after_now()

    async def _read(self) -> None:
        params = {"limit": str(_PAGE)}
        while True:
            try:
                page = _decode(await self._shared.client.get(PODS.path(), params=params))
            except Gone:
                params.pop("continue", None)
                continue
            for pod in page.items:
                if seen := view(pod, self._shared.resources):
                    self._shared.pods.learn(seen, fresh=True)
            if not page.metadata.next_page:
                return
            params["continue"] = page.metadata.next_page
