"""Where results go: the node's RemoteServer, the node itself, profiles, and events for people.

Each is written on its own: what one of them refuses keeps nothing from the others, and is tried after the next scan.
"""

from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec
import structlog

from controllers.occupancy import node as node_object
from controllers.occupancy import observed
from controllers.occupancy.cgroups import Managed
from controllers.occupancy.damping import Standing
from controllers.occupancy.holders import State
from controllers.occupancy.metrics import OccupancyMetrics, Sink
from controllers.occupancy.pods import NodePod
from controllers.occupancy.publish import Profiles
from controllers.pool.servers import RemoteServer
from service.kube.client import KubeClient, PatchKind
from service.kube.errors import KubeError, NotFound
from service.kube.events import EventRecorder, ObjectRef
from service.kube.resources import NODES, REMOTE_SERVERS
from service.kube.store import Store
from service.objects import Node

log = structlog.get_logger(__name__)

# Scans before the first writing goes on without the list of RemoteServers.
_PATIENCE = 3

Key = tuple[str, str]
"""Vendor and card id."""


@dataclass(frozen=True, slots=True)
class Caches:
    """What the agent follows: the pods of its node, and the two objects that bear the node's name."""

    pods: Store[NodePod] = field(default_factory=Store)
    nodes: Store[Node] = field(default_factory=Store)
    servers: Store[RemoteServer] = field(default_factory=Store)


class Outlets:
    """Writes for one node."""

    def __init__(
        self,
        client: KubeClient,
        name: str,
        caches: Caches,
        *,
        profiles: Profiles,
        events: EventRecorder,
        metrics: OccupancyMetrics,
    ) -> None:
        self._client = client
        self._name = name
        self._caches = caches
        self._profiles = profiles
        self._events = events
        self._metrics = metrics
        self._announced: set[Key] = set()

    def ready(self, rounds: int) -> bool:
        """True once the node's own objects are known: before, nobody knows what an earlier life kept out.

        A cluster without the kind RemoteServer is waited for during a few `rounds`, and then has none.
        """
        return self._caches.nodes.synced and (self._caches.servers.synced or rounds >= _PATIENCE)

    @property
    def server(self) -> RemoteServer | None:
        """The node's RemoteServer; None when the node serves no cards."""
        return self._caches.servers.get(self._name)

    def kept_out(self) -> frozenset[str]:
        """Ids of cards that are kept from new work by what was written before."""
        node, server = self._caches.nodes.get(self._name), self.server
        cordoned = node_object.before(node).own if node else ()
        told = [entry.card for entry in server.spec.observed if entry.state == State.HOST] if server else []
        return frozenset((*cordoned, *told))

    async def publish(
        self, standings: Mapping[Key, Standing], *, complete: bool, looked: str, now: str
    ) -> None:
        """Write everything that is news. `looked` and `now` are RFC 3339: when the scan began, and after it."""
        listed = tuple(standings.values())
        node = self._caches.nodes.get(self._name)
        await self._write(Sink.SERVER, self._tell_server(listed, looked=looked, now=now))
        if node is not None:
            self._announce(node, standings)
            await self._write(Sink.NODE, node_object.publish(self._client, node, listed, complete=complete))
        uid = node.metadata.uid if node else ""
        await self._write(Sink.PROFILES, self._profiles.publish(listed, node_uid=uid))

    async def take_back(self) -> None:
        """Undo everything that was ever published of this node. Raises KubeError; safe to repeat."""
        await self._profiles.take_back()
        with suppress(NotFound):
            body = await self._client.get(NODES.path(name=self._name))
            await node_object.publish(self._client, msgspec.json.decode(body, type=Node), (), complete=False)
        with suppress(NotFound):
            nothing = {"spec": {"observed": None, "seen": None}}
            await self._client.patch(REMOTE_SERVERS.path(name=self._name), nothing, kind=PatchKind.MERGE)

    def keep_quiet(self, keys: frozenset[Key]) -> None:
        """These cards were announced in an earlier life."""
        self._announced |= keys

    async def _write(self, sink: Sink, writing: Awaitable[None]) -> None:
        try:
            await writing
        except KubeError as error:
            self._metrics.failed(sink)
            log.warning("not written, again after the next scan", sink=sink.value, error=str(error))

    async def _tell_server(self, standings: Sequence[Standing], *, looked: str, now: str) -> None:
        server = self.server
        if server is None:
            return
        patch = observed.change(server, observed.observed(standings, server, now), looked)
        if patch is not None:
            with suppress(NotFound):
                await self._client.patch(REMOTE_SERVERS.path(name=self._name), patch, kind=PatchKind.MERGE)

    def _announce(self, node: Node, standings: Mapping[Key, Standing]) -> None:
        """An event on the node when a host process comes to a card."""
        held = {key for key, standing in standings.items() if standing.excluded}
        for key in held - self._announced:
            self._events.emit(
                ObjectRef("v1", "Node", node.metadata.name, uid=node.metadata.uid),
                reason="CardHostHeld",
                message=_sentence(standings[key]),
                type_="Warning",
            )
        self._announced = held


def _sentence(standing: Standing) -> str:
    card, holders = standing.verdict.card, standing.verdict.holders
    hosts = [f"{h.command} (pid {h.pid})" for h in holders if h.managed is Managed.HOST]
    return f"card {card.id} ({card.kernel_name}) is held outside Kubernetes by {', '.join(hosts)}"
