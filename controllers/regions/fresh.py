"""Removal of region files, so that the next container process starts with fresh regions.

Two processes of one container on two inodes is the worst that can happen to a region: each would grant the whole
budget. So a file goes only when nobody can be on its old inode, and four guards of different kinds say so:

1. the container is dead (the caller found that no mount namespace has the folder);
2. the kernel grants a write lease: nobody has the file open or mapped. From here on a newcomer waits in open(2);
3. the init lock is free, and no process of the pod shows the file among its maps or descriptors;
4. the file is first renamed, then the caller is asked again who is dead, and the kernel whether somebody waits for the
   lease. Whoever had found the old name waits by now, and then the file gets its name back.
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
from controllers.regions.names import ContainerId
from controllers.regions.safefs import FileId, Folder, Reason, RefusedError

# Names of files on their way out; what a killed agent left under such a name is removed the next time.
PARKED_PREFIX: Final = ".tenure-"
_INIT_LOCK: Final = {Kind.SM: locks.WHOLE_FILE, Kind.VMEM: locks.INIT_BYTE}

# A region of a container.
Place = tuple[ContainerId, Kind]
# Which of these files, each with the uid of its pod, some process of that pod has open or mapped.
Users = Callable[[Mapping[FileId, str]], Collection[FileId]]
# Which containers are dead.
Deserted = Callable[[], Collection[ContainerId]]


class Outcome(StrEnum):
    """What became of a region file."""

    REMOVED = "removed"
    ABSENT = "absent"
    IN_USE = "in_use"


@dataclass(frozen=True, slots=True)
class _Unused:
    """A region file under our lease and its init lock."""

    leaf: Folder
    name: str
    parked: str
    file: FileId
    lease: locks.Lease


def remove(
    leaves: Mapping[Place, Folder], *, deserted: Deserted, users: Users
) -> dict[Place, Outcome | RefusedError]:
    """Remove the region files of dead containers from their folders, if nobody uses them; what became of each.

    All at once, for each look at the node's processes takes its time. `deserted` finds the dead again, when a newcomer
    would be seen. `sm_node.lock` stays: locks are held on its inode. A RefusedError stands for what is not a regular
    file with one name.
    """
    outcomes: dict[Place, Outcome | RefusedError] = {}
    with ExitStack() as stack:
        unused: dict[Place, _Unused] = {}
        for place, leaf in leaves.items():
            found = _claim(stack, leaf, place[1])
            if isinstance(found, _Unused):
                unused[place] = found
            else:
                outcomes[place] = found
        free = _without_users(unused, users)
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


def _without_users(claims: Mapping[Place, _Unused], users: Users) -> dict[Place, _Unused]:
    if not claims:
        return {}
    used = users({claim.file: place[0].uid for place, claim in claims.items()})
    return {place: claim for place, claim in claims.items() if claim.file not in used}


def _take_away(claims: Mapping[Place, _Unused], deserted: Deserted) -> dict[Place, Outcome]:
    parked = {place: claim for place, claim in claims.items() if claim.lease.undisturbed and _renamed(claim)}
    dead = deserted() if parked else ()
    return {place: _finish(claim, dead=place[0] in dead) for place, claim in parked.items()}


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
