"""After `helm uninstall`: takes back what agents and server wrote on objects that are not the release's.

It runs when both have lost their rights, so nobody writes it anew. What pods still hold stays on record: a
RemoteServer with cards in somebody's hands is kept, for the Tenure that may come back.
"""

from collections.abc import AsyncIterator, Mapping
from typing import Final

from controllers.claims.taintrules import TaintRules
from controllers.occupancy.labels import Cordon, cordon
from controllers.pool.servers import Phase, RemoteServer
from service import names
from service.kube.client import KubeClient, PatchKind
from service.kube.errors import NotFound
from service.kube.metrics import KubeMetrics
from service.kube.pages import everything
from service.kube.resources import NODES, REMOTE_SERVERS, Resource
from service.metrics import MetricSet
from service.objects import Node, ObjectMeta, Projection
from service.settings import Settings

_LABELS: Final = (names.REGIONS_READY_LABEL, names.HOST_HELD_LABEL)
# Of the profiles that Tenure made; those of another daemon stay.
_OURS: Final = {"labelSelector": "app.kubernetes.io/managed-by=tenure"}


class _Profile(Projection, frozen=True):
    metadata: ObjectMeta


async def clean(settings: Settings) -> list[str]:
    """Do it; a line for each thing that was taken back or kept. Raises KubeError, ConfigError."""
    client = await KubeClient.connect(settings.kube, metrics=KubeMetrics(MetricSet()))
    try:
        await TaintRules(client).settle(())
        steps = (_servers(client), _profiles(client, settings), _nodes(client))
        return [line for step in steps async for line in _where_installed(step)]
    finally:
        await client.close()


async def _where_installed(step: AsyncIterator[str]) -> AsyncIterator[str]:
    try:
        async for line in step:
            yield line
    except NotFound:
        return  # nobody installed this kind


async def _servers(client: KubeClient) -> AsyncIterator[str]:
    async for server in everything(client, REMOTE_SERVERS, RemoteServer):
        held = [item for item in server.status.allocations if item.phase != Phase.DRAINING]
        if held:
            yield f"RemoteServer {server.name} is kept: {', '.join(sorted({item.pod for item in held}))} hold its cards"
        else:
            await _delete(client, REMOTE_SERVERS, server.metadata)
            yield f"RemoteServer {server.name} deleted"


async def _profiles(client: KubeClient, settings: Settings) -> AsyncIterator[str]:
    kind = settings.occupancy.profiles
    resource = Resource(kind.group, kind.version, kind.plural, "AcceleratorProfile", namespaced=False)
    async for profile in everything(client, resource, _Profile, _OURS):
        await _delete(client, resource, profile.metadata)
        yield f"{resource.kind} {profile.metadata.name} deleted"


async def _delete(client: KubeClient, resource: Resource, found: ObjectMeta) -> None:
    try:
        await client.delete(resource.path(name=found.name), uid=found.uid)
    except NotFound:
        return


async def _nodes(client: KubeClient) -> AsyncIterator[str]:
    async for node in everything(client, NODES, Node):
        metadata = taken_back(node)
        if metadata:
            await client.patch(
                NODES.path(name=node.metadata.name), {"metadata": metadata}, kind=PatchKind.MERGE
            )
            keys = sorted(key for values in metadata.values() for key in values)
            yield f"node {node.metadata.name}: {', '.join(keys)} taken back"


def taken_back(node: Node) -> Mapping[str, Mapping[str, str | None]]:
    """The metadata of the merge patch that takes our keys off a node; empty when there are none."""
    labels: dict[str, str | None] = {key: None for key in _LABELS if key in node.metadata.labels}
    notes = node.metadata.annotations
    changed: dict[str, str | None] = {names.RDMA_DEVICES: None} if names.RDMA_DEVICES in notes else {}
    if names.CORDON_OWNED in notes:
        # Entries of the cordon that somebody else put there stay.
        rest = cordon(Cordon.parse(notes.get(names.DEVICE_CORDON), notes[names.CORDON_OWNED]), ())
        changed |= dict(zip((names.DEVICE_CORDON, names.CORDON_OWNED), rest.annotations(), strict=True))
    given: dict[str, Mapping[str, str | None]] = {"labels": labels, "annotations": changed}
    return {name: values for name, values in given.items() if values}
