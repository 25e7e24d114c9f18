"""The composition root: builds every object of a process and says in which order it starts. It knows everything.

    ports ▶ ops listener ▶ caches ▶ certificate ▶ webhook and extender listeners ▶ ready ▶ lease ▶ controllers

The process stops in reverse, after the drain; the doors for API server and scheduler close first.
"""

import asyncio
import collections
import socket
import ssl
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, Literal

from aiohttp import web
from prometheus_client import CollectorRegistry, ProcessCollector, disable_created_metrics

from certs.certificates import Certificates, utc_now
from controllers.claims.metrics import ClaimMetrics
from controllers.claims.rdma import RdmaAnnotation
from controllers.claims.watch import Seen, Watcher
from controllers.occupancy import holdings
from controllers.occupancy.agent import OccupancyAgent
from controllers.occupancy.holdings import Holdings
from controllers.pool.pods import Resources, slim
from controllers.pool.pool import Caches, Clocks, Pool
from controllers.pool.servers import RemoteServer
from controllers.regions.agent import RegionAgent
from controllers.runtime import RuntimeMetrics
from service import logs
from service.http import Address, HttpMetrics, Listener, Name
from service.informers import Informers
from service.kube.client import KubeClient
from service.kube.errors import KubeError
from service.kube.events import EventRecorder
from service.kube.lease import Lease
from service.kube.metrics import KubeMetrics
from service.kube.resources import NAMESPACES, NODES, PODS, REMOTE_SERVERS
from service.lifecycle import Lifecycle, Part, nothing
from service.loop import LOOK_EVERY_S, LOOK_OF_AGENT_EVERY_S, LoopLag
from service.metrics import MetricSet, tell_version
from service.objects import Namespace, Node, Pod
from service.ops import ops_routes
from service.page.gather import Sources
from service.page.routes import page_routes
from service.pool_api import disabled_routes, pool_routes
from service.settings import Settings
from webhook.admission.handler import MAX_BODY_BYTES, admission_routes
from webhook.extender.handlers import Extender
from webhook.guard import GuardWatch

# Bytes. A pod of at most 1.5 MiB (etcd's bound of one object) and 5,000 node names of at most 253 characters.
EXTENDER_BODY: Final = 3 * 1024 * 1024
OPS_BODY: Final = 1024


async def serve(settings: Settings) -> int:
    """Run the server until it is told to stop; the exit code. Raises ConfigError, ListenError."""
    process = _Process(settings)
    client = await KubeClient.connect(settings.kube, metrics=process.kube_metrics)
    server = _Server(process, client)
    return await process.run(list(server.parts()), doors=server.doors)


async def node(settings: Settings) -> int:
    """Run a node's agents until they are told to stop; the exit code. Raises ConfigError, ListenError."""
    process = _Process(settings)
    client = await KubeClient.connect(settings.kube, metrics=process.kube_metrics)
    return await process.run(list(_Node(process, client).parts()))


class _Process:
    """What every command that runs for long has: logs, metrics, a lifecycle and the ops listener."""

    def __init__(self, settings: Settings) -> None:
        logs.configure(style=settings.log.format, level=settings.log.level, expected=[KubeError])
        http = settings.http
        self.settings = settings
        disable_created_metrics()  # type: ignore[no-untyped-call] # a second series for each metric; no types
        self.metrics = MetricSet()
        self.metrics.collector(ProcessCollector(registry=None))
        tell_version(self.metrics)
        self.kube_metrics = KubeMetrics(self.metrics)
        self.lifecycle = Lifecycle(self.metrics, drain_s=http.drain_s)
        self._http_metrics = HttpMetrics(self.metrics)
        self._listeners: list[Listener] = []
        self._ops = self.listener(
            Name.OPS, Address(http.ops_host, http.ops_port, "http.ops"), max_body=OPS_BODY
        )

    def listener(
        self, name: Name, address: Address, *, max_body: int, tls: ssl.SSLContext | None = None
    ) -> Listener:
        """A listener whose port is taken together with the others."""
        listener = Listener(
            name, address, lifecycle=self.lifecycle, metrics=self._http_metrics, max_body=max_body, tls=tls
        )
        self._listeners.append(listener)
        return listener

    def ports(self) -> Part:
        """Take every port before anything else, so that an occupied one is known at once."""
        return Part("ports", self._reserve, self._release)

    def ops(self, routes: Sequence[web.RouteDef], *, lag_every_s: float = LOOK_EVERY_S) -> Iterator[Part]:
        """The first parts: whatever goes wrong after them can be seen from outside."""
        own = ops_routes(self.lifecycle, self.metrics.registry)
        yield Part("ops listener", partial(self._ops.open, [*own, *routes]), self._ops.close)
        yield self.lifecycle.task("loop lag", LoopLag(self.metrics, every_s=lag_every_s).run, owner="process")

    async def _reserve(self) -> None:
        for listener in self._listeners:
            await listener.reserve()

    async def _release(self) -> None:
        for listener in self._listeners:
            await listener.close()

    async def run(self, parts: Sequence[Part], *, doors: Sequence[Listener] = ()) -> int:
        """The whole life; `doors` close after the drain, before anything behind them stops."""

        async def close() -> None:
            await asyncio.gather(*(door.close() for door in doors))

        self.lifecycle.handle_signals()
        return await self.lifecycle.run(parts, drained=close)


