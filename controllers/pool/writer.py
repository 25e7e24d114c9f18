"""The only place that writes a `RemoteServer`: each write is a compare-and-swap, and each answer enters the book."""

from contextlib import suppress

import msgspec

from controllers.pool.book import Book
from controllers.pool.metrics import PoolMetrics, Write
from controllers.pool.servers import RemoteServer, RemoteServerStatus
from service import names
from service.kube.client import KubeClient
from service.kube.errors import AlreadyExists, Conflict, KubeError, NotFound
from service.kube.resources import REMOTE_SERVERS

_decode = msgspec.json.Decoder(RemoteServer).decode


class ServerWriter:
    """Creates, swaps and removes `RemoteServer` objects. KubeErrors of a write that surely failed are raised."""

    def __init__(self, client: KubeClient, book: Book, metrics: PoolMetrics) -> None:
        self._client = client
        self._book = book
        self._metrics = metrics

    async def swap(self, server: RemoteServer, status: RemoteServerStatus) -> RemoteServer | None:
        """Write `status` if nobody else wrote since `server` was read.

        None when it did not succeed, or when nobody can tell: the book then holds a new reading, and a late
        write of ours is refused by its resourceVersion as soon as anybody else's succeeds.
        """
        body = _manifest(server.name) | {"status": status}
        body["metadata"] = {"name": server.name, "resourceVersion": server.metadata.resource_version}
        try:
            raw = await self._client.replace(
                REMOTE_SERVERS.path(name=server.name, subresource="status"), body
            )
        except KubeError as error:
            if not (error.outcome_unknown or isinstance(error, Conflict | NotFound)):
                raise
            self._metrics.write(Write.UNKNOWN if error.outcome_unknown else Write.CONFLICT)
            await self.read(server.name)
            return None
        self._metrics.write(Write.DONE)
        return self._learned(raw)

    async def read(self, name: str) -> RemoteServer | None:
        """A consistent read of one object into the book; None when there is none."""
        try:
            return self._learned(await self._client.get(REMOTE_SERVERS.path(name=name)))
        except NotFound:
            if known := self._book.get(name):
                self._book.forget(known)
            return None

    async def create(self, name: str) -> RemoteServer | None:
        """Make the object of a node; somebody else may have been first, then his is read."""
        try:
            return self._learned(await self._client.create(REMOTE_SERVERS.path(), _manifest(name)))
        except AlreadyExists:
            return await self.read(name)

    async def remove(self, server: RemoteServer) -> None:
        """Delete the object if it is still as it was read. A Conflict is raised: somebody gave a card away."""
        with suppress(NotFound):
            await self._client.delete(
                REMOTE_SERVERS.path(name=server.name),
                uid=server.metadata.uid,
                resource_version=server.metadata.resource_version,
            )
        self._book.forget(server)

    def _learned(self, raw: bytes) -> RemoteServer:
        server = _decode(raw)
        self._book.learn(server, fresh=True)
        return server


def _manifest(name: str) -> dict[str, object]:
    return {
        "apiVersion": f"{names.GROUP}/{names.VERSION}",
        "kind": REMOTE_SERVERS.kind,
        "metadata": {"name": name},
    }
