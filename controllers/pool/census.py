"""Before a new `RemoteServer` offers its first card, all that a predecessor may have given away is heard of.

The object may be new because somebody deleted the old one. What it knew is still written on the pods (second
witness, design decision 1), but this replica's cache may lag behind them, and another replica may still believe the
old object. So all placed pods are read, and pods without a promise get a new resourceVersion: a Binding on the old
object's word fails from then on, and one that landed before shows in the answer.
"""

import asyncio

import msgspec

from controllers.pool.passing import move
from controllers.pool.pods import PodView, view
from controllers.pool.reading import SharedRead
from controllers.pool.servers import RemoteServer
from controllers.pool.shared import Shared
from service.kube.errors import Gone
from service.kube.resources import PODS
from service.objects import Pod

# Pods asked at the same time.
_PARALLEL = 16
# Pods per page: some 10 ms of decoding.
_PAGE = 250


class _ListMeta(msgspec.Struct, frozen=True, rename={"next_page": "continue"}):
    next_page: str = ""


class _Page(msgspec.Struct, frozen=True):
    metadata: _ListMeta
    items: list[Pod]


_decode = msgspec.json.Decoder(_Page).decode


class Witnesses:
    """Hears the witnesses of new servers."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._census = SharedRead("census of pods", self._take)
        self._heard: set[str] = set()

    async def hear(self, server: RemoteServer) -> None:
        """Return when this server may offer cards. Raises the KubeError of a census that failed."""
        uid = server.metadata.uid
        if not server.status.cards and uid not in self._heard:
            await self._census.after_now()
            self._heard.add(uid)

    async def _take(self) -> None:
        await self._read()
        book, pods = self._shared.book, self._shared.pods
        unsure = [pod for pod in pods.unplaced() if pod.demand and book.promise(pod.uid) is None]
        limit = asyncio.Semaphore(_PARALLEL)

        async def ask(pod: PodView) -> None:
            async with limit:
                await move(self._shared, namespace=pod.namespace, name=pod.name, uid=pod.uid)

        await asyncio.gather(*(ask(pod) for pod in unsure))

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
