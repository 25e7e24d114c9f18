"""What /proc shows: who has a device node open, and who a process is. Blocking calls, made by the walker's threads.

The path behind a descriptor is the holder's own (renamed, deleted, in another mount namespace), so device numbers are
compared. Nothing is opened but folders and texts of /proc.
"""

import os
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from controllers.occupancy.cards import DeviceNumber
from controllers.occupancy.cgroups import UNREADABLE, classify
from controllers.occupancy.processes import (
    Described,
    Missing,
    Process,
    Stat,
    base_name,
    parse_stat,
    runs_script,
)
from controllers.occupancy.statx import Statx, raw

# Bytes of one text; the longest are argument lists, and the mounts of a node with hundreds of pods.
_TEXT_LIMIT = 1_048_576
# The second thread of the kernel, in the initial pid namespace only (kernel/fork.c, kthreadd).
KTHREADD = 2
_LINKS_OF_ONE_THREAD = 3
# Names of the first descriptors, made once; who has more of them is looked at by his list from there on.
_FIRST = tuple(str(number).encode() for number in range(1024))


@dataclass(frozen=True, slots=True)
class OpenDevices:
    """The wanted device numbers that a process has open; `start` tells it from a later process of the same id."""

    start: int
    numbers: frozenset[DeviceNumber]


DENIED = Missing.UNREADABLE


def read_text(path: str | Path) -> str | None:
    """The text of a small file; None when it is not there or may not be read."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - called for every process: a path object adds nothing
            return file.read(_TEXT_LIMIT).decode(errors="replace")
    except OSError:
        return None


def pids(proc: Path) -> list[int]:
    """All processes that can be seen. Raises OSError when `proc` is not a proc file system."""
    listed = os.listdir(proc)  # noqa: PTH208 - names are wanted, not paths
    return sorted(int(name) for name in listed if name.isdecimal() and name.isascii())


def stat(proc: Path, pid: int) -> Stat | None:
    """The process's state; None when it is gone."""
    text = read_text(f"{proc}/{pid}/stat")
    return parse_stat(text) if text else None


def device_visitor(
    proc: Path, wanted: Collection[DeviceNumber]
) -> Callable[[int], OpenDevices | Missing | None]:
    """A visit that answers with the wanted numbers a process has open, DENIED, or None for neither."""
    look = Statx()
    numbers = {raw(number): number for number in wanted}

    def visit(pid: int) -> OpenDevices | Missing | None:
        try:
            held = _open_numbers(f"{proc}/{pid}/fd", look, numbers)
            state = stat(proc, pid) if held or (held is None and _has_threads(f"{proc}/{pid}")) else None
            if state is not None and held is None and state.leader_is_dead:
                held = _numbers_of_threads(f"{proc}/{pid}/task", look, numbers)
        except PermissionError:
            state = stat(proc, pid)
            return None if state is None or state.kernel_thread else DENIED
        return OpenDevices(state.start, frozenset(held)) if state is not None and held else None

    return visit


def _has_threads(folder: str) -> bool:
    """False for a process that surely has one thread only, such as each of the kernel: it has no second list of files.

    The folder `task` has two links and one for each thread (fs/proc/base.c, proc_task_getattr).
    """
    try:
        found = os.stat(f"{folder}/task")  # noqa: PTH116 - asked of every thread of the kernel, hundreds on a node
    except OSError:
        return True
    return found.st_nlink != _LINKS_OF_ONE_THREAD


def _open_numbers(folder: str, look: Statx, wanted: Mapping[int, DeviceNumber]) -> set[DeviceNumber] | None:
    """The wanted numbers below an fd folder; None when nothing is open (any more), as with a dead main thread.

    Raises PermissionError when the process may not be looked at.
    """
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:
        raise
    except OSError:
        return None
    try:
        return _numbers_of(handle, look, wanted)
    except PermissionError:
        raise
    except OSError:
        return None
    finally:
        os.close(handle)


def _numbers_of(handle: int, look: Statx, wanted: Mapping[int, DeviceNumber]) -> set[DeviceNumber] | None:
    """The same for an open folder.

    Most processes have descriptors 0 to n-1 and no other, so a list of them is made only for those with holes: that is
    a third of a scan's cost. The folder's size is n since Linux 6.2 (proc_pid_fd(5)), and 0 before.
    """
    found: set[DeviceNumber] = set()
    count = os.fstat(handle).st_size
    there = look.devices(handle, _FIRST[:count], wanted, found)
    if there == count > 0:
        return found
    listed = os.listdir(handle)
    rest = [name.encode() for name in listed if int(name) >= there]
    while rest:
        rest = rest[look.devices(handle, rest, wanted, found) + 1 :]
    return found if listed else None


def _numbers_of_threads(folder: str, look: Statx, wanted: Mapping[int, DeviceNumber]) -> set[DeviceNumber]:
    held: set[DeviceNumber] = set()
    with suppress(FileNotFoundError, ProcessLookupError):
        for thread in Path(folder).iterdir():
            held |= _open_numbers(f"{thread}/fd", look, wanted) or set()
    return held


def describe_visitor(proc: Path) -> Callable[[int], Described]:
    """A visit that answers who a process is."""
    look = Statx()
    root = read_text(f"{proc}/{KTHREADD}/cgroup") or ""

    def visit(pid: int) -> Described:
        before = stat(proc, pid)
        if before is None:
            return Missing.GONE if not os.path.lexists(f"{proc}/{pid}") else Missing.UNREADABLE
        if before.is_dead:
            return Missing.GONE
        cgroup = read_text(f"{proc}/{pid}/cgroup")
        executable = _executable(proc, pid)
        owner = look.owner(os.fsencode(f"{proc}/{pid}/exe")) if executable else None
        command = base_name(executable) or base_name(before.comm)
        process = Process(
            pid=pid,
            start=before.start,
            parent=before.parent,
            group=before.group,
            command=command,
            placement=UNREADABLE if cgroup is None else classify(cgroup, root=root),
            script=_script(proc, pid, before) if owner == 0 and runs_script(command) else "",
            trusted=owner == 0,
        )
        after = stat(proc, pid)
        return process if after is not None and after.start == before.start else Missing.GONE

    return visit


def _executable(proc: Path, pid: int) -> str:
    try:
        return str((proc / str(pid) / "exe").readlink())
    except OSError:
        return ""


def _script(proc: Path, pid: int, state: Stat) -> str:
    """The script of an interpreter that root runs. In state D the read of arguments may not return."""
    if state.state == "D" or _uid(proc, pid) != 0:
        return ""
    arguments = (read_text(f"{proc}/{pid}/cmdline") or "").split("\0")
    return next((base_name(word) for word in arguments[1:] if not word.startswith("-")), "")


def _uid(proc: Path, pid: int) -> int | None:
    """The effective uid (proc_pid_status(5), second number of Uid)."""
    for line in (read_text(f"{proc}/{pid}/status") or "").split("\n"):
        if line.startswith("Uid:"):
            return int(line.split()[2])
    return None
