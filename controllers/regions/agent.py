"""The region agent of a node: what starts, what runs, and who is told.

first cleaning ──▶ CSI socket ──▶ registration socket ──▶ kubelet registers ──▶ node label
                                                               │ publish, unpublish
a container ends ──▶ watcher ──▶ clean          every few seconds ──▶ sweep: prune, clean, measure, leftovers
"""

import asyncio
from typing import Final

import grpc.aio
import structlog

from controllers.regions import processes
from controllers.regions.csi import Driver, UnavailableError
from controllers.regions.ground import Ground
from controllers.regions.iothread import IoThread, come_first
from controllers.regions.keeper import Keeper
from controllers.regions.label import NodeLabel
from controllers.regions.names import ContainerId, Owner
from controllers.regions.registration import Registration, Socket
from controllers.regions.safefs import RefusedError
from controllers.regions.sweep import Sweeper
from controllers.regions.volumes import Volumes
from service import names
from service.kube.client import KubeClient
from service.lifecycle import Lifecycle, Part
from service.metrics import MetricSet
from service.settings import RegionSettings

log = structlog.get_logger(__name__)

# Seconds between two looks whether kubelet's folders still have our sockets.
MEND_EVERY_S: Final = 10.0


class RegionAgent:
    """Everything about regions on one node; `node` is the node's name."""

    def __init__(
        self, settings: RegionSettings, client: KubeClient, metrics: MetricSet, *, node: str
    ) -> None:
        self._settings = settings
        self._node = node
        self._io = IoThread()
        self._ground = Ground(settings.root, kib=settings.folder_limit_kib)
        self._volumes = Volumes(self._ground, settings.kubelet_root)
        sweeper = Sweeper(self._ground, self._volumes, settings.kubelet_root)
        self._keeper = Keeper(settings, client, metrics, io=self._io, sweeper=sweeper, node=node)
        self._label = NodeLabel(client, node, self._serves)
        self._trouble: str | None = "the first cleaning has not ended"
        self._unregistered: str | None = "kubelet has not registered the driver"
        self._sockets = self._make_sockets()

    def _make_sockets(self) -> list[Socket]:
        kubelet = self._settings.kubelet_root
        endpoint = kubelet / "plugins" / names.CSI_DRIVER / "csi.sock"
        registry = kubelet / "plugins_registry" / f"{names.CSI_DRIVER}-reg.sock"
        driver = Driver(
            self._node, publish=self._publish, unpublish=self._unpublish, metrics=self._keeper.metrics
        )
        registration = Registration(endpoint, self._registered)
        return [Socket(endpoint, driver.handlers()), Socket(registry, registration.handlers())]

    def parts(self, lifecycle: Lifecycle) -> list[Part]:
        """What the process starts, in this order, and stops in reverse. Adds the readiness condition `regions`."""
        if self._settings.backend == "off":
            return []
        lifecycle.condition("regions", self.why_not_ready)
        common = [
            Part("region cleaning", self._begin, self._end),
            lifecycle.task("region watcher", self._keeper.watching, owner="regions"),
            lifecycle.task("region sweeps", self._keeper.sweeping, owner="regions"),
        ]
        if self._settings.backend == "hostPath":
            return common
        return [
            *common,
            Part("region volumes", self._open_sockets, self._close_sockets),
            lifecycle.task("region sockets", self._mending, owner="regions"),
            Part("region node label", _nothing, self._label.take_back),
            lifecycle.task("region node label keeper", self._label.run, owner="regions"),
        ]

    def why_not_ready(self) -> str | None:
        """Why new containers should not come here; None when they may."""
        unregistered = self._unregistered if self._settings.backend == "csi" else None
        return self._trouble or self._io.hangs or unregistered

    def _serves(self) -> bool:
        return self.why_not_ready() is None and not self._settings.unpublish_only

    async def _begin(self) -> None:
        """The first cleaning: it ends before kubelet can ask for anything."""
        blind = await self._io(processes.sees_every_pod)
        if blind is not None:
            self._trouble = blind
            log.error("regions are not served", reason=blind)
            return
        come_first()
        grpc.aio.init_grpc_aio()  # for good: with its last object grpc would join its poller thread, on the loop
        await self._keeper.begin()
        self._trouble = None

    async def _end(self) -> None:
        self._keeper.close()
        serving = await self._io(self._volumes.published)
        if serving:
            pods = sorted({f"{volume.owner.namespace}/{volume.owner.pod}" for volume in serving})
            log.warning("leaving while pods have volumes: they cannot end without an agent", pods=pods)
        self._io.close()

    # Kubelet

    async def _open_sockets(self) -> None:
        if self._trouble is None:
            for socket in self._sockets:
                await socket.open()

    async def _close_sockets(self) -> None:
        for socket in reversed(self._sockets):
            await socket.close()

    async def _mending(self) -> None:
        """Open again what somebody removed, and what kubelet refused, for ever."""
        while True:
            await asyncio.sleep(MEND_EVERY_S)
            if self._trouble is None and await self._must_register_again():
                log.warning("sockets are opened again", reason=self._unregistered)
                try:
                    await self._close_sockets()
                    await self._open_sockets()
                except OSError as error:
                    log.warning("socket not opened", error=str(error))

    async def _must_register_again(self) -> bool:
        in_place = [await socket.in_place() for socket in self._sockets]
        return not all(in_place) or (self._unregistered or "").startswith(Registration.REFUSED)

    def _registered(self, why_not: str | None) -> None:
        self._unregistered = why_not
        self._label.changed()

    async def _publish(self, owner: Owner, target: str) -> None:
        if self._settings.unpublish_only:
            raise UnavailableError(
                f"Tenure is leaving node {self._node}: it makes no new region volumes here"
            )
        await self._io(self._volumes.publish, owner, target)
        self._keeper.look_at(owner.id)

    async def _unpublish(self, target: str) -> None:
        container = await self._io(self._volumes.unpublish, target)
        if container is not None:
            try:
                await self._io(self._retire, container)
            except (OSError, RefusedError) as error:
                log.warning("region folders left for the sweep", container=str(container), error=str(error))

    def _retire(self, container: ContainerId) -> None:
        if container not in {volume.owner.id for volume in self._volumes.published()}:
            self._ground.retire(container)


async def _nothing() -> None:
    """The start of a part that only ends."""
