"""Waiting for what a cluster does in its own time."""

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Return when `condition` holds. Raises TimeoutError."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - the condition is the cluster's: there is no event to wait for
            await asyncio.sleep(0.02)
