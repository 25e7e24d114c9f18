"""`python -m tests.prove.regions_attacker FOLDER OUTSIDE`: a tenant that attacks its region folders, for ever.

Every step is one that a process with the folder's rights can make, as fast as it can: links of both kinds to files and
folders outside, pipes, giants, truncation, files and folders swapped for one another.
"""

import os
import random
import shutil
import stat
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

LEAVES = {"sm_node": 8192, "vmem_node": 327680}


class Attacker:
    """Knows one container's folder and a folder outside that has the same files."""

    def __init__(self, folder: Path, outside: Path) -> None:
        self._folder = folder
        self._outside = outside
        self._rng = random.Random(6)
        self._not_ours = {(outside / leaf / f"{leaf}.config").stat().st_ino for leaf in LEAVES}
        self._good = {leaf: (outside / leaf / f"{leaf}.config").read_bytes() for leaf in LEAVES}

    def step(self) -> None:
        """One attack on one of the two regions. What fails is tried another time."""
        leaf = self._rng.choice(list(LEAVES))
        with suppress(OSError):
            self._rng.choice(self._attacks)(self, self._folder / leaf, self._folder / leaf / f"{leaf}.config")

    def _honest(self, leaf: Path, file: Path) -> None:
        for folder in (self._folder, leaf):
            if folder.is_symlink():
                folder.unlink()
            folder.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
        with file.open("xb") as new:  # a new one: the defender may have put a link back under this name
            new.write(self._good[leaf.name])

    def _symlink(self, leaf: Path, file: Path) -> None:
        self._replace(file, lambda new: new.symlink_to(self._outside / leaf.name / file.name))

    def _hardlink(self, leaf: Path, file: Path) -> None:
        self._replace(file, lambda new: os.link(self._outside / leaf.name / file.name, new))

    def _pipe(self, _: Path, file: Path) -> None:
        self._replace(file, os.mkfifo)

    def _giant(self, leaf: Path, file: Path) -> None:
        self._truncate(leaf, file, 1 << 42)

    def _cut(self, leaf: Path, file: Path) -> None:
        self._truncate(leaf, file, self._rng.randrange(LEAVES[leaf.name]))
        self._truncate(leaf, file, LEAVES[leaf.name])

    def _truncate(self, leaf: Path, file: Path, size: int) -> None:
        """Only a file of its own: the attacker itself must leave the outside alone, or nothing could be told."""
        if leaf.is_symlink() or self._folder.is_symlink():
            return
        fd = os.open(file, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            status = os.fstat(fd)
            if stat.S_ISREG(status.st_mode) and status.st_ino not in self._not_ours:
                os.ftruncate(fd, size)
        finally:
            os.close(fd)

    def _folder_for_file(self, _: Path, file: Path) -> None:
        self._replace(file, lambda new: (new / "deep").mkdir(parents=True))

    def _swap_leaf(self, leaf: Path, _: Path) -> None:
        aside = self._aside(leaf)
        leaf.rename(aside)
        leaf.symlink_to(self._outside / leaf.name)
        leaf.unlink()
        aside.rename(leaf)

    def _swap_folder(self, _: Path, __: Path) -> None:
        aside = self._aside(self._folder.parent / "0")
        self._folder.rename(aside)
        self._folder.symlink_to(self._outside)
        self._folder.unlink()
        aside.rename(self._folder)

    def _link_beside(self, leaf: Path, _: Path) -> None:
        self._inside(leaf / f"l{self._rng.randrange(9)}").symlink_to(self._outside)

    def _parked(self, leaf: Path, _: Path) -> None:
        self._inside(leaf / f".tenure-{self._rng.randrange(9)}").symlink_to(self._outside / leaf.name)

    def _config(self, _: Path, __: Path) -> None:
        (self._folder / "config").symlink_to(self._outside / "sm_node")

    def _fresh(self, leaf: Path, file: Path) -> None:
        if leaf.is_symlink() or self._folder.is_symlink():
            return
        shutil.rmtree(self._folder, ignore_errors=True)
        self._honest(leaf, file)

    def _replace(self, file: Path, make: Callable[[Path], object]) -> None:
        """Put something in the file's place in one step."""
        new = self._aside(self._inside(file))
        make(new)
        if file.is_dir() and not file.is_symlink():
            file.rename(self._aside(file))
        new.replace(file)

    def _inside(self, path: Path) -> Path:
        """The path, if no link of its own making leads outside on the way to it."""
        if path.parent.is_symlink() or self._folder.is_symlink():
            raise FileNotFoundError(path)
        return path

    def _aside(self, path: Path) -> Path:
        return path.with_name(f"a{self._rng.randrange(1 << 30)}")

    _attacks: tuple[Callable[["Attacker", Path, Path], None], ...] = (
        _honest, _honest, _honest, _honest, _symlink, _hardlink, _pipe, _giant, _cut, _cut, _folder_for_file,
        _swap_leaf, _swap_folder, _link_beside, _parked, _config, _fresh,
    )  # fmt: skip


def main(folder: Path, outside: Path) -> None:
    attacker = Attacker(folder, outside)
    print("ready", flush=True)
    while True:
        attacker.step()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
