"""System calls that Python's os module lacks. Each raises OSError as os functions do."""

import ctypes
import os
from functools import cache
from typing import Final

_libc: Final = ctypes.CDLL(None, use_errno=True)

# openat2(2) has this number on every architecture; the C library has no function for it.
_OPENAT2: Final = 437
RESOLVE_NO_XDEV: Final = 0x01
RESOLVE_NO_SYMLINKS: Final = 0x04
RESOLVE_BENEATH: Final = 0x08

MS_RDONLY: Final = 1
MS_NOSUID: Final = 2
MS_NODEV: Final = 4
MS_NOEXEC: Final = 8
MS_REMOUNT: Final = 32
MS_BIND: Final = 4096
MNT_DETACH: Final = 2

_RENAME_NOREPLACE: Final = 1


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def openat2(directory: int, path: str, *, flags: int, resolve: int) -> int:
    """Open `path` beneath the directory handle; a descriptor that closes on exec."""
    how = _how(flags | os.O_CLOEXEC, resolve)
    return _checked(
        _libc.syscall(_OPENAT2, directory, os.fsencode(path), ctypes.byref(how), ctypes.sizeof(how)), path
    )


@cache
def _how(flags: int, resolve: int) -> _OpenHow:
    """The kernel only reads it, and there are a handful."""
    return _OpenHow(flags, 0, resolve)


def rename_new(directory: int, source: str, target: str) -> None:
    """Rename inside one directory; raises FileExistsError instead of replacing."""
    _checked(
        _libc.renameat2(directory, os.fsencode(source), directory, os.fsencode(target), _RENAME_NOREPLACE),
        target,
    )


def mount(source: str, target: str, *, kind: str = "", flags: int = 0, options: str = "") -> None:
    """Put `source`, or a new file system of a kind, on `target`. Section 2 of the manual, mount."""
    encoded = [os.fsencode(text) or None for text in (source, target, kind)]
    _checked(_libc.mount(*encoded, ctypes.c_ulong(flags), os.fsencode(options) or None), target)


def unmount(target: str, *, flags: int = 0) -> None:
    """Take the topmost mount off `target`, as umount2(2) does."""
    _checked(_libc.umount2(os.fsencode(target), flags), target)


def inotify_open() -> int:
    """A new inotify instance that never blocks."""
    return _checked(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC), "inotify")


def inotify_watch(instance: int, path: str, mask: int) -> int:
    """Watch `path`; the watch's number."""
    return _checked(_libc.inotify_add_watch(instance, os.fsencode(path), ctypes.c_uint32(mask)), path)


def inotify_forget(instance: int, watch: int) -> None:
    """End a watch."""
    _checked(_libc.inotify_rm_watch(instance, watch), "inotify")


def _checked(result: int, path: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
    return result
