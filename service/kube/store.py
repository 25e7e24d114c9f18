"""The objects of one kind as last seen, with indexes, for handlers that want to know every difference.

A change moves one key: the object, its indexes and the handlers, in one synchronous step. So what a handler is told
and what it reads from the store never disagree about that key.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import structlog

from service.objects import KubeObject

log = structlog.get_logger(__name__)


T = TypeVar("T", bound=KubeObject)
IndexFunction = Callable[[T], Iterable[str]]


@dataclass(frozen=True, slots=True)
class Change(Generic[T]):
    """One object as the store knew it and as it is now: `old` None when added, `new` None when deleted.

    `final_state_unknown`: the deletion was missed, so the object may have changed after `old` before it went
    (client-go calls this a tombstone).
    """

    key: str
    old: T | None
    new: T | None
    final_state_unknown: bool = False


Handler = Callable[[Change[T]], None]


class _Index(Generic[T]):
    """Keys by value. Each key's values are kept, so that it can be taken out without asking the function again."""

    def __init__(self, function: IndexFunction[T]) -> None:
        self._function = function
        self._keys: dict[str, dict[str, None]] = {}
        self._values: dict[str, tuple[str, ...]] = {}

    def put(self, key: str, new: T | None) -> None:
        for value in self._values.pop(key, ()):
            keys = self._keys[value]
            del keys[key]
            if not keys:
                del self._keys[value]
        values = tuple(dict.fromkeys(self._function(new))) if new is not None else ()
        for value in values:
            self._keys.setdefault(value, {})[key] = None
        if values:
            self._values[key] = values

    def keys(self, value: str) -> Iterable[str]:
        return self._keys.get(value, ())


class Store(Generic[T]):
    """Objects by `namespace/name` (`name` for cluster-scoped kinds). Only its reflector writes into it."""

    def __init__(self) -> None:
        self._objects: dict[str, T] = {}
        self._indexes: dict[str, _Index[T]] = {}
        self._handlers: list[Handler[T]] = []
        self._synced = False

    @property
    def synced(self) -> bool:
        """True once the first complete list was delivered to every handler; it then stays true."""
        return self._synced

    def __len__(self) -> int:
        return len(self._objects)

    def get(self, key: str) -> T | None:
        """The object of this key, if it is there."""
        return self._objects.get(key)

    def list(self) -> Sequence[T]:
        """Every object, in no promised order."""
        return list(self._objects.values())

    def by_index(self, name: str, value: str) -> Sequence[T]:
        """The objects for which the index gave `value`. Raises KeyError for an index that nobody added."""
        return [self._objects[key] for key in self._indexes[name].keys(value)]

    def add_index(self, name: str, function: IndexFunction[T]) -> None:
        """Index by the values that `function` gives for an object. It must be pure and must not raise."""
        index = _Index(function)
        for key, found in self._objects.items():
            index.put(key, found)
        self._indexes[name] = index

    def subscribe(self, handler: Handler[T]) -> None:
        """Tell `handler` every change from now on, and first all that is here as additions.

        A handler is synchronous and quick: it notes the key and returns. What it raises is logged and counted as
        a bug, and keeps nothing from anybody else.
        """
        self._handlers.append(handler)
        for key, found in list(self._objects.items()):
            _deliver(handler, Change(key, None, found))

    def apply(self, new: T, *, deleted: bool = False) -> int:
        """Take in one watch event. Returns the number of handlers that raised."""
        key = new.metadata.key
        return sum(
            self.commit(change) for change in _event(key, self._objects.get(key), new, deleted=deleted)
        )

    def replace(self, objects: Iterable[T]) -> int:
        """Take in a complete list. Returns the number of handlers that raised."""
        fresh = {found.metadata.key: found for found in objects}
        failures = sum(self.commit(change) for change in self.differences(fresh))
        self.mark_synced()
        return failures

    def differences(self, fresh: Mapping[str, T]) -> Iterator[Change[T]]:
        """The changes that make the store equal to `fresh`, to be committed one by one, deletions first.

        Lazily, so that a caller can pause between them; nobody else may write into the store meanwhile.
        """
        for key, old in list(self._objects.items()):
            if key not in fresh:
                yield Change(key, old, None, final_state_unknown=True)
        for key, new in fresh.items():
            yield from _event(key, self._objects.get(key), new, deleted=False)

    def commit(self, change: Change[T]) -> int:
        """Move one key and tell the handlers. Returns the number of handlers that raised."""
        if change.new is None:
            del self._objects[change.key]
        else:
            self._objects[change.key] = change.new
        for index in self._indexes.values():
            index.put(change.key, change.new)
        return sum(not _deliver(handler, change) for handler in self._handlers)

    def mark_synced(self) -> None:
        """The first complete list has been delivered."""
        self._synced = True


def _event(key: str, old: T | None, new: T, *, deleted: bool) -> Iterator[Change[T]]:
    """What an object that came in changes; a name that was taken over by another object is left and taken again."""
    if old is not None and old.metadata.uid != new.metadata.uid:
        yield Change(key, old, None, final_state_unknown=True)
        old = None
    if deleted:
        if old is not None:
            yield Change(key, old, None)
    elif old is None or old.metadata.resource_version != new.metadata.resource_version:
        yield Change(key, old, new)


def _deliver(handler: Handler[T], change: Change[T]) -> bool:
    try:
        handler(change)
    except Exception:
        log.exception("a store handler raised", key=change.key)
        return False
    return True
