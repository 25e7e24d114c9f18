"""Which processes are in which containers, and which of them use a file. Read from /proc of the host pid namespace.

Facts used (proc(5), observed on ext4, tmpfs and overlayfs): device and inode in /proc/PID/maps equal stat() of the
host's path; the last number of `NSpid` is what getpid() answers inside; a process that ended, also a zombie, has no
mounts, maps and descriptors any more.

A process that we may not inspect is not overlooked: it counts for its pod, which /proc/PID/cgroup tells everybody.
"""

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from controllers.regions import mounts
from controllers.regions.names import ContainerId
from controllers.regions.safefs import FileId

# The initial pid namespace has this inode on every kernel (include/linux/proc_ns.h, PROC_PID_INIT_INO).
INITIAL_PID_NAMESPACE: Final = "pid:[4026531836]"
_MAPPED: Final = re.compile(rb"^\S+ \S+ \S+ (\S+) (\d+)", re.MULTILINE)
_NSPID: Final = re.compile(rb"^NSpid:\s+(.*)$", re.MULTILINE)
# Bytes of one read: most files of /proc end within the first.
_PIECE: Final = 65536
_GONE: Final = (FileNotFoundError, ProcessLookupError)

# A folder as every mount namespace knows it: device and path inside that file system, as mountinfo writes them.
MountKey = tuple[str, str]


def sees_every_pod() -> str | None:
    """None when this process is in the host's pid namespace; else what is wrong.

    The namespace's inode is the proof, and that kthreadd is process 2 (decision 10 of the design).
    """
    try:
        namespace = os.readlink("/proc/self/ns/pid")
        second = Path("/proc/2/comm").read_text("utf-8").strip()
    except OSError as error:
        return f"/proc cannot be read: {error.strerror}"
    if namespace == INITIAL_PID_NAMESPACE and second == "kthreadd":
        return None
    return "the agent is not in the host's pid namespace (set hostPID: true); nothing is cleaned"


def pids() -> list[int]:
    """All processes."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def inner_pid(pid: int) -> int | None:
    """What getpid() answers inside the process's own pid namespace; None when it is gone."""
    status = _read(pid, "status")
    found = _NSPID.search(status or b"")
    return int(found[1].split()[-1]) if found else None


def maps(pid: int) -> set[tuple[bytes, bytes]] | None:
    """Device and inode, as text, of everything the process maps; empty when it is gone, None when we may not look."""
    content = _read(pid, "maps")
    return None if content is None else set(_MAPPED.findall(content))


def as_in_maps(file: FileId) -> tuple[bytes, bytes]:
    """A file the way /proc/PID/maps writes it."""
    device, inode = file
    return f"{os.major(device):02x}:{os.minor(device):02x}".encode(), str(inode).encode()


def used(files: Mapping[FileId, str]) -> set[FileId]:
    """Which of the files, each with its pod's uid, a process of that pod maps or has open, or may.

    Only of that pod: to read maps and descriptors of a whole node takes longer than a container needs to come back.
    """
    found: set[FileId] = set()
    for pid in _outside_our_namespace():
        group = _read(pid, "cgroup")
        theirs = [file for file, uid in files.items() if _names(group, uid)]
        if theirs:
            found |= _used_by(pid, theirs)
    return found


def _used_by(pid: int, files: Collection[FileId]) -> set[FileId]:
    mapped, opened = maps(pid), _opened(pid, files)
    if mapped is None or opened is None:
        return set(files)
    return opened | {file for file in files if as_in_maps(file) in mapped}


def _opened(pid: int, files: Collection[FileId]) -> set[FileId] | None:
    try:
        descriptors = os.listdir(f"/proc/{pid}/fd")
    except _GONE:
        return set()
    except PermissionError:
        return None
    return set(files) & {_behind(f"/proc/{pid}/fd/{number}") for number in descriptors}


def _behind(path: str) -> FileId | None:
    try:
        status = os.stat(path)
    except OSError:
        return None  # closed meanwhile, or on a broken mount: not one of ours
    return status.st_dev, status.st_ino


def belongs_to(pid: int, uid: str) -> bool:
    """True when the process may be in a pod: its control group names the pod, or cannot be read."""
    return _names(_read(pid, "cgroup"), uid)


