"""The folder of built programs: what is current in it, and how a part gets into it whole or not at all."""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.lab.build import golang
from tests.lab.build.parts import MODULES, PARTS, Part, fingerprint, link_flags, parts_named, pinned_version
from tests.lab.progress import progress

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

LAB: Final = golang.ROOT / ".lab"
HALF_BUILT: Final = ".building-"


def binaries(parts: Iterable[str] = tuple(PARTS), *, lab: Path = LAB) -> Path:
    """Return the folder with the programs of `parts`, after building those that are missing or out of date.

    The control plane's one program is `cluster`: kubelet, kube-proxy and kubectl are in it too. Two callers at once are
    safe: the second waits. A build that is interrupted leaves the programs that were there.

    Raises:
        BuildError: a part is unknown, or Go is missing or fails; the message says what to change.
    """
    wanted, folder = parts_named(parts), lab / "bin"
    if _outdated(wanted, folder):
        folder.mkdir(parents=True, exist_ok=True)
        with _only_one_build(lab / "build.lock"):
            # Asked again: the build that this one waited for may have made them.
            _build(_outdated(wanted, folder), folder)
    return folder


def _outdated(parts: Iterable[Part], folder: Path) -> list[Part]:
    return [part for part in parts if not _is_current(part, folder)]


def _is_current(part: Part, folder: Path) -> bool:
    stamp = _stamp(part, folder)
    files = (stamp, *(folder / program for program in part.programs))
    return all(file.exists() for file in files) and stamp.read_text() == fingerprint(part)


def _stamp(part: Part, folder: Path) -> Path:
    return folder / f".{part.name}.built"


@contextmanager
def _only_one_build(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with progress("Waiting for another build of the lab"):
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(parts: Iterable[Part], folder: Path) -> None:
    parts = list(parts)
    if not parts:
        return
    for left_over in folder.glob(f"{HALF_BUILT}*"):
        shutil.rmtree(left_over)
    go = golang.toolchain()
    print(
        f"Building the lab's programs from source with {golang.version_of(go)}, as these are not there yet:"
    )
    for part in parts:
        print(f"  {', '.join(part.programs)}: {part.versioned} {pinned_version(part)}")
    print("The first build of all takes 10 to 15 minutes on two cores, and 6 GB of disk.", flush=True)
    for part in parts:
        _build_part(part, folder, go)


def _build_part(part: Part, folder: Path, go: Path) -> None:
    sources = fingerprint(part)
    with tempfile.TemporaryDirectory(prefix=HALF_BUILT, dir=folder) as scratch:
        half_built = Path(scratch)
        module = MODULES / part.module
        with progress(f"Building {part.versioned}") as task:
            golang.build(
                go, module, target=part.target, link_flags=link_flags(part), output=half_built, task=task
            )
        # Until all programs are exchanged, no stamp speaks for them.
        _stamp(part, folder).unlink(missing_ok=True)
        for program in part.programs:
            (half_built / program).replace(folder / program)
    _stamp(part, folder).write_text(sources)
