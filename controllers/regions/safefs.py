"""Files beneath a folder that a tenant can write to.

The tenant may swap, link, truncate and flood while we look. So everything is opened beneath a directory handle
without following links, a file is opened for use only after its kind was seen (opening a device or a pipe can already
do harm), and is then used through its descriptor, never by its name again.
"""

import errno
import os
import stat
from collections.abc import Callable
from enum import StrEnum
from functools import cache
from typing import Final, Self

from controllers.regions import syscalls

# A device plugin's folder holds a dozen files. More than this was made to keep us busy.
MOST_ENTRIES: Final = 10_000
MOST_DEPTH: Final = 16

# Device and inode: what a file is, whatever its name.
FileId = tuple[int, int]
# Opens a relative path beneath a directory handle: handle, path, flags.
Opener = Callable[[int, str, int], int]


class Reason(StrEnum):
    """Why something was left alone."""

    LINK = "symbolic_link"
    NOT_REGULAR = "not_regular"
    HARD_LINK = "hard_link"
    SIZE = "wrong_size"
    LEASED = "leased"
    SWAPPED = "swapped"
    MOUNT = "mount_point"
    FLOOD = "too_many_entries"
    IN_USE = "in_use"
    LOCKED = "locked"
    FILE_SYSTEM = "unknown_file_system"
    DENIED = "denied"


class RefusedError(Exception):
    """We do not touch this."""

    def __init__(self, reason: Reason, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason


def kernel_opener(directory: int, path: str, flags: int) -> int:
    """Open with openat2 (Linux 5.6): the kernel itself stays beneath the directory, off links and other mounts."""
    resolve = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS | syscalls.RESOLVE_NO_XDEV
    return syscalls.openat2(directory, path, flags=flags | os.O_NOFOLLOW, resolve=resolve)


def walking_opener(directory: int, path: str, flags: int) -> int:
    """The same for kernels without openat2: name by name, none of them a link, all on one device."""
    *parents, last = path.split("/")
    if {"", ".", ".."} & {*parents, last}:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
    fd = os.dup(directory)
    for name in parents:
        fd = _step(fd, name, os.O_PATH | os.O_DIRECTORY)
    return _step(fd, last, flags)


def _step(directory: int, name: str, flags: int) -> int:
    try:
        fd = os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        if os.fstat(fd).st_dev != os.fstat(directory).st_dev:
            os.close(fd)
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), name)
    finally:
        os.close(directory)
    return fd


@cache
def best_opener() -> Opener:
    """openat2 where the kernel has it and lets us use it."""
    root = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.close(kernel_opener(root, ".", os.O_PATH))
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EPERM):
            return walking_opener
        raise
    finally:
        os.close(root)
    return kernel_opener


def file_id(fd: int) -> FileId:
    """Device and inode of an open file."""
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


