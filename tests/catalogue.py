"""Finding what the modules of a package offer, and choosing one of it by name: for `make bench` and `make prove`."""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import ModuleType


class Named(Protocol):
    """Anything that a person asks for by one of its names."""

    @property
    def names(self) -> tuple[str, ...]:
        """Every name that leads to it."""


T = TypeVar("T")
N = TypeVar("N", bound=Named)


class UnknownNameError(LookupError):
    """Nothing has that name; the message lists the names."""


class DoubleNameError(ValueError):
    """Two things have one name."""


def discover(package: ModuleType, prefix: str, kind: type[T]) -> list[T]:
    """Return every object of type `kind` in the modules `prefix*` of `package`, in the order of their names."""
    names = sorted(
        module.name for module in pkgutil.iter_modules(package.__path__) if module.name.startswith(prefix)
    )
    modules = [importlib.import_module(f"{package.__name__}.{name}") for name in names]
    found = [value for module in modules for value in vars(module).values() if isinstance(value, kind)]
    return list(dict.fromkeys(found))  # A module may import what another one defines.


def choose(items: Sequence[N], only: str | None) -> list[N]:
    """Return the one of `items` that is called `only`, or all of them where that is None.

    Raises:
        UnknownNameError: none of them has the name.
        DoubleNameError: two of them share a name.
    """
    by_name: dict[str, N] = {}
    for name, item in _names(items):
        if name in by_name:
            raise DoubleNameError(f"Two are called {name}: give one of them another name.")
        by_name[name] = item
    if only is None:
        return list(items)
    if only not in by_name:
        raise UnknownNameError(
            f"There is no {only}. There is: {', '.join(sorted(by_name)) or 'nothing yet'}."
        )
    return [by_name[only]]


def _names(items: Iterable[N]) -> Iterable[tuple[str, N]]:
    return ((name, item) for item in items for name in item.names)
