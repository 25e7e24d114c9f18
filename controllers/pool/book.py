"""The book: what this replica knows of every server, and who holds what. Sync methods only, no awaits.

It is a reading of the API server, never the truth: a promise made on it counts when the compare-and-swap of the
`RemoteServer` succeeded. Own writes enter at once, so the next decision does not wait for the watch.
"""

from collections import deque
from collections.abc import Callable, Iterator, KeysView
from dataclasses import dataclass

from controllers.pool.fresh import OwnWrites, newer
from controllers.pool.ledger import Witness
from controllers.pool.placement import Offer
from controllers.pool.servers import Allocation, Card, Phase, RemoteServer

# Uids of deleted objects; an answer that is late by more deletions than this has long passed its deadline.
_REMEMBERED_ENDS = 1_000
_USABLE = {Phase.RESERVED, Phase.BOUND}


@dataclass(frozen=True, slots=True)
class Promise:
    """The cards of one pod on one server."""

    server: RemoteServer
    allocations: tuple[Allocation, ...]

    @property
    def usable(self) -> bool:
        """True when the pod may be placed on the word of this promise."""
        return all(item.phase in _USABLE for item in self.allocations)

    @property
    def cards(self) -> tuple[Card, ...]:
        """The cards themselves, by index."""
        ids = {item.card for item in self.allocations}
        return tuple(card for card in self.server.status.cards if card.id in ids)


class Book:
    """Newest known state of each server, with an index by pod uid."""

    def __init__(self, witnesses: Callable[[str], list[Witness]], own: OwnWrites) -> None:
        self._servers: dict[str, RemoteServer] = {}
        self._holders: dict[str, set[str]] = {}
        self._witnesses = witnesses
        self._own = own
        self._gone: deque[str] = deque(maxlen=_REMEMBERED_ENDS)

    def learn(self, server: RemoteServer, *, fresh: bool = False) -> None:
        """Take a reading: `fresh` from an answer to our own call, else from the watch, which may lag behind it.

        An answer may be late as well: the watch has told something newer by then, or that the object is gone.
        """
        meta, known = server.metadata, self._servers.get(server.name)
        if meta.uid in self._gone or (fresh and known is not None and _overtaken(known, server)):
            return
        if fresh:
            self._own.wrote(server.name, meta.resource_version)
        elif self._own.outdated(server.name, meta.resource_version):
            return
        self._unindex(known)
        self._servers[server.name] = server
        for allocation in server.status.allocations:
            self._holders.setdefault(allocation.pod_uid, set()).add(server.name)

    def forget(self, server: RemoteServer) -> None:
        """The object is gone, unless a newer one of the same name is known already."""
        self._gone.append(server.metadata.uid)
        known = self._servers.get(server.name)
        if known and known.metadata.uid == server.metadata.uid:
            self._unindex(self._servers.pop(server.name))

    def _unindex(self, server: RemoteServer | None) -> None:
        if server is None:
            return
        for uid in {allocation.pod_uid for allocation in server.status.allocations}:
            self._holders[uid].discard(server.name)
            if not self._holders[uid]:
                del self._holders[uid]

    def get(self, name: str) -> RemoteServer | None:
        """The newest known state of a server."""
        return self._servers.get(name)

    @property
    def names(self) -> KeysView[str]:
        """Names of all servers, which are the names of their nodes."""
        return self._servers.keys()

    def __contains__(self, name: str) -> bool:
        return name in self._servers

    def __iter__(self) -> Iterator[RemoteServer]:
        return iter(self._servers.values())

    def promise(self, uid: str) -> Promise | None:
        """What a pod holds or is promised, whatever the phase. None when nothing is known."""
        for name in self._holders.get(uid, ()):
            server = self._servers[name]
            return Promise(server, server.of_pod(uid))
        return None

    def offers(self) -> list[Offer]:
        """The pool as placement sees it: free means offered, not allocated, and not claimed by a placed pod."""
        return [self._offer(server) for server in self._servers.values()]

    def _offer(self, server: RemoteServer) -> Offer:
        claimed = {card for witness in self._witnesses(server.name) for card in witness.cards}
        return Offer(
            server.name,
            tuple(card for card in server.free_cards() if card.id not in claimed),
            tuple(card for card in server.status.cards if card.offered),
        )


def _overtaken(known: RemoteServer, reading: RemoteServer) -> bool:
    """Whether we know a later state of the same object."""
    same = known.metadata.uid == reading.metadata.uid
    return same and newer(known.metadata.resource_version, reading.metadata.resource_version)
