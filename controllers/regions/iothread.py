"""One thread for everything that blocks: mounts, region files, /proc.

One, because it keeps two operations from meeting in one folder, and their order is the order of the calls.
"""

import asyncio
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

# Seconds. Each operation takes milliseconds; kubelet gives a call two minutes.
DEADLINE_S: Final = 60.0


# Nice value. The agent works for milliseconds, but then on time: after its end a container is back within half a
# second, also on a node whose processors have more work than they can do.
NICE: Final = -10


def come_first() -> None:
    """Let the calling thread, and those it starts from now on, come before others.

    The loop's thread needs it too: the threads of a Python process wait for each other.
    """
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)


class IoThread:
    """`await io(function, ...)` runs it in the thread. Raises TimeoutError when the thread hangs in the kernel."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(
            max_workers=1, thread_name_prefix="regions", initializer=come_first
        )
        self._busy_since: float | None = None

    async def __call__(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What `work` returns or raises. A call whose caller gave up still runs to its end."""

        def timed() -> T:
            self._busy_since = time.monotonic()
            try:
                return work(*args, **kwargs)
            finally:
                self._busy_since = None

        async with asyncio.timeout(DEADLINE_S):
            return await asyncio.get_running_loop().run_in_executor(self._executor, timed)

    @property
    def hangs(self) -> str | None:
        """A sentence when one operation has taken longer than any may."""
        since = self._busy_since
        if since is None or time.monotonic() - since < DEADLINE_S:
            return None
        return f"an operation on the node's files hangs for {time.monotonic() - since:.0f} s"

    def close(self) -> None:
        """Let what runs come to its end, start nothing more, wait for nobody."""
        self._executor.shutdown(wait=False, cancel_futures=True)