class _Server:
    """The objects of `tenure serve`: admission always, the pool where the settings name its resources."""

    def __init__(self, process: _Process, client: KubeClient) -> None:
        settings = process.settings
        self._process = process
        self._client = client
        self._certificates = Certificates(
            settings, client, metrics=process.metrics, kube_metrics=process.kube_metrics
        )
        process.lifecycle.condition("certificate trusted", self._certificates.unready)
        self._webhook = process.listener(
            Name.WEBHOOK,
            Address(settings.http.webhook_host, settings.http.webhook_port, "http.webhook"),
            max_body=MAX_BODY_BYTES,
            tls=self._certificates.ssl_context,
        )
        tls = self._certificates.extender_context
        self._leading = _Leading(process, client)
        pool, claims = settings.pool.enabled, settings.claims.enabled
        self._scheduling = _Scheduling(process, client, self._leading, tls) if pool else None
        self._claims = _Claims(process, client, self._leading) if claims else None
        self._guard = GuardWatch(client, process.metrics)
        by_host_path = settings.regions.backend == "hostPath"
        self._namespaces = _Namespaces(process, client) if by_host_path else None

    @property
    def doors(self) -> tuple[Listener, ...]:
        """What API server and scheduler call."""
        return (self._webhook, self._scheduling.door) if self._scheduling else (self._webhook,)

    def parts(self) -> Iterator[Part]:
        """In the order of the start."""
        process, scheduling, certificates = self._process, self._scheduling, self._certificates
        namespaces = self._namespaces
        labels = namespaces.labels if namespaces else _unknown
        admission = admission_routes(process.settings, process.metrics, labels)
        yield Part("API client", nothing, self._client.close)
        yield process.ports()
        answers = scheduling.answers() if scheduling else disabled_routes()
        yield from process.ops([*page_routes(self._shown()), *answers])
        yield from scheduling.caches() if scheduling else ()
        yield from namespaces.caches() if namespaces else ()
        yield Part("certificate", certificates.start)
        yield process.lifecycle.task("certificates", certificates.run, owner="certs")
        yield Part("webhook listener", partial(self._webhook.open, admission), self._webhook.close)
        yield process.lifecycle.task("guard watch", self._guard.run, owner="admission")
        yield from self._leading.work()
        yield from scheduling.work() if scheduling else ()
        yield from self._claims.work() if self._claims else ()

    def _shown(self) -> Sources:
        """What the status page shows."""
        shown = Sources(
            lifecycle=self._process.lifecycle,
            identity=socket.gethostname(),
            now=utc_now,
            holdings=partial(holdings.of_cluster, self._process.settings, self._client),
            certificates=self._certificates.report,
            guard=lambda: self._guard.standings,
            leader=lambda: self._leading.lease.leader,
            claims=self._claims.seen if self._claims else None,
        )
        return self._scheduling.shown(shown) if self._scheduling else shown


def _unknown(_: str) -> None:
    """The labels of a namespace where nobody follows namespaces."""


class _Namespaces:
    """Their labels, for the hostPath backend of regions: admission must know where Pod Security forbids it."""

    def __init__(self, process: _Process, client: KubeClient) -> None:
        self._informers = Informers(
            client, settings=process.settings.kube, metrics=process.kube_metrics, lifecycle=process.lifecycle
        )
        self._store = self._informers.follow(NAMESPACES, Namespace)

    def caches(self) -> Iterator[Part]:
        return self._informers.parts()

    def labels(self, name: str) -> Mapping[str, str] | None:
        """The labels of a namespace; None when it is not known."""
        found = self._store.get(name)
        return None if found is None else found.metadata.labels


class _Leading:
    """What only one replica does at a time, and what it says about it."""

    def __init__(self, process: _Process, client: KubeClient) -> None:
        settings, identity = process.settings, _identity()
        self._lifecycle = process.lifecycle
        self.events = EventRecorder(
            client, component="tenure", identity=identity, metrics=process.kube_metrics
        )
        self.lease = Lease(
            client,
            namespace=settings.kube.namespace,
            identity=identity,
            settings=settings.lease,
            metrics=process.kube_metrics,
        )

    def work(self) -> Iterator[Part]:
        """Comes before whatever waits for leadership."""
        yield self._lifecycle.task("events", self.events.run, owner="kube")
        yield self._lifecycle.task("lease", self.lease.run, owner="kube")


