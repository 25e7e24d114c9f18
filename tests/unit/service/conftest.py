"""Virtual time: `pytestmark = pytest.mark.asyncio(loop_factories=["virtual"])` runs a module's hours in no time."""

import asyncio
import io
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import structlog
import uvloop

from service import logs
from tests.unit.kube.virtual import VirtualLoop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    marker = item.get_closest_marker("asyncio")
    chosen: Mapping[str, Any] = marker.kwargs if marker else {}
    if "virtual" in chosen.get("loop_factories", ()):
        return {"virtual": VirtualLoop}
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
