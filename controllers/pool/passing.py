"""A promise that nobody uses passes on (design decision 4): its time is over, and a waiting pod could start at once.

Two objects are involved, and no write changes both, so it takes three steps. The promise is revoked in its
`RemoteServer` (phase Passing). Then the pod's resourceVersion is moved: a Binding with an older one fails from now
on, a new one is preceded by a fresh look at the promise, and one that landed before shows in the answer. Then the
cards go to the winner, or stay with a pod that was placed after all. Whoever finds a revoked promise left over, after
a crash, goes on from the second step. The loser is in the queue again by its age.
"""

import uuid
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from typing import Final

import msgspec
import structlog

from controllers.pool import ledger, placement
from controllers.pool.book import Promise
from controllers.pool.ledger import Witness
from controllers.pool.notices import Cause
from controllers.pool.placement import Overdue, Passing, Waiting
from controllers.pool.pods import PodView, view
from controllers.pool.room import Room
from controllers.pool.servers import Phase, RemoteServer, RemoteServerStatus, is_server
from controllers.pool.shared import Shared
from controllers.pool.writer import ServerWriter
from service import names
from service.kube.client import PatchKind
from service.kube.errors import Conflict, NotFound
from service.kube.resources import PODS
from service.kube.store import Store
from service.objects import Node, Pod, parse_time

log = structlog.get_logger(__name__)

# Seconds in which the scheduler looks at a pod that it was told of, its own pause of 10 s at most included
# (kube-scheduler, podMaxBackoffSeconds).
ANSWER_S: Final = 15.0

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
        now, found = self._shared.clock(), []
        for pod, promise in self._let_in():
            since = parse_time(promise.allocations[0].since)
            cards = tuple(card for card in promise.cards if card.offered)
            if cards and self._is_over(pod, (now - since).total_seconds()):
                found.append(Overdue(pod.uid, promise.server.name, cards, since))
        return found

    def waits_for_answer(self) -> bool:
        """Whether some promise may be over within seconds."""
        return any(pod.woken for pod, _ in self._let_in())

    def _let_in(self) -> Iterator[tuple[PodView, Promise]]:
        """Pods that have a promise and no gate, and not yet a node."""
        for pod in self._shared.pods.unplaced():
            promise = self._shared.book.promise(pod.uid)
            if promise and not pod.gated and promise.allocations[0].phase == Phase.RESERVED:
                yield pod, promise

    def _is_over(self, pod: PodView, age_s: float) -> bool:
        """Whether a promise of this age is over.

        The scheduler does not look at a woken pod again that found no room (verified row 31), so no time would help it.
        All nodes are looked at last: there may be thousands.
        """
        if age_s >= self._shared.settings.promise_s:
            return True
        return pod.woken and age_s >= ANSWER_S and not self._could_start(pod.key)

    async def pass_on(self, queue: Iterable[Waiting], late: list[Overdue]) -> bool:
        """Serve the first waiting pod that these promises can serve. False when it must be looked at again."""
        for pod in sorted(queue, key=lambda item: item.place):
            passing = placement.pass_on(pod, self._shared.book.offers(), late, self._shared.settings.policy)
            if passing and self._could_start(f"{pod.namespace}/{pod.name}"):
                log.info(
                    "unused promises pass on", to=f"{pod.namespace}/{pod.name}", count=len(passing.losers)
                )
                return await self._transfer(passing)
        return True

    async def finish(self) -> bool:
        """Resolve what was revoked and never finished. False when it must be looked at again."""
        left = {
            server.name: {a.pod_uid for a in server.status.allocations if a.phase == Phase.PASSING}
            for server in self._shared.book
        }
        return all([await self._resolve(name, uids) is not None for name, uids in left.items() if uids])

    def _could_start(self, key: str) -> bool:
        whole = self._pod_store.get(key)
        clients = (node for node in self._nodes.list() if not is_server(node))
        return whole is not None and self._room.fits(whole, clients)

    async def _transfer(self, passing: Passing) -> bool:
        server = self._shared.book.get(passing.choice.server)
        if server is None:
            return False
        losers = frozenset(passing.losers)
        revoked = ledger.revoke(server, losers, now=self._shared.clock())
        if await self._writer.swap(server, revoked) is None:
            return False
        for uid in losers:
            self._shared.notices.say(uid, Cause.PASSED_ON)
        return await self._resolve(server.name, losers, winner=passing) is not None

    async def _resolve(
        self, name: str, uids: AbstractSet[str], *, winner: Passing | None = None
    ) -> RemoteServer | None:
        """Ask each pod, then write who has the cards. None when somebody else wrote first, or nobody can tell."""
        placed = {uid: await self._placed(name, uid) for uid in sorted(uids)}
        server = self._shared.book.get(name)
        if server is None:
            return None
        now = self._shared.clock()
        status = ledger.resolve(server, placed, now=now)
        if winner and not any(placed.values()):
            status = self._given(msgspec.structs.replace(server, status=status), winner) or status
        return await self._writer.swap(server, status)

    def _given(self, server: RemoteServer, passing: Passing) -> RemoteServerStatus | None:
        pod, cards = passing.pod, tuple(card.id for card in passing.choice.cards)
        return ledger.reserve(
            server, pod=Witness(pod.uid, pod.namespace, pod.name, cards), now=self._shared.clock()
        )

    async def _placed(self, server: str, uid: str) -> bool:
        """Move the pod's version, so that no Binding on its old promise can follow; whether one came before."""
        known = self._shared.book.get(server)
        allocation = next(iter(known.of_pod(uid)), None) if known else None
        if allocation is None:
            return False
        return await move(self._shared, namespace=allocation.namespace, name=allocation.name, uid=uid)


async def move(shared: Shared, *, namespace: str, name: str, uid: str) -> bool:
    """Give a pod a new resourceVersion: Bindings that were prepared before are refused. True when it has a node.

    Raises KubeErrors, also when the answer is lost: then nothing may be concluded.
    """
    body = {"metadata": {"uid": uid, "annotations": {names.WAKE: uuid.uuid4().hex}}}
    try:
        raw = await shared.client.patch(PODS.path(namespace, name), body, kind=PatchKind.MERGE)
    except (NotFound, Conflict):
        return False  # The pod is gone, or another one has its name.
    pod = _decode(raw)
    if seen := view(pod, shared.resources):
        shared.pods.learn(seen, fresh=True)
    return bool(pod.spec.node_name)
