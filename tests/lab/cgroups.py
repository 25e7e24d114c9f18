"""The control groups that hold all programs and containers of the lab's node, in both versions of cgroups.

The kernel keeps the list of what runs in a group, across any crash of ours: it is the record by which the
processes of containers are found and ended.
"""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tests.lab.errors import LabError

NAME = "tenure-lab"
_MOUNTS = Path("/proc/self/mountinfo")
_UNIFIED = Path("/sys/fs/cgroup")
_EMPTY_SECONDS = 10.0  # Killed processes leave within milliseconds; more means the kernel holds them.
_CONTROLLERS = ("cpu", "cpuset", "memory", "pids", "io")  # What kubelet asks of version 2.


def mounts() -> dict[Path, str]:
    """Where control groups are mounted, with the type: `cgroup` (version 1, many) or `cgroup2`."""
    found = {}
    for line in _MOUNTS.read_text().splitlines():
        before, _, after = line.partition(" - ")
        kind = after.split()[0]
        if kind in {"cgroup", "cgroup2"}:
            found[Path(before.split()[4])] = kind
    return found


def is_version_2() -> bool:
    return mounts().get(_UNIFIED) == "cgroup2"


def missing() -> str | None:
    """Why no control group can be made here, None when one can."""
    if not mounts():
        return "no control groups are mounted below /sys/fs/cgroup"
    for folder in _hierarchies():
        if not os.access(folder, os.W_OK):
            return f"the control groups at {folder} are read-only"
    try:
        if is_version_2():
            _delegate(_UNIFIED)
    except LabError as error:
        return str(error)
    return None


def create() -> None:
    """Make the lab's group in every hierarchy, usable for children."""
    for folder in _hierarchies():
        if is_version_2():
            _delegate(folder)
        group = folder / NAME
        group.mkdir(exist_ok=True)
        if is_version_2():
            _delegate(group)
        for setting in (
            "cpuset.cpus",
            "cpuset.mems",
        ):  # Version 1 starts with none, and then nothing may enter.
            if (group / setting).exists() and not is_version_2():
                (group / setting).write_text((folder / setting).read_text())


def programs_group() -> Path:
    """A group for the node's programs and all that they start outside of pods."""
    folders = {folder.name: folder for folder in _hierarchies()}
    folder = folders.get("pids") or folders.get("systemd") or next(iter(folders.values()))
    group = folder / NAME / "programs"
    group.mkdir(parents=True, exist_ok=True)
    return group


def end_all() -> None:
    """Kill every process in the lab's groups and remove the groups."""
    deadline = time.monotonic() + _EMPTY_SECONDS
    while pids := set(_pids()):
        if time.monotonic() > deadline:
            raise LabError(f"processes {sorted(pids)} of the lab's node survive SIGKILL: see their wchan")
        for pid in pids:
            _kill_member(pid)
        time.sleep(0.02)
    for group in _groups():
        _remove(group, deadline)


def _delegate(folder: Path) -> None:
    available = (folder / "cgroup.controllers").read_text().split()
    wanted = " ".join(f"+{name}" for name in _CONTROLLERS if name in available)
    try:
        (folder / "cgroup.subtree_control").write_text(wanted)
    except OSError as error:
        raise LabError(
            f"{folder} hands no controllers to its children ({error.strerror}): run the lab outside of a "
            "container, or move the processes of that group into a child first"
        ) from error


def _hierarchies() -> list[Path]:
    """Where the lab's group must exist: the one hierarchy of version 2, or all of version 1."""
    return [_UNIFIED] if is_version_2() else [path for path, kind in mounts().items() if kind == "cgroup"]


def _groups() -> Iterator[Path]:
    """The lab's groups, children first."""
    for folder in mounts():
        for group, _, _ in os.walk(folder / NAME, topdown=False):
            yield Path(group)


def _pids() -> Iterator[int]:
    for group in _groups():
        with suppress(FileNotFoundError, OSError):
            yield from map(int, (group / "cgroup.procs").read_text().split())


def _kill_member(pid: int) -> None:
    """Kill a process, if it still is in one of the lab's groups once we hold a handle on it."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if f"/{NAME}" in Path(f"/proc/{pid}/cgroup").read_text():
            signal.pidfd_send_signal(handle, signal.SIGKILL)
    except (FileNotFoundError, ProcessLookupError):
        pass  # It ended by itself.
    finally:
        os.close(handle)


def _remove(group: Path, deadline: float) -> None:
    while True:
        try:
            group.rmdir()
        except FileNotFoundError:
            return
        except OSError as error:  # The last process still leaves.
            if time.monotonic() > deadline:
                raise LabError(f"cannot remove the control group {group}: {error.strerror}") from error
            time.sleep(0.02)
        else:
            return