class _Claims:
    """Checks of claim templates; they need no pool of remote cards."""

    def __init__(self, process: _Process, client: KubeClient, leading: _Leading) -> None:
        self._lifecycle = process.lifecycle
        self._lease = leading.lease
        self._watcher = Watcher(
            client,
            events=leading.events,
            metrics=ClaimMetrics(process.metrics),
            interval_s=process.settings.claims.interval_s,
        )

    def seen(self) -> Seen | None:
        """For the status page."""
        return self._watcher.seen

    def work(self) -> Iterator[Part]:
        """The rounds of the leader."""
        lead = partial(self._lease.lead, self._watcher.run)
        yield self._lifecycle.task("claim checks", lead, owner="claims")


class _Scheduling:
    """The pool of remote cards: its caches, what the scheduler calls, and what only the leader does."""

    def __init__(
        self, process: _Process, client: KubeClient, leading: _Leading, tls: ssl.SSLContext | None
    ) -> None:
        settings, metrics = process.settings, process.metrics
        resources = Resources(settings.pool.resource_count_name, settings.pool.resource_memory_name)
        self._lifecycle = process.lifecycle
        self._lease = leading.lease
        self._informers = Informers(
            client, settings=settings.kube, metrics=process.kube_metrics, lifecycle=process.lifecycle
        )
        follow = self._informers.follow
        caches = Caches(
            nodes=follow(NODES, Node),
            pods=follow(PODS, Pod, project=lambda pod: slim(pod, resources)),
            servers=follow(REMOTE_SERVERS, RemoteServer),
        )
        self._pool = Pool(
            client,
            caches,
            settings.pool,
            events=leading.events,
            metrics=metrics,
            runtime=RuntimeMetrics(metrics),
            clocks=Clocks(wall=utc_now, monotonic=time.monotonic),
        )
        address = Address(settings.http.extender_host, settings.http.extender_port, "http.extender")
        self.door = process.listener(Name.EXTENDER, address, max_body=EXTENDER_BODY, tls=tls)

    def answers(self) -> list[web.RouteDef]:
        """The JSON API."""
        return pool_routes(self._pool.explainer, unknown=self._informers.missing)

    def shown(self, sources: Sources) -> Sources:
        """The pool's part of the status page."""
        return replace(
            sources,
            pool=self._pool.explainer,
            incomplete=self._informers.missing,
        )

    def caches(self) -> Iterator[Part]:
        """What must be complete before anything is decided."""
        return self._informers.parts()

    def work(self) -> Iterator[Part]:
        """What begins when the caches are complete."""
        pool, task = self._pool, self._lifecycle.task
        extender = Extender(
            lookup=pool.lookup,
            book=pool.shared.book,
            binder=pool.binder,
            resources=pool.shared.resources,
            metrics=pool.shared.metrics,
        )
        yield Part("extender listener", partial(self.door.open, extender.routes()), self.door.close)
        for controller in pool.controllers():
            lead = partial(self._lease.lead, controller.run)
            yield task(controller.name, lead, owner="pool", finish=controller.finish)


class _Node:
    """The objects of `tenure node`: card scan, vGPU regions, RDMA devices."""

    def __init__(self, process: _Process, client: KubeClient) -> None:
        settings = process.settings
        self._name = settings.node.name or socket.gethostname()
        self._process = process
        self._client = client
        self._regions = RegionAgent(settings.regions, client, process.metrics, node=self._name)
        self._occupancy = OccupancyAgent(
            settings.occupancy, client, process.metrics, node=self._name, kube_metrics=process.kube_metrics
        )
        self._rdma = RdmaAnnotation(client, node=self._name, sys=settings.occupancy.sys)

    def parts(self) -> Iterator[Part]:
        """In the order of the start."""
        process, lifecycle = self._process, self._process.lifecycle
        yield Part("API client", nothing, self._client.close)
        yield process.ports()
        shown = Sources(lifecycle=lifecycle, identity=self._name, now=utc_now, holdings=self._held)
        yield from process.ops(page_routes(shown), lag_every_s=LOOK_OF_AGENT_EVERY_S)
        yield from self._occupancy.parts(lifecycle)
        yield from self._regions.parts(lifecycle)
        yield lifecycle.task("RDMA annotation", self._rdma.run, owner="claims")

    async def _held(self) -> Holdings:
        return holdings.of_standings(self._name, self._occupancy.standings.values())


def declared(settings: Settings, command: Literal["serve", "node"]) -> CollectorRegistry:
    """Every metric of a command, for the reference; nothing is started, and no API server is asked."""
    process = _Process(settings)
    client = KubeClient.__new__(KubeClient)  # It connects to nothing, because nothing asks it.
    parts = _Server(process, client).parts() if command == "serve" else _Node(process, client).parts()
    collections.deque(parts, maxlen=0)  # Made, and never started.
    return process.metrics.registry


def _identity() -> str:
    """This replica, for lease and events: told apart from its own earlier life, as client-go does it."""
    return f"{socket.gethostname()}_{uuid.uuid4()}"
