"""JSON patches (RFC 6902) that apply by construction.

The API server applies a patch to the very object that it sent, and a patch that does not apply fails the request
whatever the failure policy says (apiserver, mutating webhook dispatcher). So an operation is only made by an
editor that knows the state of its list or map, also after the operations before it: a parent is made before its
child, and an index is the index at that moment.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Generic, TypeVar

import msgspec

T = TypeVar("T")


class Operation(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One operation: `add`, `replace` or `remove`."""

    op: str
    path: str
    value: Any = msgspec.UNSET


Patch = list[Operation]


def escape(key: str) -> str:
    """A key as one token of a JSON pointer (RFC 6901, section 3)."""
    return key.replace("~", "~0").replace("/", "~1")


class ListEditor(Generic[T]):
    """A list of the object: `items` is its state after the operations so far."""

    __slots__ = ("_exists", "_patch", "_path", "items")

    def __init__(self, patch: Patch, path: str, items: Iterable[T] | None) -> None:
        self._patch = patch
        self._path = path
        self._exists = items is not None
        self.items: list[T] = list(items or ())

    def insert(self, index: int, item: T) -> None:
        """Put `item` before position `index`."""
        if self._exists:
            self._patch.append(Operation("add", f"{self._path}/{index}", item))
        else:
            self._patch.append(Operation("add", self._path, [item]))
            self._exists = True
        self.items.insert(index, item)

    def append(self, item: T) -> None:
        """Put `item` at the end."""
        self.insert(len(self.items), item)

    def replace(self, index: int, item: T) -> None:
        """Put `item` in the place of the one at `index`."""
        self._patch.append(Operation("replace", f"{self._path}/{index}", item))
        self.items[index] = item

    def remove(self, index: int) -> None:
        """Take out the item at `index`."""
        self._patch.append(Operation("remove", f"{self._path}/{index}"))
        del self.items[index]


class MapEditor:
    """A map of the object with text keys: `entries` is its state after the operations so far."""

    __slots__ = ("_exists", "_patch", "_path", "entries")

    def __init__(self, patch: Patch, path: str, entries: Mapping[str, Any] | None) -> None:
        self._patch = patch
        self._path = path
        self._exists = entries is not None
        self.entries = dict(entries or {})

    def put(self, key: str, value: Any) -> None:
        """Set `key`."""
        if not self._exists:
            self._patch.append(Operation("add", self._path, {key: value}))
            self._exists = True
        elif key not in self.entries or self.entries[key] != value:
            self._patch.append(Operation("add", f"{self._path}/{escape(key)}", value))
        self.entries[key] = value

    def remove(self, key: str) -> None:
        """Take out `key`, which must be there."""
        del self.entries[key]
        self._patch.append(Operation("remove", f"{self._path}/{escape(key)}"))
