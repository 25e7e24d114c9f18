"""One replica of the pool in the model world: the product's own code on late, lost and reordered news."""

import asyncio
import random
from collections import deque
from collections.abc import Coroutine
from typing import Any, cast

import msgspec

from controllers.pool.bind import BindRequest
from controllers.pool.pods import slim
from controllers.pool.pool import Caches, Clocks, Pool
from controllers.pool.servers import RemoteServer
from controllers.runtime import RuntimeMetrics
from service.kube.client import KubeClient
from service.kube.errors import KubeError
from service.kube.events import EventRecorder
from service.kube.store import Store
from service.metrics import MetricSet
from service.objects import Node, Pod
from service.settings import PoolSettings
from tests.prove.pool_world import Change, ModelClient, Turnstile, World
from webhook.extender.handlers import Extender
from webhook.extender.wire import NodeNames

SETTINGS = PoolSettings(promise_s=60, starvation_s=300)
KINDS: dict[str, type[Any]] = {"nodes": Node, "pods": Pod, "servers": RemoteServer}
NO_NEWS = Change("", gone=False, raw=b"")


class Silent:
    """Takes events and forgets them."""

    def emit(self, *_: object, **__: object) -> None:
        return


class Replica:
    """A process: caches that lag, controllers, and an extender. `crash` begins it anew."""

    def __init__(self, world: World, turnstile: Turnstile) -> None:
        self._world = world
        self._turnstile = turnstile
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.news: deque[Change] = deque()
        world.listeners.append(self.news.append)
        self._begin()

    def _begin(self) -> None:
        world = self._world
        client = cast("KubeClient", ModelClient(world, self._turnstile))
        self._caches = Caches(Store(), Store(), Store())
        self.metrics = MetricSet()
        self.pool = Pool(
            client,
            self._caches,
            SETTINGS,
            events=cast("EventRecorder", Silent()),
            metrics=self.metrics,
            runtime=RuntimeMetrics(MetricSet()),
            clocks=Clocks(lambda: world.now, lambda: world.now.timestamp()),  # noqa: PLW0108 - `now` moves
        )
        self.extender = Extender(
            lookup=self.pool.lookup,
            book=self.pool.shared.book,
            binder=self.pool.binder,
            resources=self.pool.shared.resources,
            metrics=self.pool.shared.metrics,
        )
        self.relist()

    def crash(self) -> None:
        """End everything at once, as kill -9 does, and start again from the API alone."""
        for task in self._tasks.values():
            task.cancel()
        self._tasks.clear()
        self._begin()

    def relist(self) -> None:
        """A complete list; whatever news was under way is lost, deletions too."""
        self.news.clear()
        for kind in KINDS:
            raws = [msgspec.json.encode(found) for found in self._world.kind(kind).values()]
            self._store(kind).replace([self._decoded(kind, raw) for raw in raws])

    def hear(self) -> None:
        """Take in one watch event."""
        if self.news:
            change = self.news.popleft()
            self._store(change.kind).apply(self._decoded(change.kind, change.raw), deleted=change.gone)

    def _store(self, kind: str) -> Store[Any]:
        found: Store[Any] = getattr(self._caches, kind)
        return found

    def _decoded(self, kind: str, raw: bytes) -> Any:
        found = msgspec.json.decode(raw, type=KINDS[kind])
        return slim(found, self.pool.shared.resources) if kind == "pods" else found

    # Work, each kind never twice at once, as the controllers' queues and the scheduler see to it

    def settle(self, server: str) -> None:
        self._start(f"settle {server}", self.pool.settle(server))

    def serve(self) -> None:
        self._start("serve", self.pool.serve())

    def schedule(self, pod: dict[str, Any], nodes: list[str], rng: random.Random) -> None:
        """What kube-scheduler does with a pod that has no gate: filter, choose a node, bind."""
        meta = pod["metadata"]

        async def attempt() -> None:
            body = msgspec.json.encode({"Pod": pod, "NodeNames": nodes})
            _, found = await self.extender.filter(body)
            if candidates := NodeNames(bytes(found.node_names)).decoded():
                node = rng.choice(candidates)
                await self.pool.binder.bind(BindRequest(meta["namespace"], meta["name"], meta["uid"], node))

        self._start(f"schedule {meta['uid']}", attempt())

    def _start(self, name: str, work: Coroutine[Any, Any, object]) -> None:
        running = self._tasks.get(name)
        if running is not None and not running.done():
            work.close()
            return

        async def guarded() -> None:
            try:
                await work
            except KubeError:
                return  # The queue would try again; the driver does.

        self._tasks[name] = asyncio.create_task(guarded(), name=name)

    def faults(self) -> list[BaseException]:
        """What ended with anything but a KubeError: a bug."""
        done = [task for task in self._tasks.values() if task.done() and not task.cancelled()]
        return [fault for task in done if (fault := task.exception()) is not None]

    @property
    def idle(self) -> bool:
        return all(task.done() for task in self._tasks.values())
