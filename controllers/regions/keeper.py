"""Keeps the regions of a node true: cleans up when a container ends, and looks at everything every few seconds."""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec
import structlog

from controllers.regions.fresh import Outcome
from controllers.regions.ground import Outcomes
from controllers.regions.iothread import IoThread
from controllers.regions.layout import Kind, Record
from controllers.regions.leftovers import Leftovers, PodList, known_uids
from controllers.regions.metrics import Cleaned, RegionMetrics
from controllers.regions.names import ContainerId
from controllers.regions.safefs import Reason, RefusedError
from controllers.regions.sweep import Finding, Survey, Sweeper
from controllers.regions.watch import Watch
from service.kube.client import KubeClient
from service.kube.errors import KubeError
from service.kube.resources import PODS
from service.metrics import MetricSet
from service.objects import Pod
from service.settings import RegionSettings

log = structlog.get_logger(__name__)

# Seconds between two rounds of the watcher: a flood of events costs one look at /proc a round.
ROUND_S: Final = 0.02
# Seconds after a death in which a file that is still in use is tried again at once; later the sweep does it. The next
# open of a restarted container was seen 0.41 to 1.09 s after the death.
URGENT_S: Final = 1.0


class Keeper:
    """`node` is the node's name; `clock` counts seconds, monotonic."""

    def __init__(
        self,
        settings: RegionSettings,
        client: KubeClient,
        metrics: MetricSet,
        *,
        io: IoThread,
        sweeper: Sweeper,
        node: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sweep_s = settings.sweep_s
        self._client = client
        self._io = io
        self._ground = sweeper.ground
        self._sweeper = sweeper
        self._node = node
        self._clock = clock
        self._leftovers = Leftovers(settings.leftover_grace_s)
        self._findings: tuple[Finding, ...] = ()
        self._corrupt = frozenset[tuple[ContainerId, Record]]()
        self._said_unknown_file_system = False
        self._watch: Watch | None = None
        self._pending: dict[ContainerId, float] = {}
        self._wanted = asyncio.Event()
        self.metrics = RegionMetrics(metrics, lambda: self._findings)

    async def begin(self) -> None:
        """The first look at everything; region files of dead containers are gone when it returns."""
        self._watch = Watch(self.look_at)
        await self._sweep(self._watch)

    def close(self) -> None:
        """Watch nothing more."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    # The watcher

    def look_at(self, container: ContainerId) -> None:
        """Something happened with this container."""
        self._pending.setdefault(container, self._clock())
        self._wanted.set()

    async def watching(self) -> None:
        """Look at containers where something happened, for ever."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            batch, self._pending = self._pending, {}
            if self._watch is not None:
                try:
                    await self._attend(self._watch, batch)
                except (OSError, TimeoutError) as error:
                    log.warning("container not looked at", error=str(error))
            await asyncio.sleep(ROUND_S)

    async def _attend(self, watch: Watch, batch: dict[ContainerId, float]) -> None:
        """Wait for the end of the living, clean up after the dead; armed first, so that nothing is missed meanwhile."""
        for container in batch:
            watch.arm(container, [self._ground.path(container, kind) for kind in Kind])
        inhabitants = await self._io(self._ground.inhabitants, batch)
        for container, pids in inhabitants.items():
            watch.pin(container, min(pids))
        dead = [container for container in batch if container not in inhabitants]
        if dead:
            cleaned = await self._io(self._ground.clean, dead, found_dead=True)
            for container, outcomes in cleaned.items():
                self._cleaned(container, outcomes, since=batch[container])

    def _cleaned(self, container: ContainerId, outcomes: Outcomes, *, since: float) -> None:
        waited = self._clock() - since
        self._count(Cleaned.DEATH, [kind for kind, outcome in outcomes.items() if outcome is Outcome.REMOVED])
        self._refused((o.reason for o in outcomes.values() if isinstance(o, RefusedError)), container)
        if Outcome.IN_USE in outcomes.values() and waited < URGENT_S:
            self._pending.setdefault(container, since)
            self._wanted.set()
        elif Outcome.REMOVED in outcomes.values():
            self.metrics.clean_seconds.observe(waited)
            log.info(
                "regions of an ended container removed", container=str(container), seconds=round(waited, 4)
            )

    # The sweep

    async def sweeping(self) -> None:
        """Look at everything, for ever."""
        while True:
            await asyncio.sleep(self._sweep_s)
            if self._watch is not None:
                try:
                    await self._sweep(self._watch)
                    await self._remove_leftovers()
                except (OSError, TimeoutError, KubeError) as error:
                    log.warning("sweep ended early", error=str(error))

    async def _sweep(self, watch: Watch) -> None:
        began = time.perf_counter()
        survey = await self._io(self._sweeper.survey)
        findings: list[Finding] = []
        while len(findings) < len(survey.containers):
            findings += await self._look(survey.containers[len(findings) :], survey)
        self._findings = tuple(findings)
        self.metrics.sweep_seconds.observe(time.perf_counter() - began)
        for finding in self._findings:
            self._tell(finding)
        self._tell_corrupt()
        self._watch_all(watch, survey)

    async def _look(self, containers: Sequence[ContainerId], survey: Survey) -> list[Finding]:
        """The first few containers; those that end meanwhile come first."""
        if self._pending:
            await asyncio.sleep(ROUND_S)
        return await self._io(self._sweeper.look_at_some, containers, survey)

    def _watch_all(self, watch: Watch, survey: Survey) -> None:
        """See to it that every container is watched: the sweep mends what an event missed."""
        for container in watch.known() - set(survey.containers):
            watch.forget(container)
        for container in survey.containers:
            pids = survey.inhabitants.get(container, ())
            watched = watch.pinned(container) in pids if pids else container in watch.known()
            if not watched:
                self.look_at(container)

    def _tell(self, finding: Finding) -> None:
        self.metrics.pruned.inc(finding.pruned)
        self.metrics.lock_waits.inc(finding.lost_tries)
        self._count(Cleaned.SWEEP, finding.removed)
        self._refused(finding.refusals, finding.owner.id)
        if finding.pruned:
            log.info("stale records pruned", container=str(finding.owner.id), records=finding.pruned)

    def _tell_corrupt(self) -> None:
        """Count each corrupt record once, as long as it stays."""
        corrupt = frozenset[tuple[ContainerId, Record]]().union(
            *(finding.corrupt for finding in self._findings)
        )
        self.metrics.corrupt.inc(len(corrupt - self._corrupt))
        self._corrupt = corrupt

    def _count(self, cause: Cleaned, kinds: Iterable[Kind]) -> None:
        for kind in kinds:
            self.metrics.removed.labels(kind.value, cause.value).inc()

    def _refused(self, reasons: Iterable[Reason], container: ContainerId) -> None:
        for reason in reasons:
            self.metrics.refusals.labels(reason.value).inc()
            log.debug("left alone", container=str(container), reason=reason.value)
            if reason is Reason.FILE_SYSTEM and not self._said_unknown_file_system:
                self._said_unknown_file_system = True
                log.error("file system not known: nothing is removed there", root=str(self._ground.root))

    # Leftovers

    async def _remove_leftovers(self) -> None:
        unused = [finding.owner.id for finding in self._findings if finding.unused]
        due = self._leftovers.due(unused, now=self._clock())
        if not due:
            return
        known = known_uids(await self._pods())
        for container in due:
            if container.uid not in known:
                await self._remove_leftover(container)

    async def _pods(self) -> tuple[Pod, ...]:
        """Every pod of this node, from the API server itself. Raises KubeError."""
        data = await self._client.get(PODS.path(), params={"fieldSelector": f"spec.nodeName={self._node}"})
        return msgspec.json.decode(data, type=PodList).items

    async def _remove_leftover(self, container: ContainerId) -> None:
        try:
            removed = await self._io(self._ground.retire, container, everything=True)
        except RefusedError as refusal:
            self._refused([refusal.reason], container)
            return
        if removed:
            self.metrics.leftovers.inc()
            log.info("folder of a pod that is gone removed", container=str(container))
