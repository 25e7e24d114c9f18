"""Mounts: what a mount namespace has, and the few that we make.

Each region folder is a small file system in memory (tmpfs) of a fixed size. It bounds what a tenant can fill. A project
quota would not: on ext4 and xfs the owner of a file may move it to another project (ioctl FS_IOC_FSSETXATTR asks for
ownership and the initial user namespace only), and the file system has to be mounted with quotas to begin with. Such a
file system also has a device number of its own, so the files of two containers are never confused, it is gone after a
reboot like the processes it knew, and removing it follows no name that the tenant chose.

Our mounts carry in their source whom they serve, `tenure:NAMESPACE/POD/UID_CONTAINER`: the kernel remembers it for us
over a restart of the agent.
"""

import re
from dataclasses import dataclass
from typing import Final

from controllers.regions import syscalls

SOURCE_PREFIX: Final = "tenure:"
# Regions are data: nothing in them runs, no device opens.
REGION_FLAGS: Final = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC
# A region folder holds two or three files; a tenant that needs more names is up to something.
REGION_INODES: Final = 32
# Four KiB: the frame around a volume holds two empty folders.
FRAME_OPTIONS: Final = "size=4k,nr_inodes=4,mode=0755"

# Fields that every line of mountinfo has, before and after the lone dash.
_LEFT_FIELDS: Final = 6
_RIGHT_FIELDS: Final = 2
# The third to fifth field of a line: hundreds of namespaces are read in the half second before a container is back.
_PLACE: Final = re.compile(r"^\d+ \d+ (\S+) (\S+) (\S+) ", re.MULTILINE)
_ESCAPED: Final = re.compile(r"[ \t\n\\]")
_OCTAL: Final = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """A line of /proc/PID/mountinfo. `root` is the path inside the file system, `point` where it shows."""

    device: str
    root: str
    point: str
    kind: str
    source: str

    @property
    def serves(self) -> str | None:
        """Whom a mount of ours serves, `NAMESPACE/POD/UID_CONTAINER`; None for a mount of others."""
        return self.source.removeprefix(SOURCE_PREFIX) if self.source.startswith(SOURCE_PREFIX) else None


def parse(text: str) -> list[Mount]:
    """All mounts, in the order of the kernel (later ones on top). Format: proc(5), mountinfo."""
    found = []
    for line in text.splitlines():
        left, _, right = line.partition(" - ")
        fields, tail = left.split(" "), right.split(" ")
        if len(fields) >= _LEFT_FIELDS and len(tail) >= _RIGHT_FIELDS:
            found.append(Mount(fields[2], _plain(fields[3]), _plain(fields[4]), tail[0], _plain(tail[1])))
    return found


def own() -> list[Mount]:
    """Mounts in our own namespace."""
    return parse(_table("self"))


def places(pid: int) -> list[tuple[str, str, str]]:
    """Device, root and mount point of every mount in the namespace of a process, as the kernel escapes them.

    Empty when the process is just ending. Raises OSError when it is gone or may not be inspected.
    """
    return _PLACE.findall(_table(pid))


def escaped(text: str) -> str:
    """A path as mountinfo writes it: blanks, tabs, line ends and backslashes in octal (fs/proc_namespace.c)."""
    return _ESCAPED.sub(lambda found: f"\\{ord(found[0]):03o}", text)


def _table(pid: int | str) -> str:
    with open(f"/proc/{pid}/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        return file.read()


def bounded(target: str, *, serves: str, kib: int) -> None:
    """Put a file system of `kib` KiB on `target`, writable for everybody."""
    options = f"size={kib}k,nr_inodes={REGION_INODES},mode=0777"
    syscalls.mount(SOURCE_PREFIX + serves, target, kind="tmpfs", flags=REGION_FLAGS, options=options)


def frame(target: str, *, serves: str) -> None:
    """Put the tiny file system on `target` in which the two region folders show."""
    syscalls.mount(SOURCE_PREFIX + serves, target, kind="tmpfs", flags=REGION_FLAGS, options=FRAME_OPTIONS)


def seal(target: str, *, serves: str) -> None:
    """Make a frame read-only for everybody: what a tenant could write beside the two folders is nobody's."""
    flags = syscalls.MS_REMOUNT | syscalls.MS_RDONLY | REGION_FLAGS
    syscalls.mount(SOURCE_PREFIX + serves, target, flags=flags)


def bind(source: str, target: str) -> None:
    """Show a region folder at `target`, nosuid and nodev (a bind mount takes its flags in a second call)."""
    syscalls.mount(source, target, flags=syscalls.MS_BIND)
    syscalls.mount("", target, flags=syscalls.MS_REMOUNT | syscalls.MS_BIND | REGION_FLAGS)


def unmount_all(points: list[str]) -> None:
    """Unmount, deepest and latest first. A mount that is in use goes lazily: its users keep what they have."""
    for point in reversed(points):
        syscalls.unmount(point, flags=syscalls.MNT_DETACH)


def _plain(text: str) -> str:
    return _OCTAL.sub(lambda found: chr(int(found[1], 8)), text)
