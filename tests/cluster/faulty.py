"""`tenure` with a bug: a handler of its caches raises when node `gpu-0` is added to one of them.

Tenure has no bug that a test could count on, so this one is put in. Everything behind it is the product's own: the
store keeps what the handler raised from everybody else, logs it and counts it.
"""

from collections.abc import Callable
from typing import Any

from service.cli import main
from service.kube.store import Change, Store

_subscribe = Store.subscribe


def _raise(change: Change[Any]) -> None:
    if change.key == "gpu-0" and change.old is None:
        raise RuntimeError("a bug that a test put in")


def _subscribe_with_bug(store: Store[Any], handler: Callable[[Change[Any]], None]) -> None:
    _subscribe(store, handler)
    _subscribe(store, _raise)


if __name__ == "__main__":
    Store.subscribe = _subscribe_with_bug  # type: ignore[method-assign, assignment] # the bug
    main()
