"""The device number of an open file, without asking the file's server.

Whatever a tenant has open is visited here. A plain stat() of a file on a dead network file system never returns, so
a pod could stop the scan with one open file. statx(2) with AT_STATX_DONT_SYNC answers from what the kernel has.
"""

import ctypes
import os
import stat
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress

from controllers.occupancy.cards import DeviceNumber

# linux/fcntl.h, linux/stat.h
_AT_FDCWD = -100
_AT_STATX_DONT_SYNC = 0x4000
_STATX_TYPE_MODE_UID = 0x1 | 0x2 | 0x8
# struct statx: 256 bytes; stx_uid at byte 20, stx_mode at 28, stx_rdev_major and _minor at 128 and 132.
_SIZE, _UID, _MODE, _RDEV = 256, 20 // 4, 28 // 2, 128 // 8

_statx = ctypes.CDLL(None).statx


def raw(number: DeviceNumber) -> int:
    """A device number as the eight bytes that the kernel writes: one comparison for each open file, and no object."""
    value: int = struct.unpack("=Q", struct.pack("=II", *number))[0]
    return value


class Statx:
    """One buffer, filled again with each call: 100,000 calls per scan. Not for two threads at once."""

    __slots__ = ("_address", "_halves", "_quads", "_words")

    def __init__(self) -> None:
        buffer = (ctypes.c_ubyte * _SIZE)()
        self._address = ctypes.byref(buffer)  # made once: anything else is wrapped anew with each call
        octets = memoryview(buffer).cast("B")
        self._quads, self._words, self._halves = octets.cast("Q"), octets.cast("I"), octets.cast("H")

    def devices(
        self,
        folder: int,
        names: Sequence[bytes],
        wanted: Mapping[int, DeviceNumber],
        found: set[DeviceNumber],
    ) -> int:
        """Add those of the `wanted` numbers that character devices behind the `names` in the open folder have.

        Ends at the first name that is not there; the answer is how many were there before it. `wanted` are numbers by
        their `raw` form. Raises PermissionError when the process may not be looked at: its list of descriptors can then
        be readable all the same.
        """
        call, address, quads = _statx, self._address, self._quads
        for place, name in enumerate(names):
            if call(folder, name, _AT_STATX_DONT_SYNC, _STATX_TYPE_MODE_UID, address):
                _deny(folder, name)
                return place
            if quads[_RDEV] in wanted and stat.S_ISCHR(self._halves[_MODE]):
                found.add(wanted[quads[_RDEV]])
        return len(names)

    def owner(self, path: bytes) -> int | None:
        """The uid of the file behind `path`; None when it cannot be told."""
        if _statx(_AT_FDCWD, path, _AT_STATX_DONT_SYNC, _STATX_TYPE_MODE_UID, self._address):
            return None
        return self._words[_UID]


def _deny(folder: int, name: bytes) -> None:
    """Tell "closed meanwhile" from "denied": a link is read under the same rule, and touches no file system."""
    with suppress(FileNotFoundError):
        os.readlink(name, dir_fd=folder)
