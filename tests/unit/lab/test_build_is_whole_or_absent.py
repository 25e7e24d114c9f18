"""tests.lab.build: programs are built when they have to be, once, and come whole or not at all."""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.lab.build import PARTS, BuildError, __main__, binaries, cache, golang, parts
from tests.lab.build.parts import HELM, NODE, fingerprint, link_flags, pinned_version

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future
    from contextlib import AbstractContextManager


class Compiler:
    """Stands in for Go: writes the programs of the module that it is asked for, and counts."""

    def __init__(self) -> None:
        self.builds: list[str] = []
        self.before_the_end: Callable[[], object] = lambda: None

    def __call__(self, _go: Path, module: Path, *, output: Path, **_: Any) -> None:
        self.builds.append(module.name)
        programs = next(part.programs for part in PARTS.values() if part.module == module.name)
        for program in programs:
            (output / program).write_text(f"{program}, build {len(self.builds)}")
        self.before_the_end()


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Compiler:
    compiler = Compiler()
    monkeypatch.setattr(golang, "build", compiler)
    monkeypatch.setattr(golang, "toolchain", lambda: Path("go"))
    return compiler


def test_a_part_is_built_once(compiler: Compiler, tmp_path: Path) -> None:
    folder = binaries(["node"], lab=tmp_path)
    assert sorted(path.name for path in folder.glob("[!.]*")) == sorted(NODE.programs)
    assert binaries(["node"], lab=tmp_path) == folder
    assert compiler.builds == ["containerd"]


def test_a_program_that_is_gone_is_built_again(compiler: Compiler, tmp_path: Path) -> None:
    (binaries(["node"], lab=tmp_path) / "ctr").unlink()
    binaries(["node"], lab=tmp_path)
    assert compiler.builds == ["containerd", "containerd"]


def test_a_build_that_is_interrupted_leaves_the_old_programs_and_no_half(
    compiler: Compiler, tmp_path: Path
) -> None:
    folder = binaries(["helm"], lab=tmp_path)
    (folder / ".helm.built").write_text("of other sources")

    def interrupt() -> None:
        raise KeyboardInterrupt

    compiler.before_the_end = interrupt
    with pytest.raises(KeyboardInterrupt):
        binaries(["helm"], lab=tmp_path)
    assert (folder / "helm").read_text() == "helm, build 1"
    assert sorted(path.name for path in folder.iterdir()) == [".helm.built", "helm"]
    compiler.before_the_end = lambda: None
    binaries(["helm"], lab=tmp_path)
    assert (folder / "helm").read_text() == "helm, build 3"


def test_what_a_killed_build_left_is_removed(compiler: Compiler, tmp_path: Path) -> None:
    left = tmp_path / "bin" / ".building-x"
    left.mkdir(parents=True)
    binaries(["helm"], lab=tmp_path)
    assert compiler.builds == ["helm"]
    assert not left.exists()


def test_two_builds_at_once_are_one(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second_waits = threading.Event()

    def notice(title: str) -> AbstractContextManager[None]:
        if title.startswith("Waiting"):
            second_waits.set()
        return nullcontext()

    monkeypatch.setattr(cache, "progress", notice)
    with ThreadPoolExecutor() as pool:
        asked: list[Future[Path]] = []

        def ask_again_and_let_it_wait() -> None:
            asked.append(pool.submit(binaries, ["helm"], lab=tmp_path))
            assert second_waits.wait(timeout=10)

        compiler.before_the_end = ask_again_and_let_it_wait
        first = binaries(["helm"], lab=tmp_path)
        assert [second.result(timeout=10) for second in asked] == [first]
    assert compiler.builds == ["helm"]


def test_an_unknown_part_is_refused_with_the_names_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BuildError, match=r"no part nod; the parts are control-plane, node, helm\."):
        binaries(["node", "nod"])
    assert __main__.main(["nod"]) == 2
    assert "no part nod" in capsys.readouterr().err


@pytest.mark.parametrize("change", ["go.mod", "go.sum", "main.go"])
def test_every_file_of_a_module_counts(tmp_path: Path, change: str) -> None:
    shutil.copytree(parts.MODULES, tmp_path, dirs_exist_ok=True)
    before = fingerprint(parts.CONTROL_PLANE, tmp_path)
    with (tmp_path / "cluster" / change).open("a") as file:
        file.write("\n")
    assert fingerprint(parts.CONTROL_PLANE, tmp_path) != before


def test_programs_report_the_version_that_their_module_pins() -> None:
    assert pinned_version(parts.CONTROL_PLANE) == "v1.36.3"
    assert link_flags(parts.CONTROL_PLANE) == [
        "-X=k8s.io/component-base/version.gitVersion=v1.36.3",
        "-X=k8s.io/component-base/version.gitMajor=1",
        "-X=k8s.io/component-base/version.gitMinor=36",
    ]
    assert link_flags(NODE) == ["-X=github.com/containerd/containerd/v2/version.Version=2.4.2"]
    assert link_flags(HELM) == ["-X=helm.sh/helm/v4/internal/version.version=v4.3.2"]


@pytest.mark.parametrize("part", PARTS.values(), ids=lambda part: part.name)
def test_each_module_has_the_checksums_of_what_it_pins(part: parts.Part) -> None:
    checksums = (parts.MODULES / part.module / "go.sum").read_text()
    assert f"{part.versioned} {pinned_version(part)} h1:" in checksums