def _names(group: bytes | None, uid: str) -> bool:
    """Kubelet writes the uid with `-` (cgroupfs) or `_` (systemd)."""
    return group is None or uid.encode() in group or uid.replace("-", "_").encode() in group


class LivePids:
    """Answers which pids of a ledger belong to processes that map it.

    Made before the ledger is locked, for reading all of /proc takes milliseconds. Asked under the lock: it looks again
    at every process whose inner pid is in question, and at all that came since. Whoever wrote a record had mapped the
    file before it got the lock, so nobody can be missed.
    """

    def __init__(self, file: FileId, *, uid: str) -> None:
        self._wanted = as_in_maps(file)
        self._uid = uid
        self._inner = {pid: inner_pid(pid) for pid in pids()}

    def __call__(self, asked: Collection[int]) -> set[int]:
        """Those of the `asked` pids, as the container numbers them, whose process maps the file now."""
        return {inner for pid, inner in self._candidates(asked) if self._maps(pid)}

    def _candidates(self, asked: Collection[int]) -> Iterator[tuple[int, int]]:
        for pid in pids():
            inner = self._inner.get(pid) or inner_pid(pid)
            if inner is not None and inner in asked:
                yield pid, inner

    def _maps(self, pid: int) -> bool:
        mapped = maps(pid)
        return belongs_to(pid, self._uid) if mapped is None else self._wanted in mapped


@dataclass(frozen=True, slots=True)
class Inhabitants:
    """Who lives where: the processes of each container that has a region folder in its mount namespace."""

    pids: Mapping[ContainerId, tuple[int, ...]]

    def of(self, container: ContainerId) -> tuple[int, ...]:
        """Processes of a container, oldest number first; empty when the container is dead."""
        return self.pids.get(container, ())


def inhabitants(folders: Mapping[MountKey, ContainerId]) -> Inhabitants:
    """Look into every mount namespace for these folders.

    The host's own namespaces show them too: at their place under the root, and where kubelet has its volumes, in
    copies of the mount table that system services and node daemons keep. A container has them somewhere else. A
    namespace that we may not inspect counts for every container of the pods it belongs to.
    """
    found: dict[ContainerId, list[int]] = {}
    for members in _namespaces().values():
        for container in _seen_by(members, folders):
            found.setdefault(container, []).extend(members)
    return Inhabitants({container: tuple(sorted(members)) for container, members in found.items()})


def _namespaces() -> dict[str, list[int]]:
    """Processes by mount namespace, without our own; each that we may not inspect is a namespace of its own."""
    own = os.readlink("/proc/self/ns/mnt")
    found: dict[str, list[int]] = {}
    for pid in pids():
        try:
            namespace = os.readlink(f"/proc/{pid}/ns/mnt")
        except _GONE:
            continue
        except PermissionError:
            namespace = f"hidden:{pid}"
        if namespace != own:
            found.setdefault(namespace, []).append(pid)
    return found


def _outside_our_namespace() -> Iterator[int]:
    for members in _namespaces().values():
        yield from members


def _seen_by(members: Iterable[int], folders: Mapping[MountKey, ContainerId]) -> set[ContainerId]:
    for pid in members:
        try:
            table = mounts.places(pid)
        except PermissionError:
            return {container for container in folders.values() if belongs_to(pid, container.uid)}
        except OSError:
            continue  # this one ended; another member can tell
        if table:
            return {
                container
                for device, root, point in table
                if (container := folders.get((device, root))) is not None and not _at_home(point, container)
            }
    return set()


def _at_home(point: str, container: ContainerId) -> bool:
    """Where the host itself has the folder: under the root, or among kubelet's volumes of the pod."""
    folder, _, _ = point.rpartition("/")
    return folder.endswith(f"/{container}") or f"/pods/{container.uid}/volume" in point


def _read(pid: int, name: str) -> bytes | None:
    """A file of /proc/PID; empty when the process is gone, None when we may not look."""
    try:
        fd = os.open(f"/proc/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return b"".join(iter(lambda: os.read(fd, _PIECE), b""))
        finally:
            os.close(fd)
    except _GONE:
        return b""
    except PermissionError:
        return None
