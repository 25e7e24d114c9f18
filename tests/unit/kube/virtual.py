"""An event loop whose time jumps to the next timer when nothing is left to do: minutes pass in no time, exactly."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Jumping(selectors.SelectSelector):
    """Never waits: moves the loop's time by what it should have waited."""

    passed = 0.0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready and timeout is not None:
            self.passed += max(0.0, timeout)
        elif not ready:
            raise RuntimeError("the test waits for something that cannot happen")
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """For coroutines without real I/O and without threads."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.passed


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
