"""The occupancy agent of one node: scan, settle, publish, again.

    interval ───────┐
    a holder ends ──┼─▶ scan ─▶ settle ─▶ metrics ─▶ RemoteServer, node, profiles, events
    a card drains ──┘

`OccupancyAgent(...).parts(lifecycle)` are for the composition root.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import structlog

from controllers.occupancy.assemble import scanner_of
from controllers.occupancy.damping import Damping, Standing, settle
from controllers.occupancy.ends import Ends
from controllers.occupancy.metrics import OccupancyMetrics
from controllers.occupancy.observed import drains
from controllers.occupancy.outlets import Caches, Key, Outlets
from controllers.occupancy.pods import NodePod, PodIndex
from controllers.occupancy.publish import Profiles
from controllers.occupancy.scanner import Scan, Scanner
from controllers.pool.servers import RemoteServer
from service.kube.client import KubeClient
from service.kube.errors import KubeError
from service.kube.events import EventRecorder
from service.kube.metrics import KubeMetrics
from service.kube.reflector import Reflector
from service.kube.resources import NODES, PODS, REMOTE_SERVERS
from service.kube.store import Change
from service.lifecycle import Lifecycle, Part
from service.metrics import MetricSet
from service.objects import Node
from service.settings import OccupancySettings

log = structlog.get_logger(__name__)

# Seconds between two scans at least, however many processes end.
_SHORTEST_PAUSE_S = 1.0
# Seconds between two tries to take everything back while the API server does not answer.
_TAKE_BACK_PAUSE_S = 10.0

Task = tuple[str, Callable[[], Coroutine[Any, Any, None]]]


class OccupancyAgent:
    """One node's agent. `standings` is what it knows now, by vendor and card id."""

    def __init__(  # noqa: PLR0913 - what a process has, and what tests put in their place
        self,
        settings: OccupancySettings,
        client: KubeClient,
        metrics: MetricSet,
        *,
        node: str,
        kube_metrics: KubeMetrics,
        scanner: Scanner | None = None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.standings: dict[Key, Standing] = {}
        self._settings = settings
        self._client = client
        self._node = node
        self._kube_metrics = kube_metrics
        self._metrics = OccupancyMetrics(metrics)
        self._scanner = scanner or scanner_of(settings)
        self._now = now
        self._damping = Damping(settings.host_rounds, settings.clean_rounds)
        self._events = EventRecorder(client, component="tenure-node", identity=node, metrics=kube_metrics)
        self._caches = Caches()
        self._caches.servers.subscribe(self._on_server)
        profiles = Profiles(client, settings.profiles, node=node, resync_s=settings.resync_s, clock=clock)
        self._outlets = Outlets(
            client, node, self._caches, profiles=profiles, events=self._events, metrics=self._metrics
        )
        self._wake = asyncio.Event()
        self._ends = Ends(self._wake.set)
        self._rounds = 0
        self._recalled = False
        self._warned = ""

    def parts(self, lifecycle: Lifecycle) -> Iterator[Part]:
        """The tasks, for the composition root; their order does not matter."""
        for name, run in self.tasks():
            yield lifecycle.task(name, run, owner="occupancy")

    def tasks(self) -> tuple[Task, ...]:
        """What runs for ever, by name."""
        by_name, of_node = f"metadata.name={self._node}", f"spec.nodeName={self._node}"
        client, metrics, caches = self._client, self._kube_metrics, self._caches
        pods = Reflector(client, PODS, NodePod, caches.pods, metrics=metrics, field_selector=of_node)
        nodes = Reflector(client, NODES, Node, caches.nodes, metrics=metrics, field_selector=by_name)
        servers = Reflector(
            client, REMOTE_SERVERS, RemoteServer, caches.servers, metrics=metrics, field_selector=by_name
        )
        return (
            ("occupancy pods", pods.run),
            ("occupancy node", nodes.run),
            ("occupancy server", servers.run),
            ("occupancy events", self._events.run),
            ("occupancy", self.run),
        )

    async def run(self) -> None:
        """Scan and publish until cancelled; when occupancy is off, take back what was published and rest."""
        if not self._settings.active:
            await self._take_back()
            await asyncio.Event().wait()
        try:
            while True:
                self._wake.clear()
                await self.round()
                await self._pause()
        finally:
            self._ends.close()

    async def round(self) -> None:
        """One scan and everything that follows from it."""
        looked = self._stamp()
        pods = self._caches.pods
        scan = await self._scanner.scan(PodIndex.of(pods.list()) if pods.synced else PodIndex())
        self._take_in(scan)
        self._rounds += 1
        if self._outlets.ready(self._rounds):
            self._recall()
            complete = scan.complete and not scan.blind
            await self._outlets.publish(self.standings, complete=complete, looked=looked, now=self._stamp())

    def _take_in(self, scan: Scan) -> None:
        now = self._stamp()
        for verdict in scan.verdicts:
            key = (verdict.card.vendor, verdict.card.id)
            self.standings[key] = settle(self.standings.get(key), verdict, self._damping, now)
        holders = [holder for s in self.standings.values() for holder in s.verdict.holders]
        self._ends.watch(holder.pid for holder in holders if holder.start is not None)
        self._metrics.scanned(scan)
        self._metrics.show(self.standings.values())
        if scan.blind != self._warned and scan.blind:
            log.warning(scan.blind)
        self._warned = scan.blind

    def _recall(self) -> None:
        """Go on with what an earlier life of this agent kept out: clean scans end it, and nothing else."""
        if self._recalled:
            return
        self._recalled = True
        kept = self._outlets.kept_out()
        for key, standing in self.standings.items():
            if key[1] in kept and standing.clean < self._damping.clean_rounds:
                self.standings[key] = replace(standing, excluded=True)
        self._outlets.keep_quiet(frozenset(key for key in self.standings if key[1] in kept))

    def _on_server(self, change: Change[RemoteServer]) -> None:
        """A card that begins to drain is looked at soon."""
        if drains(change.new) and not drains(change.old):
            self._wake.set()

    async def _pause(self) -> None:
        waits = drains(self._outlets.server)
        interval = self._settings.drain_interval_s if waits else self._settings.interval_s
        shortest = min(_SHORTEST_PAUSE_S, interval)
        await asyncio.sleep(shortest)
        with suppress(TimeoutError):
            async with asyncio.timeout(interval - shortest):
                await self._wake.wait()

    async def _take_back(self) -> None:
        while True:
            try:
                await self._outlets.take_back()
            except KubeError as error:
                log.warning("not taken back yet", error=str(error))
                await asyncio.sleep(_TAKE_BACK_PAUSE_S)
            else:
                log.info("occupancy is off, and what was published is taken back")
                return

    def _stamp(self) -> str:
        """RFC 3339 with whole seconds, as the pool compares it."""
        return self._now().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
