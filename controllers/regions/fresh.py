"""Removal of a region file, so that the next container process starts with a fresh region.

Two processes of one container on two inodes is the worst that can happen to a region: each would grant the whole
budget. So the file goes only when nobody can be on its old inode, and four guards of different kinds say so:

1. the container is dead (the caller's finding: no mount namespace has the folder);
2. the kernel grants a write lease: nobody has the file open or mapped. From here on a newcomer waits in open(2);
3. the init lock is free, and no process shows the file among its maps or descriptors;
4. the file is first renamed, then the caller's finding and the lease are asked again. Whoever had found the old name
   is waiting for the lease by now, and then the file gets its name back.
"""

import errno
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from typing import Final

from controllers.regions import locks, safefs, syscalls
from controllers.regions.layout import Kind
from controllers.regions.safefs import FileId, Folder, Reason, RefusedError

# Names of files on their way out; what a killed agent left under such a name is removed the next time.
PARKED_PREFIX: Final = ".tenure-"
_INIT_LOCK: Final = {Kind.SM: locks.WHOLE_FILE, Kind.VMEM: locks.INIT_BYTE}


class Outcome(StrEnum):
    """What became of a region file."""

    REMOVED = "removed"
    ABSENT = "absent"
    IN_USE = "in_use"


def remove(
    leaf: Folder,
    kind: Kind,
    *,
    deserted: Callable[[], bool],
    users: Callable[[FileId], list[int]],
) -> Outcome:
    """Remove a region's file from its folder if nobody uses it. `sm_node.lock` stays: its inode is the lock.

    `deserted` finds the container dead, `users` finds processes that have a file open or mapped.
    Raises RefusedError for anything that is not a regular file with one name.
    """
    _remove_parked(leaf)
    try:
        with leaf.regular(kind.file_name, size=None, write=True) as fd, _unused(fd, kind, users) as lease:
            return _take_away(leaf, kind.file_name, fd, lambda: deserted() and lease.undisturbed)
    except FileNotFoundError:
        return Outcome.ABSENT
    except locks.BusyError:
        return Outcome.IN_USE


@contextmanager
def _unused(fd: int, kind: Kind, users: Callable[[FileId], list[int]]) -> Iterator[locks.Lease]:
    with ExitStack() as stack:
        try:
            lease = stack.enter_context(locks.Lease(fd))
        except OSError as error:
            raise RefusedError(
                Reason.FILE_SYSTEM, f"no lease on this file system: {error.strerror}"
            ) from error
        stack.enter_context(locks.held(fd, _INIT_LOCK[kind], write=True))
        if users(safefs.file_id(fd)):
            raise locks.BusyError("a process has the file open or mapped")
        yield lease


def _take_away(leaf: Folder, name: str, fd: int, still_unused: Callable[[], bool]) -> Outcome:
    if not still_unused():
        return Outcome.IN_USE
    parked = f"{PARKED_PREFIX}{secrets.token_hex(8)}"
    syscalls.rename_new(leaf.fd, name, parked)
    if leaf.has(parked, safefs.file_id(fd)) and still_unused():
        os.unlink(parked, dir_fd=leaf.fd)
        return Outcome.REMOVED
    _put_back(leaf, parked, name)
    return Outcome.IN_USE


def _put_back(leaf: Folder, parked: str, name: str) -> None:
    try:
        syscalls.rename_new(leaf.fd, parked, name)
    except FileExistsError:
        os.unlink(parked, dir_fd=leaf.fd)  # a newcomer made a new file in these microseconds; that one counts


def _remove_parked(leaf: Folder) -> None:
    for name in leaf.names():
        if name.startswith(PARKED_PREFIX):
            try:
                os.unlink(name, dir_fd=leaf.fd)
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.EISDIR, errno.EPERM):
                    raise
