"""Before a pod is rejected, the truth is read: one consistent list of all servers, shared by whoever asks meanwhile.

The scheduler calls `filter` some 11 ms after a gate was removed, and may ask another replica than the one that made
the promise (design decision 3).
"""

from collections.abc import Callable

import msgspec
import structlog

from controllers.pool.book import Book, Promise
from controllers.pool.reading import SharedRead
from controllers.pool.servers import RemoteServer
from service.kube.client import KubeClient
from service.kube.errors import KubeError
from service.kube.resources import REMOTE_SERVERS

log = structlog.get_logger(__name__)


# Seconds after a failed reading in which nobody asks again: an API server that hangs costs one deadline now and then,
# not one for each pod that the scheduler asks about.
PAUSE_S = 1.0


class _List(msgspec.Struct, frozen=True):
    items: list[RemoteServer]


_decode = msgspec.json.Decoder(_List).decode
_decode_one = msgspec.json.Decoder(RemoteServer).decode


class Lookup:
    """Finds a promise in the book, else in a fresh reading. `deadline` and the monotonic `clock` count seconds."""

    def __init__(
        self, client: KubeClient, book: Book, *, deadline: float, clock: Callable[[], float]
    ) -> None:
        self._client = client
        self._book = book
        self._deadline = deadline
        self._clock = clock
        self._reading = SharedRead("consistent read of RemoteServers", self._read)
        self._failure: KubeError | None = None
        self._failed_at = float("-inf")

    async def promise(self, uid: str) -> Promise | None:
        """The promise of a pod; None only after a reading that began after the question.

        Raises the KubeError of a reading that failed: the pod may have a promise that we do not know of.
        """
        known = self._book.promise(uid) or await self._read_for(uid)
        return known if known and known.usable else None

    async def _read_for(self, uid: str) -> Promise | None:
        await self._reading.after_now()
        known = self._book.promise(uid)
        if known is None and self._failure is not None:
            raise self._failure
        return known

    async def confirmed(self, uid: str) -> Promise | None:
        """The promise as the API server has it now, or None when the pod may not be placed on it.

        Raises KubeErrors: a Binding is never made on a promise that nobody could confirm.
        """
        known = await self.promise(uid)
        if known is None:
            return None
        raw = await self._client.get(REMOTE_SERVERS.path(name=known.server.name), deadline=self._deadline)
        self._book.learn(_decode_one(raw), fresh=True)
        known = self._book.promise(uid)
        return known if known and known.usable else None

    async def _read(self) -> None:
        if self._clock() - self._failed_at < PAUSE_S:
            return
        try:
            raw = await self._client.get(REMOTE_SERVERS.path(), deadline=self._deadline)
        except KubeError as error:
            log.warning("servers could not be read before a rejection", error=str(error))
            self._failure, self._failed_at = error, self._clock()
            return
        self._failure = None
        for server in _decode(raw).items:
            self._book.learn(server, fresh=True)
