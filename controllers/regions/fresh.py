"""Removal of region files, so that the next container process starts with fresh regions.

Two processes of one container on two inodes is the worst that can happen to a region: each would grant the whole
budget. So a file goes only when nobody can be on its old inode, and four guards of different kinds say so:

1. the container is dead (the caller found that no mount namespace has the folder);
2. the kernel grants a write lease: nobody has the file open or mapped. From here on a newcomer waits in open(2);
3. the init lock is free, and no process of the pod shows the file among its maps or descriptors;
4. the file is first renamed, then the caller is asked again whether the container is dead, and the kernel whether
   somebody waits for the lease. Whoever had found the old name waits by now, and then the file gets its name back.
"""

import errno
import os
import secrets
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from controllers.regions import locks, safefs, syscalls
from controllers.regions.layout import Kind
from controllers.regions.safefs import FileId, Folder, Reason, RefusedError

# Names of files on their way out; what a killed agent left under such a name is removed the next time.
PARKED_PREFIX: Final = ".tenure-"
_INIT_LOCK: Final = {Kind.SM: locks.WHOLE_FILE, Kind.VMEM: locks.INIT_BYTE}

# Which of these files some process of the pod has open or mapped.
Users = Callable[[Collection[FileId]], Collection[FileId]]


class Outcome(StrEnum):
    """What became of a region file."""

    REMOVED = "removed"
    ABSENT = "absent"
    IN_USE = "in_use"


Outcomes = dict[Kind, Outcome | RefusedError]


@dataclass(frozen=True, slots=True)
class _Unused:
    """A region file under our lease and its init lock."""

    leaf: Folder
    name: str
    parked: str
    file: FileId
    lease: locks.Lease


def remove(leaves: Mapping[Kind, Folder], *, deserted: Callable[[], bool], users: Users) -> Outcomes:
    """Remove the region files of a dead container from their folders, if nobody uses them; what became of each.

    `deserted` finds the container dead, again, while a newcomer would be seen. `sm_node.lock` stays: locks are held on
    its inode. A RefusedError stands for what is not a regular file with one name.
    """
    outcomes: Outcomes = {}
    with ExitStack() as stack:
        unused: dict[Kind, _Unused] = {}
        for kind, leaf in leaves.items():
            found = _claim(stack, leaf, kind)
            if isinstance(found, _Unused):
                unused[kind] = found
            else:
                outcomes[kind] = found
        used = users([claim.file for claim in unused.values()]) if unused else ()
        free = {kind: claim for kind, claim in unused.items() if claim.file not in used}
        return {**outcomes, **dict.fromkeys(unused, Outcome.IN_USE), **_take_away(free, deserted)}


def _claim(stack: ExitStack, leaf: Folder, kind: Kind) -> _Unused | Outcome | RefusedError:
    try:
        _remove_parked(leaf)
        fd = stack.enter_context(leaf.regular(kind.file_name, size=None, write=True))
        lease = stack.enter_context(_lease(fd))
        stack.enter_context(locks.held(fd, _INIT_LOCK[kind], write=True))
    except FileNotFoundError:
        return Outcome.ABSENT
    except locks.BusyError:
        return Outcome.IN_USE
    except RefusedError as refusal:
        return refusal
    parked = f"{PARKED_PREFIX}{secrets.token_hex(8)}"
    return _Unused(leaf, kind.file_name, parked, safefs.file_id(fd), lease)


def _lease(fd: int) -> locks.Lease:
    try:
        return locks.Lease(fd)
    except OSError as error:
        raise RefusedError(Reason.FILE_SYSTEM, f"no lease on this file system: {error.strerror}") from error


def _take_away(claims: Mapping[Kind, _Unused], deserted: Callable[[], bool]) -> dict[Kind, Outcome]:
    parked = {kind: claim for kind, claim in claims.items() if claim.lease.undisturbed and _renamed(claim)}
    dead = bool(parked) and deserted()
    return {kind: _finish(claim, dead=dead) for kind, claim in parked.items()}


def _finish(claim: _Unused, *, dead: bool) -> Outcome:
    if dead and claim.lease.undisturbed and claim.leaf.has(claim.parked, claim.file):
        os.unlink(claim.parked, dir_fd=claim.leaf.fd)
        return Outcome.REMOVED
    if not _renamed(claim, back=True):
        with suppress(FileNotFoundError):  # a newcomer made a new file in these microseconds: that one counts
            os.unlink(claim.parked, dir_fd=claim.leaf.fd)
    return Outcome.IN_USE


def _renamed(claim: _Unused, *, back: bool = False) -> bool:
    old, new = (claim.parked, claim.name) if back else (claim.name, claim.parked)
    try:
        syscalls.rename_new(claim.leaf.fd, old, new)
    except (FileExistsError, FileNotFoundError):
        return False
    return True


def _remove_parked(leaf: Folder) -> None:
    for name in leaf.names():
        if name.startswith(PARKED_PREFIX):
            try:
                os.unlink(name, dir_fd=leaf.fd)
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.EISDIR, errno.EPERM):
                    raise
