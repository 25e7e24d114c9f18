"""Learn at once that a process ended, instead of at the next scan."""

import asyncio
import os
from collections.abc import Callable, Iterable

# Processes that are waited for; a node with more holders is scanned in time anyway.
_MOST = 512


class Ends:
    """Calls `wake` from the loop when a watched process ends."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._handles: dict[int, int] = {}

    def watch(self, pids: Iterable[int]) -> None:
        """Watch exactly these processes. One that is gone already wakes at once."""
        wanted = set(sorted(pids)[:_MOST])
        for pid in self._handles.keys() - wanted:
            self._forget(pid)
        for pid in wanted - self._handles.keys():
            self._follow(pid)

    def close(self) -> None:
        """Watch nobody any more."""
        self.watch(())

    def _follow(self, pid: int) -> None:
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            self._wake()
            return
        except OSError:
            return  # a kernel without pidfd_open(2): the next scan tells
        self._handles[pid] = handle
        asyncio.get_running_loop().add_reader(handle, self._ended, pid)

    def _ended(self, pid: int) -> None:
        self._forget(pid)
        self._wake()

    def _forget(self, pid: int) -> None:
        handle = self._handles.pop(pid)
        asyncio.get_running_loop().remove_reader(handle)
        os.close(handle)
