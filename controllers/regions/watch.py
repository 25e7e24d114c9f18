"""Tells at once when a container's processes have ended, and when somebody came to an empty folder.

While a process of the container is known, its pidfd waits for its end. While none is known and the region folders are
clean, inotify waits for the first file: whoever uses a region must create it. Nothing is polled.
"""

import asyncio
import os
import struct
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from controllers.regions import syscalls
from controllers.regions.names import ContainerId

log = structlog.get_logger(__name__)

_IN_CREATE: Final = 0x100
_EVENT: Final = struct.Struct("iIII")
_READ_BYTES: Final = 65536


class Watch:
    """`changed` is called on the loop with a container that wants to be looked at."""

    def __init__(self, changed: Callable[[ContainerId], None]) -> None:
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._inotify = syscalls.inotify_open()
        self._loop.add_reader(self._inotify, self._created)
        self._armed: dict[ContainerId, list[int]] = {}
        self._by_number: dict[int, ContainerId] = {}
        self._pinned: dict[ContainerId, tuple[int, int]] = {}

    def close(self) -> None:
        """Forget everything."""
        for container in {*self._armed, *self._pinned}:
            self.forget(container)
        self._loop.remove_reader(self._inotify)
        os.close(self._inotify)

    def arm(self, container: ContainerId, folders: Sequence[str]) -> None:
        """Report the next file that is made in one of the folders."""
        self.forget(container)
        for folder in folders:
            try:
                number = syscalls.inotify_watch(self._inotify, folder, _IN_CREATE)
            except (
                OSError
            ) as error:  # the folder is gone, or too many watches: the sweep sees what this misses
                log.debug("folder not watched", container=str(container), error=str(error))
                continue
            self._armed.setdefault(container, []).append(number)
            self._by_number[number] = container

    def pin(self, container: ContainerId, pid: int) -> None:
        """Report the end of this process."""
        if self.pinned(container) == pid:
            return
        self.forget(container)
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:  # it ended in between
            self._loop.call_soon(self._changed, container)
            return
        self._pinned[container] = (pid, descriptor)
        self._loop.add_reader(descriptor, self._ended, container)

    def pinned(self, container: ContainerId) -> int | None:
        """The process whose end is waited for."""
        pid, _ = self._pinned.get(container, (None, -1))
        return pid

    def forget(self, container: ContainerId) -> None:
        """Report nothing more about this container."""
        for number in self._armed.pop(container, ()):
            self._by_number.pop(number, None)
            try:
                syscalls.inotify_forget(self._inotify, number)
            except OSError:
                continue  # the kernel forgot it with its folder
        if container in self._pinned:
            _, descriptor = self._pinned.pop(container)
            self._loop.remove_reader(descriptor)
            os.close(descriptor)

    def known(self) -> set[ContainerId]:
        """Containers that are watched in one way or the other."""
        return {*self._armed, *self._pinned}

    def _ended(self, container: ContainerId) -> None:
        self.forget(container)
        self._changed(container)

    def _created(self) -> None:
        try:
            data = os.read(self._inotify, _READ_BYTES)
        except BlockingIOError:
            return
        offset = 0
        touched = set()
        while offset + _EVENT.size <= len(data):
            number, _, _, length = _EVENT.unpack_from(data, offset)
            offset += _EVENT.size + length
            if number in self._by_number:
                touched.add(self._by_number[number])
        for container in touched:
            self.forget(container)
            self._changed(container)