class Descriptor:
    """An open file; a context manager that gives its number and closes it."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __enter__(self) -> int:
        return self._fd

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


class Folder:
    """A handle on a directory. All names are relative to it; a context manager that closes it."""

    def __init__(self, fd: int, opener: Opener) -> None:
        self.fd = fd
        self._open = opener

    @classmethod
    def trusted(cls, path: str | os.PathLike[str], *, opener: Opener | None = None) -> Self:
        """A folder on a path that no tenant can write to."""
        return cls(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), opener or best_opener())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)

    def folder(self, path: str) -> "Folder":
        """A folder below, on the same mount. Raises RefusedError, FileNotFoundError."""
        with _Answers(path):
            return Folder(self._open(self.fd, path, os.O_RDONLY | os.O_DIRECTORY), self._open)

    def mount_point(self, name: str) -> "Folder":
        """A folder below that may be a mount of our own. Raises RefusedError, FileNotFoundError."""
        with _Answers(name):
            fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.fd)
            return Folder(fd, self._open)

    def regular(self, path: str, *, size: int | None, write: bool = False) -> "Descriptor":
        """A descriptor of a regular file with one name and exactly `size` bytes (None: any).

        Raises RefusedError for anything else, FileNotFoundError when nothing is there.
        """
        with _Answers(path):
            look = self._open(self.fd, path, os.O_PATH)
            try:
                self._refuse_odd(look, path, size)
                # By way of the descriptor this is the very file that was looked at. Non-blocking: the owner of a
                # file may hold a lease on it, and a plain open would wait 45 s for that.
                mode = os.O_RDWR if write else os.O_RDONLY
                return Descriptor(os.open(f"/proc/self/fd/{look}", mode | os.O_NONBLOCK | os.O_CLOEXEC))
            finally:
                os.close(look)

    def _refuse_odd(self, look: int, path: str, size: int | None) -> None:
        """Refuse what is no regular file whose one name is this one.

        Looked at twice with the name in between: the one name of a file that was linked here from elsewhere and
        unlinked again is elsewhere. (Across mounts nobody can link at all, and a tenant's folder is one.)
        """
        before = os.fstat(look)
        _refuse_kind(before, path, size)
        if not self.has(path, (before.st_dev, before.st_ino)):
            raise RefusedError(Reason.SWAPPED, f"{path} is another file by now")
        _refuse_kind(os.fstat(look), path, size)

    def has(self, name: str, file: FileId) -> bool:
        """True while `name` is still this file."""
        try:
            status = os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return (status.st_dev, status.st_ino) == file

    def names(self) -> list[str]:
        """What is in the folder. Raises RefusedError when that is absurdly much."""
        found: list[str] = []
        with os.scandir(self.fd) as entries:
            for entry in entries:
                found.append(entry.name)
                if len(found) > MOST_ENTRIES:
                    raise RefusedError(Reason.FLOOD, f"more than {MOST_ENTRIES} entries")
        return found

    def make(self, name: str, mode: int) -> None:
        """Make a folder, or keep the one that is there; either way it gets the mode, whatever the umask says."""
        try:
            os.mkdir(name, 0o700, dir_fd=self.fd)
        except FileExistsError:
            if not stat.S_ISDIR(os.stat(name, dir_fd=self.fd, follow_symlinks=False).st_mode):
                raise RefusedError(Reason.NOT_REGULAR, f"{name} is not a folder") from None
        with self.mount_point(name) as made:
            os.fchmod(made.fd, mode)

    def remove(self, name: str) -> None:
        """Remove an empty folder. Raises RefusedError when it is not empty, no folder, or a mount point."""
        with _Answers(name):
            os.rmdir(name, dir_fd=self.fd)

    def empty(self) -> None:
        """Remove everything below, following nothing and crossing no mount. Raises RefusedError half-way."""
        _empty(self, [MOST_ENTRIES], MOST_DEPTH)


def _empty(folder: Folder, budget: list[int], depth: int) -> None:
    for name in folder.names():
        budget[0] -= 1
        if budget[0] < 0 or depth == 0:
            raise RefusedError(Reason.FLOOD, f"more than {MOST_ENTRIES} entries or {MOST_DEPTH} levels")
        try:
            os.unlink(name, dir_fd=folder.fd)
        except FileNotFoundError:
            continue
        except (IsADirectoryError, PermissionError):
            with folder.folder(name) as below:
                _empty(below, budget, depth - 1)
            folder.remove(name)


def _refuse_kind(status: os.stat_result, path: str, size: int | None) -> None:
    if stat.S_ISLNK(status.st_mode):
        raise RefusedError(Reason.LINK, f"{path} is a symbolic link")
    if not stat.S_ISREG(status.st_mode):
        raise RefusedError(Reason.NOT_REGULAR, f"{path} is not a regular file")
    if status.st_nlink != 1:
        raise RefusedError(Reason.HARD_LINK, f"{path} has {status.st_nlink} names")
    if size is not None and status.st_size != size:
        raise RefusedError(Reason.SIZE, f"{path} has {status.st_size} bytes, not {size}")


_REFUSALS: Final = {
    errno.ELOOP: Reason.LINK,
    errno.ENOTDIR: Reason.NOT_REGULAR,
    errno.EXDEV: Reason.MOUNT,
    errno.EBUSY: Reason.MOUNT,
    errno.ENOTEMPTY: Reason.SWAPPED,
    errno.EAGAIN: Reason.LEASED,
    errno.EACCES: Reason.DENIED,
    errno.EPERM: Reason.DENIED,
    errno.ETXTBSY: Reason.IN_USE,
}


class _Answers:
    """Turns what a tenant can provoke into RefusedError; FileNotFoundError and real trouble pass."""

    __slots__ = ("_path",)

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, OSError):
            reason = _REFUSALS.get(error.errno or 0)
            if reason is not None:
                raise RefusedError(reason, f"{self._path}: {error.strerror}") from error
