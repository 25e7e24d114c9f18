"""Promise first, then let in (design decision 2).

One round serves the whole queue: plan on the book, write each server's promises with one compare-and-swap, then
remove the gates. A round that died in the middle is finished by the next one: a pod that has its promise and is
still gated is simply let in.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import timedelta

import msgspec
import structlog

from controllers.pool import ledger, placement
from controllers.pool.placement import Choice, Plan, Waiting
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

_decode = msgspec.json.Decoder(Pod).decode


class Promiser:
    """Serves the queue; rounds never overlap (one worker)."""

    def __init__(self, shared: Shared, writer: ServerWriter) -> None:
        self._client = shared.client
        self._writer = writer
        self._book = shared.book
        self._pods = shared.pods
        self._settings = shared.settings
        self._metrics = shared.metrics
        self._clock = shared.clock
        self._resources = shared.resources
        self.kept_free: dict[str, str] = {}

    async def round(self, _key: str = "") -> Outcome:
        """Promise what is free to those who are first, and let in whoever has a promise."""
        plan = self.plan()
        self.kept_free = dict(plan.kept_free)
        complete = await self._promise(plan)
        let_in = [pod for pod in self._pods if pod.gated and not pod.deleting and self._book.promise(pod.uid)]
        if not await self._let_in(let_in) or not complete:
            return Retry("a promise or a gate was not written")
        return self._next_look()

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
            pod.waiting() for pod in self._pods if pod.may_be_served and self._book.promise(pod.uid) is None
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

    async def _let_in(self, pods: Sequence[PodView]) -> bool:
        limit = asyncio.Semaphore(_PARALLEL)

        async def one(pod: PodView) -> bool:
            async with limit:
                return await self._remove_gate(pod)

        return all(await asyncio.gather(*(one(pod) for pod in pods)))

    async def _remove_gate(self, pod: PodView) -> bool:
        """Remove our gate and no other, from this pod and no successor of the same name."""
        body = {
            "metadata": {"uid": pod.uid},
            "spec": {"schedulingGates": [{"name": names.GATE, "$patch": "delete"}]},
        }
        try:
            raw = await self._client.patch(PODS.path(pod.namespace, pod.name), body, kind=PatchKind.STRATEGIC)
        except (NotFound, Conflict):
            return True  # The pod is gone or another one: the watch tells, and the promise is released.
        except KubeError as error:
            log.warning("gate not removed", pod=pod.key, error=str(error))
            return False
        if seen := view(_decode(raw), self._resources):
            self._pods.learn(seen, fresh=True)
        return True

    def _next_look(self) -> Outcome:
        """A pod that waits may starve without any event: look again when the first one would."""
        now = self._clock()
        limit = timedelta(seconds=self._settings.starvation_s)
        moments = [pod.since + limit for pod in self.waiting() if pod.since + limit > now]
        return After((min(moments) - now).total_seconds()) if moments else Done()
