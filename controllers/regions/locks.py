"""File locks as the vGPU library takes them, never waited for; and the lease that proves a file unused.

The library locks with open-file-description locks (fcntl F_OFD_SETLK, Linux 3.15): they belong to a descriptor, not
to the process. A tenant can hold any of these locks for ever, so every attempt is bounded.
"""

import errno
import fcntl
import os
import signal
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Self

# struct flock on 64-bit Linux: type, whence, start, length (0: to the end), pid (must be 0).
_FLOCK: Final = struct.Struct("hhxxxxqqixxxx")
WHOLE_FILE: Final = (0, 0)
INIT_BYTE: Final = (0, 1)
# The library holds a device's lock for microseconds: five tries over about 3 ms outlast any honest holder.
TRIES: Final = 5
FIRST_PAUSE_S: Final = 0.0002


class BusyError(Exception):
    """Somebody holds the lock, or has the file open or mapped."""


@contextmanager
def held(fd: int, span: tuple[int, int], *, write: bool = False, tries: int = TRIES) -> Iterator[int]:
    """Hold the lock on `span` (start, length); yields how many tries were lost. Raises BusyError if it stays taken."""
    kind = fcntl.F_WRLCK if write else fcntl.F_RDLCK
    lost = _acquire(fd, kind, span, tries)
    try:
        yield lost
    finally:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _flock(fcntl.F_UNLCK, span))


def taken(fd: int, span: tuple[int, int]) -> bool:
    """True when somebody else holds a lock that conflicts with a write lock on `span`. Who, the kernel does not say."""
    answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _flock(fcntl.F_WRLCK, span))
    return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)


def _acquire(fd: int, kind: int, span: tuple[int, int], tries: int) -> int:
    pause_s = FIRST_PAUSE_S
    for lost in range(tries):
        try:
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _flock(kind, span))
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
        else:
            return lost
        if lost + 1 < tries:
            time.sleep(pause_s)
            pause_s *= 2
    raise BusyError(f"the lock at byte {span[0]} stays taken")


def _flock(kind: int, span: tuple[int, int]) -> bytes:
    return _FLOCK.pack(kind, os.SEEK_SET, *span, 0)


class Lease:
    """A write lease: the kernel grants it only while nobody else has the file open or mapped (fcntl F_SETLEASE).

    While it is held a newcomer waits inside open(2), and `undisturbed` turns False; it waits until the lease ends, at
    most /proc/sys/fs/lease-break-time (45 s), so the holder must be quick.
    """

    def __init__(self, fd: int) -> None:
        """Take it. Raises BusyError when the file is in use, OSError when the file system knows no leases."""
        self._fd = fd
        # The default signal of a broken lease, SIGIO, would end the process; SIGURG is ignored by default.
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
        try:
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        except BlockingIOError:
            raise BusyError("the file is open or mapped") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        fcntl.fcntl(self._fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)

    @property
    def undisturbed(self) -> bool:
        """Nobody waits to open the file."""
        return fcntl.fcntl(self._fd, fcntl.F_GETLEASE) == fcntl.F_WRLCK
