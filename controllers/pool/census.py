"""Before a new `RemoteServer` offers its first card: every placed pod that says it holds one is read.

The object may be new because somebody deleted the old one. What it knew is still written on the pods (second
witness, design decision 1), but this replica's cache may not have seen the latest of them yet, and a Binding on the
old object's word may still be under way.
"""

from datetime import datetime

import msgspec

from controllers.pool.pods import view
from controllers.pool.reading import SharedRead
from controllers.pool.servers import RemoteServer
from controllers.pool.shared import Shared
from service.kube.errors import Gone
from service.kube.resources import PODS
from service.objects import Pod

# Seconds after which no Binding on the word of a deleted object can land any more: longer than the deadline of a
# call (10 s) and the scheduler's patience with an extender (5 s).
_LATE_S = 20.0

# Pods per page: some 10 ms of decoding.
_PAGE = 250


class _ListMeta(msgspec.Struct, frozen=True, rename={"next_page": "continue"}):
    next_page: str = ""


class _Page(msgspec.Struct, frozen=True):
    metadata: _ListMeta
    items: list[Pod]


_decode = msgspec.json.Decoder(_Page).decode


class Witnesses:
    """Decides when all witnesses of a new server have been heard."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._census = SharedRead("census of pods", self._read)
        self._heard: set[str] = set()
        self._asked: dict[str, datetime] = {}

    async def hear(self, server: RemoteServer) -> float:
        """Seconds to wait before this server may offer cards; 0.0 when every witness has been heard.

        Raises the KubeError of a census that failed: nothing is offered then.
        """
        uid = server.metadata.uid
        if server.status.cards or uid in self._heard:
            return 0.0
        await self._census.after_now()
        asked = self._asked.setdefault(uid, self._shared.clock())
        missing = _LATE_S - (self._shared.clock() - asked).total_seconds()
        if missing > 0 and self._may_be_under_way():
            return min(missing, _LATE_S)
        self._asked.pop(uid)
        self._heard.add(uid)
        return 0.0

    def _may_be_under_way(self) -> bool:
        """A pod that was let in and has no promise that we know of may be bound on the word of an object now gone."""
        return any(
            pod.may_be_served and not pod.gated and self._shared.book.promise(pod.uid) is None
            for pod in self._shared.pods.unplaced()
        )

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
