"""A promise that nobody uses passes on (design decision 4): its time is over, and a waiting pod could start at once.

The loser is in the queue again by its age. Before its cards go, its resourceVersion is moved, so that a Binding of
it that is still under way fails; one that landed already is seen in the answer, and then nothing passes.
"""

from collections.abc import Iterable
from datetime import timedelta

import msgspec
import structlog

from controllers.pool import ledger, placement
from controllers.pool.ledger import Witness
from controllers.pool.placement import Overdue, Passing, Waiting
from controllers.pool.pods import PodView, view
from controllers.pool.room import Room
from controllers.pool.servers import Phase, is_server
from controllers.pool.shared import Shared
from controllers.pool.writer import ServerWriter
from service import names
from service.kube.client import PatchKind
from service.kube.errors import Conflict, NotFound
from service.kube.resources import PODS
from service.kube.store import Store
from service.objects import Node, Pod, parse_time

log = structlog.get_logger(__name__)

_decode = msgspec.json.Decoder(Pod).decode


class Passer:
    """Finds unused promises and hands their cards on."""

    def __init__(
        self, shared: Shared, writer: ServerWriter, *, nodes: Store[Node], pods: Store[Pod], room: Room
    ) -> None:
        self._shared = shared
        self._writer = writer
        self._nodes = nodes
        self._pod_store = pods
        self._room = room

    def overdue(self) -> list[Overdue]:
        """Promises whose time is over: the pod was let in, and no node took it."""
        limit = self._shared.clock() - timedelta(seconds=self._shared.settings.promise_s)
        found = []
        for pod in self._shared.pods.unplaced():
            promise = self._shared.book.promise(pod.uid)
            if promise is None or pod.gated or promise.allocations[0].phase != Phase.RESERVED:
                continue
            since = parse_time(promise.allocations[0].since)
            cards = tuple(card for card in promise.cards if card.offered)
            if since <= limit and cards:
                found.append(Overdue(pod.uid, promise.server.name, cards, since))
        return found

    async def pass_on(self, queue: Iterable[Waiting], late: list[Overdue]) -> frozenset[str]:
        """Serve the first waiting pod that these promises can serve; the uids that lost theirs."""
        for pod in sorted(queue, key=lambda item: item.place):
            passing = placement.pass_on(pod, self._shared.book.offers(), late, self._shared.settings.policy)
            if passing and self._could_start(pod) and await self._transfer(passing):
                log.info(
                    "unused promises passed on", to=f"{pod.namespace}/{pod.name}", count=len(passing.losers)
                )
                return frozenset(passing.losers)
        return frozenset()

    def _could_start(self, pod: Waiting) -> bool:
        whole = self._pod_store.get(f"{pod.namespace}/{pod.name}")
        clients = (node for node in self._nodes.list() if not is_server(node))
        return whole is not None and self._room.fits(whole, clients)

    async def _transfer(self, passing: Passing) -> bool:
        for uid in passing.losers:
            loser = self._shared.pods.get(uid)
            if loser is None or not await self._still_unplaced(loser):
                return False
        server = self._shared.book.get(passing.choice.server)
        if server is None:
            return False
        for uid in passing.losers:
            server = msgspec.structs.replace(server, status=ledger.give_back(server, uid))
        cards = tuple(card.id for card in passing.choice.cards)
        winner = Witness(passing.pod.uid, passing.pod.namespace, passing.pod.name, cards)
        status = ledger.reserve(server, pod=winner, now=self._shared.clock())
        return status is not None and await self._writer.swap(server, status) is not None

    async def _still_unplaced(self, pod: PodView) -> bool:
        body = {"metadata": {"uid": pod.uid, "annotations": {names.WAKE: ledger.stamp(self._shared.clock())}}}
        try:
            raw = await self._shared.client.patch(
                PODS.path(pod.namespace, pod.name), body, kind=PatchKind.MERGE
            )
        except (NotFound, Conflict):
            return False
        seen = view(_decode(raw), self._shared.resources)
        if seen:
            self._shared.pods.learn(seen, fresh=True)
        return seen is not None and not seen.node
