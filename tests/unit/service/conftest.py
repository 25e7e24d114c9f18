"""Virtual time: `pytestmark = pytest.mark.asyncio(loop_factories=["virtual"])` runs a module's hours in no time."""

import asyncio
import io
import logging
import selectors
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import structlog
import uvloop

from service import logs


class _Selector(selectors.DefaultSelector):
    """Instead of waiting, moves the clock on by the time it was told to wait."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is None:
            raise RuntimeError("everything waits and nothing is due: this test would hang for ever")
        if not ready and timeout is not None:
            self.now += timeout
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """A loop whose clock starts at zero and jumps to whatever is due next."""

    def __init__(self) -> None:
        self._selector_with_time = _Selector()
        super().__init__(self._selector_with_time)

    def time(self) -> float:
        return self._selector_with_time.now


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    marker = item.get_closest_marker("asyncio")
    chosen: Mapping[str, Any] = marker.kwargs if marker else {}
    if "virtual" in chosen.get("loop_factories", ()):
        return {"virtual": VirtualTimeLoop}
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(autouse=True)
def log_stream() -> Iterator[io.StringIO]:
    """What the test logged, as JSON lines. (Unconfigured, structlog prints every local variable of a traceback.)"""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    logs.configure(stream=stream)
    yield stream
    structlog.reset_defaults()
    logging.captureWarnings(capture=False)
    root.handlers[:], root.level = handlers, level
