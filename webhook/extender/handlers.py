"""The scheduler extender: `filter`, `preempt` and `bind` over HTTP (design decision 3).

kube-scheduler takes any status but 200 for a broken extender, so whatever it should tell a user travels as text
inside a 200. `filter` may be called several times for one attempt (verified row 6) and changes nothing.
"""

import msgspec
from aiohttp import web

from controllers.pool import demand
from controllers.pool.bind import Binder, BindRequest
from controllers.pool.book import Book
from controllers.pool.demand import DemandError
from controllers.pool.lookup import Lookup
from controllers.pool.metrics import Bind, Filter, PoolMetrics
from controllers.pool.pods import Resources, view
from controllers.pool.texts import Text
from service.kube.errors import KubeError
from service.objects import Pod
from webhook.extender import wire
from webhook.extender.wire import FilterResult, NodeNames, WireError

_encode = msgspec.json.Encoder().encode


class Extender:
    """Answers one scheduler. The same object serves all calls; it holds no state of its own."""

    def __init__(
        self, *, lookup: Lookup, book: Book, binder: Binder, resources: Resources, metrics: PoolMetrics
    ) -> None:
        self._lookup = lookup
        self._book = book
        self._binder = binder
        self._resources = resources
        self._metrics = metrics

    def routes(self) -> list[web.RouteDef]:
        """The three verbs."""
        return [
            web.post("/scheduler/filter", self._filter),
            web.post("/scheduler/preempt", self._preempt),
            web.post("/scheduler/bind", self._bind),
        ]

    async def _filter(self, request: web.Request) -> web.Response:
        with self._metrics.filter_seconds.time():
            outcome, result = await self.filter(await request.read())
        self._metrics.filter(outcome)
        return _answer(result)

    async def filter(self, body: bytes) -> tuple[Filter, FilterResult]:
        """All nodes but the servers for a pod with a promise, or without a request; none for anybody else.

        Where nobody can tell, the answer is an error: the scheduler tries again by itself after some seconds, while
        a rejected pod would sleep until something wakes it.
        """
        try:
            return await self._filtered(*wire.decode_filter(body))
        except WireError as error:
            return Filter.UNREADABLE, FilterResult(error=str(error))
        except KubeError:
            return Filter.UNKNOWN, FilterResult(error=Text.API_SERVER)

    async def _filtered(self, pod: Pod, nodes: NodeNames) -> tuple[Filter, FilterResult]:
        try:
            if self._asks(pod) is None:
                return Filter.NO_CARDS_ASKED, FilterResult(node_names=msgspec.Raw(nodes.raw))
        except DemandError as error:
            return Filter.REFUSED_DEMAND, _none(nodes, str(error))
        if await self._lookup.promise(pod.metadata.uid) is None:
            if (seen := view(pod, self._resources)) and not seen.injected:
                return Filter.NOT_INJECTED, _none(nodes, Text.NOT_INJECTED)
            return Filter.NO_PROMISE, _none(nodes, Text.NO_PROMISE)
        return Filter.PROMISED, self._without_servers(nodes)

    def _asks(self, pod: Pod) -> demand.Demand | None:
        return demand.of(
            pod.spec.containers, pod.spec.init_containers, self._resources.count, self._resources.memory
        )

    def _without_servers(self, nodes: NodeNames) -> FilterResult:
        kept, servers = nodes.without(self._book.names)
        return FilterResult(
            node_names=msgspec.Raw(kept.raw),
            failed_and_unresolvable_nodes=dict.fromkeys(servers, Text.SERVES_CARDS),
        )

    async def _preempt(self, request: web.Request) -> web.Response:
        """Nobody is evicted for a card that is not there (verified row 29)."""
        try:
            pod, victims = wire.decode_preempt(await request.read())
        except WireError:
            return _answer({"NodeNameToMetaVictims": {}})
        promised = self._book.promise(pod.metadata.uid) is not None
        return _answer({"NodeNameToMetaVictims": victims if promised else {}})

    async def _bind(self, request: web.Request) -> web.Response:
        try:
            args = wire.decode_bind(await request.read())
        except WireError as error:
            self._metrics.bind(Bind.UNREADABLE)
            return _answer({"Error": str(error)})
        sentence = await self._binder.bind(
            BindRequest(args.pod_namespace, args.pod_name, args.pod_uid, args.node)
        )
        return _answer({"Error": sentence})


def _none(nodes: NodeNames, text: str) -> FilterResult:
    return FilterResult(failed_and_unresolvable_nodes=dict.fromkeys(nodes.decoded(), text))


def _answer(body: object) -> web.Response:
    return web.Response(body=_encode(body), content_type="application/json")
