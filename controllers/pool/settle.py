"""Keeps each `RemoteServer` true: its cards follow the node, its allocations follow the pods."""

from datetime import timedelta

import msgspec
import structlog

from controllers.pool import ledger, register, servers
from controllers.pool.census import Witnesses
from controllers.pool.fresh import BELIEVED_S
from controllers.pool.ledger import DrainRules, Fate, Scene
from controllers.pool.servers import Allocation, Inventory, InventoryRules, Phase, RemoteServer
from controllers.pool.shared import Shared
from controllers.pool.writer import ServerWriter
from controllers.runtime import After, Done, Outcome, Retry
from service import names
from service.kube.errors import NotFound
from service.kube.events import EventRecorder, ObjectRef
from service.kube.resources import PODS
from service.kube.store import Store
from service.objects import Node, Pod

log = structlog.get_logger(__name__)

# A draining card is looked at again this often; the agent's own look comes every 15 s.
_DRAIN_LOOK_S = 5.0


# Index of the node store: ids of the cards that server nodes register.
CARD_INDEX = "card"

_decode = msgspec.json.Decoder(Pod).decode


def registered_ids(node: Node) -> frozenset[str]:
    """The ids that a server node registers; none for other nodes and for annotations that cannot be read."""
    if not servers.is_server(node):
        return frozenset()
    try:
        listed = register.decode(node.metadata.annotations.get(names.NODE_REGISTER, ""))
    except register.RegisterError:
        return frozenset()
    return frozenset(card.id for card in listed.cards)


class Settler:
    """Reconciles one server by name. Everything it decides is in `ledger.settle`; this is the shell around it."""

    def __init__(
        self, shared: Shared, writer: ServerWriter, *, nodes: Store[Node], events: EventRecorder
    ) -> None:
        settings = shared.settings
        self._client = shared.client
        self._writer = writer
        self._book = shared.book
        self._pods = shared.pods
        self._nodes = nodes
        self._events = events
        self._witnesses = Witnesses(shared)
        self._metrics = shared.metrics
        self._clock = shared.clock
        self._inventory_rules = InventoryRules(
            settings.remote_mode, settings.lupine_port, settings.local_resources
        )
        self._drain_rules = DrainRules(
            timedelta(seconds=settings.cool_down_s), timedelta(seconds=settings.silent_agent_s)
        )
        self._problems: dict[str, tuple[str, ...]] = {}
        self._warned: dict[str, str] = {}

    async def reconcile(self, name: str) -> Outcome:
        """Bring one server's object up to date."""
        node = self._nodes.get(name)
        serves = node is not None and servers.is_server(node)
        server = self._book.get(name)
        if server is None:
            if not serves:
                return Done()
            server = await self._writer.create(name)
            if server is None:
                return Retry("the object was made and removed again")
        inventory = self._inventory(node, server) if node and serves else Inventory()
        self._report(node, inventory)
        await self._witnesses.hear(server)
        await self._look_up_unknown(server)
        status = ledger.settle(server, self._scene(name, inventory))
        if status != server.status:
            swapped = await self._writer.swap(server, status)
            if swapped is None:
                return Retry("somebody else wrote first")
            server = swapped
        return await self._finish(server, serves=serves)

    async def _finish(self, server: RemoteServer, *, serves: bool) -> Outcome:
        if not serves and not server.status.allocations:
            await self._writer.remove(server)
            return Done()
        draining = any(item.phase == Phase.DRAINING for item in server.status.allocations)
        if draining:
            return After(_DRAIN_LOOK_S)
        unheard = any(self._pods.unheard(item.pod_uid) for item in server.status.allocations)
        return After(BELIEVED_S) if unheard else Done()

    def _scene(self, name: str, inventory: Inventory) -> Scene:
        return Scene(inventory, self._pods.fate, self._pods.witnesses(name), self._drain_rules, self._clock())

    def _inventory(self, node: Node, server: RemoteServer) -> Inventory:
        elsewhere = {card for card in registered_ids(node) if len(self._nodes.by_index(CARD_INDEX, card)) > 1}
        return servers.inventory(
            node, observed=server.spec.observed, elsewhere=elsewhere, rules=self._inventory_rules
        )

    async def _look_up_unknown(self, server: RemoteServer) -> None:
        """Ask the API server about pods that the cache has not shown: absence there is no evidence."""
        for uid in {a.pod_uid for a in server.status.allocations if self._pods.fate(a) is Fate.UNKNOWN}:
            allocation = server.of_pod(uid)[0]
            if not await self._exists(allocation):
                self._pods.end(uid, placed=True)

    async def _exists(self, allocation: Allocation) -> bool:
        try:
            raw = await self._client.get(PODS.path(allocation.namespace, allocation.name))
        except NotFound:
            return False
        return _decode(raw).metadata.uid == allocation.pod_uid

    def _report(self, node: Node | None, inventory: Inventory) -> None:
        """One event and one count each time a node's problems or warning change."""
        if node is None:
            return
        name = node.metadata.name
        if self._problems.get(name, ()) != inventory.problems:
            self._problems[name] = inventory.problems
            if inventory.problems:
                self._metrics.bad_registers.inc()
                self._warn(node, "CardsNotUsable", "; ".join(inventory.problems)[:900])
        if self._warned.get(name, "") != inventory.warning:
            self._warned[name] = inventory.warning
            if inventory.warning:
                self._warn(node, "CardsOfferedTwice", inventory.warning)

    def _warn(self, node: Node, reason: str, sentence: str) -> None:
        log.warning("trouble with the cards of a server node", node=node.metadata.name, problem=sentence)
        ref = ObjectRef("v1", "Node", node.metadata.name, uid=node.metadata.uid)
        self._events.emit(ref, reason=reason, message=sentence, type_="Warning")
