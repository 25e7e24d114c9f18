"""Where the host's files are, and the few ways in which sources read them. Blocking calls, for worker threads."""

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from controllers.occupancy.cards import DeviceNumber
from controllers.occupancy.vendors.generic import Node

# Folders below /dev that are looked into: /dev/dri, /dev/accel, /dev/rngd, /dev/tenstorrent are one deep.
_DEPTH = 2


@dataclass(frozen=True, slots=True)
class Host:
    """The host's file systems as this process sees them."""

    proc: Path = Path("/proc")
    sys: Path = Path("/sys")
    dev: Path = Path("/dev")


def names(folder: Path) -> list[str]:
    """The entries of a folder; none when it is not there."""
    try:
        return sorted(path.name for path in folder.iterdir())
    except OSError:
        return []


def number_of(path: Path) -> DeviceNumber | None:
    """The number of a device node, which is looked at and never opened; None for anything else."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return (
        DeviceNumber(os.major(found.st_rdev), os.minor(found.st_rdev))
        if stat.S_ISCHR(found.st_mode)
        else None
    )


def matching(folder: Path, pattern: re.Pattern[str]) -> frozenset[DeviceNumber]:
    """The numbers of the device nodes in a folder whose whole names match."""
    nodes = (number_of(folder / name) for name in names(folder) if pattern.fullmatch(name))
    return frozenset(node for node in nodes if node)


def device_nodes(host: Host) -> Iterator[Node]:
    """All character devices below /dev, with what sysfs knows of their devices."""
    for path in _below(host.dev, _DEPTH):
        if number := number_of(path):
            device = host.sys / "dev/char" / f"{number.major}:{number.minor}" / "device"
            folder = os.path.realpath(device) if device.exists() else ""
            driver = os.path.basename(os.path.realpath(f"{folder}/driver")) if folder else ""  # noqa: PTH119
            yield Node(str(path.relative_to(host.dev)), number, folder, driver)


def _below(folder: Path, depth: int) -> Iterator[Path]:
    for name in names(folder):
        path = folder / name
        if path.is_dir() and not path.is_symlink():
            if depth > 1:
                yield from _below(path, depth - 1)
        else:
            yield path
