"""Consistent reads that callers share: whoever asks while one is under way waits for the next one.

A reading that began before a question may be older than what the question is about, so it does not answer it.
"""

import asyncio
from collections.abc import Awaitable, Callable


class SharedRead:
    """Runs `read`, never twice at once. `read` handles its own failures."""

    def __init__(self, name: str, read: Callable[[], Awaitable[None]]) -> None:
        self._name = name
        self._read = read
        self._running: asyncio.Task[None] | None = None

    async def after_now(self) -> None:
        """Return when a reading that began after this call has ended."""
        before = self._running
        if before is not None and not before.done():
            await asyncio.shield(before)
        if self._running is before:
            self._running = asyncio.create_task(self._run(), name=self._name)
            self._running.add_done_callback(_heard)
        if self._running is not None:
            await asyncio.shield(self._running)

    async def _run(self) -> None:
        await self._read()


def _heard(task: asyncio.Task[None]) -> None:
    """Whoever asked may be cancelled by now; its failure then concerns nobody."""
    if not task.cancelled():
        task.exception()
