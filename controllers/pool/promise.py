"""Promise first, then let in (design decision 2).

One round serves the whole queue: plan on the book, write each server's promises with one compare-and-swap, then
remove the gates. A round that died in the middle is finished by the next one: a pod that has its promise and is
still gated is simply let in.
"""

import asyncio
import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import msgspec
import structlog

from controllers.pool import ledger, placement
from controllers.pool.notices import DOUBT_S
from controllers.pool.passing import ANSWER_S, Passer
from controllers.pool.placement import Choice, KeptCard, Plan, Waiting
from controllers.pool.pods import PodView, view
from controllers.pool.servers import RemoteServer, RemoteServerStatus
from controllers.pool.shared import Shared
from controllers.pool.writer import ServerWriter
from controllers.runtime import After, Done, Outcome, Retry
from service import names
from service.kube.client import PatchKind
from service.kube.errors import Conflict, KubeError, NotFound
from service.kube.resources import PODS
from service.objects import Pod

log = structlog.get_logger(__name__)

# Gates removed at the same time: enough to hide the API server's latency, few enough to leave it room.
_PARALLEL = 16

# While a promise is over and nobody behind it could start either, nodes are looked at again this often.
_ROOM_LOOK_S = 5.0

# Our gate and no other.
_GATE_REMOVED = {"spec": {"schedulingGates": [{"name": names.GATE, "$patch": "delete"}]}}

_decode = msgspec.json.Decoder(Pod).decode


class Promiser:
    """Serves the queue; rounds never overlap (one worker)."""

    def __init__(self, shared: Shared, writer: ServerWriter, passer: Passer) -> None:
        self._client = shared.client
        self._writer = writer
        self._passer = passer
        self._book = shared.book
        self._pods = shared.pods
        self._settings = shared.settings
        self._metrics = shared.metrics
        self._notices = shared.notices
        self._clock = shared.clock
        self._resources = shared.resources
        self._told: set[str] = set()
        """Pods that the scheduler was told about since they have their promise: let in, or woken."""
        self.kept: Mapping[KeptCard, str] = {}

    async def round(self) -> Outcome:
        """Promise what is free to those who are first, and let in whoever has a promise."""
        plan = self.plan()
        self.kept = plan.kept
        complete = await self._promise(plan)
        complete &= await self._passer.finish()
        queue = self.waiting()
        late = self._passer.overdue() if queue else []
        if late:
            complete &= await self._passer.pass_on(queue, late)
        told = await self._tell_scheduler()
        doubts = self._notices.look(self.waiting(), self._clock())
        if not told or not complete:
            return Retry("a promise or a gate was not written")
        return self._next_look(waits_for_room=bool(late), doubts=doubts)

    def plan(self) -> Plan:
        """What the book says should be promised now."""
        return placement.plan(
            self.waiting(),
            self._book.offers(),
            policy=self._settings.policy,
            now=self._clock(),
            starvation=timedelta(seconds=self._settings.starvation_s),
        )

    def waiting(self) -> list[Waiting]:
        """The queue: pods that may be served and have no promise."""
        return [
            pod.waiting()
            for pod in self._pods.unplaced()
            if pod.may_be_served and self._book.promise(pod.uid) is None
        ]

    async def _promise(self, plan: Plan) -> bool:
        """Write the plan, server by server. False when some of it must be planned again."""
        by_server: dict[str, list[tuple[Waiting, Choice]]] = defaultdict(list)
        for pod, choice in plan.promises:
            by_server[choice.server].append((pod, choice))
        results = await asyncio.gather(*(self._swap(name, given) for name, given in by_server.items()))
        return all(results)

    async def _swap(self, name: str, given: Sequence[tuple[Waiting, Choice]]) -> bool:
        server = self._book.get(name)
        status = self._with(server, given) if server else None
        if server is None or status is None or await self._writer.swap(server, status) is None:
            return False
        self._metrics.promises.inc(len(given))
        return True

    def _with(
        self, server: RemoteServer, given: Iterable[tuple[Waiting, Choice]]
    ) -> RemoteServerStatus | None:
        status: RemoteServerStatus | None = server.status
        for pod, choice in given:
            cards = tuple(card.id for card in choice.cards)
            witness = ledger.Witness(pod.uid, pod.namespace, pod.name, cards)
            status = ledger.reserve(server, pod=witness, now=self._clock())
            if status is None:
                return None
            server = msgspec.structs.replace(server, status=status)
        return status

    async def _tell_scheduler(self) -> bool:
        """Remove the gate of each pod with a promise, or wake the scheduler where it is gone already.

        The second is for pods that lost a promise and have a new one: the scheduler rejected them, and no event
        would make it look again (verified row 4). After a restart nobody knows who was told, so each is told once.
        """
        promised = [pod for pod in self._pods.unplaced() if self._usable(pod)]
        self._told &= {pod.uid for pod in promised}
        limit = asyncio.Semaphore(_PARALLEL)

        async def tell(pod: PodView) -> bool:
            async with limit:
                return await self._patch(pod, _GATE_REMOVED if pod.gated else self._wake())

        untold = [pod for pod in promised if not pod.deleting and (pod.gated or pod.uid not in self._told)]
        return all(await asyncio.gather(*(tell(pod) for pod in untold)))

    def _usable(self, pod: PodView) -> bool:
        promise = self._book.promise(pod.uid)
        return promise is not None and promise.usable

    @staticmethod
    def _wake() -> dict[str, Any]:
        return {"metadata": {"annotations": {names.WAKE: uuid.uuid4().hex}}}

    async def _patch(self, pod: PodView, change: Mapping[str, Any]) -> bool:
        """Change this pod and no successor of the same name."""
        body = {**change, "metadata": {**change.get("metadata", {}), "uid": pod.uid}}
        try:
            raw = await self._client.patch(PODS.path(pod.namespace, pod.name), body, kind=PatchKind.STRATEGIC)
        except (NotFound, Conflict):
            return True  # The pod is gone or another one: the watch tells, and the promise is released.
        except KubeError as error:
            log.warning("pod not let in", pod=pod.key, error=str(error))
            return False
        self._told.add(pod.uid)
        if seen := view(_decode(raw), self._resources):
            self._pods.learn(seen, fresh=True)
        return True

    def _next_look(self, *, waits_for_room: bool, doubts: bool) -> Outcome:
        """When to look without an event: a pod starves, a promise is over, room may appear, or a doubt lasts."""
        now = self._clock()
        queue = self.waiting()
        starvation = timedelta(seconds=self._settings.starvation_s)
        moments = [pod.since + starvation for pod in queue if pod.since + starvation > now]
        looks = [(moment - now).total_seconds() for moment in moments]
        looks += [self._settings.promise_s] if queue else []
        looks += [ANSWER_S] if queue and self._passer.waits_for_answer() else []
        looks += [_ROOM_LOOK_S] if queue and waits_for_room else []
        looks += [DOUBT_S] if doubts else []
        return After(min(looks)) if looks else Done()
