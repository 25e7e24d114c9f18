"""The pool, assembled: informers feed the book and the pods, their changes wake the two controllers.

    nodes ──────────▶ settle(server)      cards and allocations of one RemoteServer
    RemoteServers ──▶ book ──▶ settle, serve
    pods ───────────▶ pods ──▶ settle, serve      promise, then let in

Every replica keeps book and pods; only the leader runs the controllers. Any replica's extender may answer.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from controllers.pool.bind import Binder
from controllers.pool.book import Book
from controllers.pool.collect import PoolCollector
from controllers.pool.explain import Explainer
from controllers.pool.fresh import OwnWrites
from controllers.pool.lookup import Lookup
from controllers.pool.metrics import PoolMetrics
from controllers.pool.notices import Notices
from controllers.pool.passing import Passer
from controllers.pool.placement import KeptCard
from controllers.pool.pods import Pods, PodView, view
from controllers.pool.promise import Promiser
from controllers.pool.room import Room
from controllers.pool.servers import RemoteServer, is_server, offered_locally
from controllers.pool.settle import CARD_INDEX, Settler, registered_ids
from controllers.pool.shared import Shared
from controllers.pool.writer import ServerWriter
from controllers.runtime import Controller, Outcome, RuntimeMetrics
from service.kube.client import KubeClient
from service.kube.events import EventRecorder
from service.kube.queue import WorkQueue
from service.kube.store import Change, Store
from service.metrics import MetricSet
from service.objects import Node, Pod
from service.settings import PoolSettings

# Settling one server is a handful of calls; several at once hide their latency after a restart.
_SETTLE_WORKERS = 4
# A round over a thousand waiting pods writes each server once and each pod once.
_ROUND_DEADLINE_S = 60.0
_SETTLE_DEADLINE_S = 30.0
_QUEUE = "queue"
# Index of the node store, and its only value: servers whose kubelet offers their cards to local pods too.
LOCAL_INDEX = "offered"
LOCALLY = "locally"


@dataclass(frozen=True, slots=True)
class Caches:
    """The stores of the three informers; pods are projected by `pods.slim`."""

    nodes: Store[Node]
    pods: Store[Pod]
    servers: Store[RemoteServer]


@dataclass(frozen=True, slots=True)
class Clocks:
    """`wall` tells the time of day (aware), `monotonic` counts seconds."""

    wall: Callable[[], datetime]
    monotonic: Callable[[], float]


class Pool:
    """One replica's pool."""

    def __init__(
        self,
        client: KubeClient,
        caches: Caches,
        settings: PoolSettings,
        *,
        events: EventRecorder,
        metrics: MetricSet,
        runtime: RuntimeMetrics,
        clocks: Clocks,
    ) -> None:
        self._caches = caches
        self._nodes = caches.nodes
        monotonic = clocks.monotonic
        pods = Pods(OwnWrites(monotonic))
        book = Book(pods.witnesses, OwnWrites(monotonic))
        notices = Notices(events, book, pods)
        self.shared = Shared(client, book, pods, notices, PoolMetrics(metrics), settings, clocks.wall)
        writer = ServerWriter(client, book, self.shared.metrics)
        self.lookup = Lookup(client, book, deadline=settings.read_deadline_s, clock=monotonic)
        self.binder = Binder(self.shared, self.lookup)
        self._room = Room()
        passer = Passer(self.shared, writer, nodes=caches.nodes, pods=caches.pods, room=self._room)
        self._promiser = Promiser(self.shared, writer, passer)
        self._settler = Settler(self.shared, writer, nodes=self._nodes, events=events)
        self._to_settle = WorkQueue(clock=monotonic)
        self._to_serve = WorkQueue(clock=monotonic)
        self._settling = Controller(
            "pool settle",
            self.settle,
            queue=self._to_settle,
            workers=_SETTLE_WORKERS,
            deadline=_SETTLE_DEADLINE_S,
            metrics=runtime,
        )
        self._serving = Controller(
            "pool serve",
            self.serve,
            queue=self._to_serve,
            deadline=_ROUND_DEADLINE_S,
            metrics=runtime,
        )
        self._subscribe()
        metrics.collector(
            PoolCollector(
                book,
                pods,
                queue=self._promiser.waiting,
                kept=lambda: self._promiser.kept,
                offered_locally=lambda: len(self._nodes.by_index(LOCAL_INDEX, LOCALLY)),
                clock=clocks.wall,
            )
        )

    def controllers(self) -> tuple[Controller, ...]:
        """What the leader runs. Start it only when all three stores are synced."""
        return (self._settling, self._serving)

    async def settle(self, server: str) -> Outcome:
        """Bring one server's object up to date."""
        return await self._settler.reconcile(server)

    async def serve(self, _key: str = _QUEUE) -> Outcome:
        """One round over the queue."""
        return await self._promiser.round()

    @property
    def kept(self) -> Mapping[KeptCard, str]:
        """Free cards that are kept for a pod that starves."""
        return self._promiser.kept

    def explainer(self) -> Explainer:
        """Answers for the JSON API, the commands and the page."""
        return Explainer(
            self.shared.book,
            self.shared.pods,
            queue=self._promiser.waiting(),
            kept=self._promiser.kept,
            now=self.shared.clock(),
        )

    def _subscribe(self) -> None:
        self._nodes.add_index(CARD_INDEX, registered_ids)
        self._nodes.add_index(LOCAL_INDEX, self._offered_locally)
        self._nodes.subscribe(self._on_node)
        self._caches.pods.subscribe(self._on_pod)
        self._caches.servers.subscribe(self._on_server)

    def _offered_locally(self, node: Node) -> tuple[str, ...]:
        return (LOCALLY,) if offered_locally(node, self.shared.settings.local_resources) else ()

    def _on_node(self, change: Change[Node]) -> None:
        """A node matters when it is or was a server, and when another server registers one of its cards."""
        sides = [node for node in (change.old, change.new) if node is not None and is_server(node)]
        if not sides or _same(change):
            return
        self._to_settle.add(sides[0].metadata.name)
        for card in {card for node in sides for card in registered_ids(node)}:
            for other in self._nodes.by_index(CARD_INDEX, card):
                self._to_settle.add(other.metadata.name)

    def _on_server(self, change: Change[RemoteServer]) -> None:
        if change.new is not None:
            self.shared.book.learn(change.new)
        elif change.old is not None:
            self.shared.book.forget(change.old)
        self._to_settle.add(change.key)
        self._to_serve.add(_QUEUE)

    def _on_pod(self, change: Change[Pod]) -> None:
        pods = self.shared.pods
        if change.new is not None:
            self._room.learn(change.new)
        elif change.old is not None:
            self._room.forget(change.old.metadata.uid)
        new = view(change.new, self.shared.resources) if change.new is not None else None
        before = pods.get(change.old.metadata.uid) if change.old is not None else None
        if new is not None:
            pods.learn(new)
        elif before is not None and change.new is None:
            pods.end(before.uid, placed=bool(before.node) or change.final_state_unknown)
        elif before is not None:
            pods.forget(before.uid)
        for pod in (before, new):
            self._wake(pod)

    def _wake(self, pod: PodView | None) -> None:
        """Whose work changes with this pod: the server that it holds cards of, and the queue."""
        if pod is None:
            return
        promise = self.shared.book.promise(pod.uid)
        for server in {promise.server.name if promise else "", pod.witness[0] if pod.witness else ""} - {""}:
            self._to_settle.add(server)
        if pod.may_be_served or (promise and pod.gated):
            self._to_serve.add(_QUEUE)


def _same(change: Change[Node]) -> bool:
    """Whether nothing that the pool reads has changed; kubelet rewrites its node's status every few minutes."""
    return change.old is not None and change.new is not None and _read(change.old) == _read(change.new)


def _read(node: Node) -> tuple[object, ...]:
    meta = node.metadata
    return (
        meta.uid,
        meta.labels,
        meta.annotations,
        meta.deletion_timestamp,
        node.spec.unschedulable,
        node.status.addresses,
        node.status.allocatable,
        node.ready,
    )
