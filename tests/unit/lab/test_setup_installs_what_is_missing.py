"""tests/lab/bootstrap.sh, Makefile and .ci/run, with stand-ins for the programs that would change the machine."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.unit.lab.programs import ROOT

if TYPE_CHECKING:
    from tests.unit.lab.programs import Programs

BOOTSTRAP = ROOT / "tests" / "lab" / "bootstrap.sh"
ALL_BUT_CONNTRACK = '[ "${*: -1}" = conntrack ] || echo -n installed'


def test_missing_packages_and_only_these_are_installed_by_root(programs: Programs) -> None:
    programs.add("id", "echo 0")
    programs.add("dpkg-query", ALL_BUT_CONNTRACK)
    programs.add("apt-get", 'echo "frontend $DEBIAN_FRONTEND"')
    result = programs.run(BOOTSTRAP, "packages")
    assert result.returncode == 0
    assert "conntrack" in result.stdout.splitlines()[0]
    assert "the lab's real node needs" in result.stdout.splitlines()[0]
    assert "frontend noninteractive" in result.stdout
    installs = [call for call in programs.calls if call.startswith("apt-get") and " install " in call]
    assert len(installs) == 1
    assert installs[0].endswith(" install conntrack")


def test_nothing_is_fetched_when_all_packages_are_there(programs: Programs) -> None:
    programs.add("dpkg-query", "echo -n installed")
    programs.add("apt-get")
    result = programs.run(BOOTSTRAP, "packages")
    assert (result.returncode, result.stdout) == (0, "")
    assert not [call for call in programs.calls if call.startswith("apt-get")]


def test_sudo_without_a_password_stands_in_for_root(programs: Programs) -> None:
    programs.add("id", "echo 1000")
    programs.add("sudo", '[ "$1" = -n ] && shift && exec "$@"')
    programs.add("dpkg-query", ALL_BUT_CONNTRACK)
    programs.add("apt-get")
    assert programs.run(BOOTSTRAP, "packages").returncode == 0
    assert [call for call in programs.calls if call.endswith(" install conntrack")]


def test_without_root_and_sudo_the_missing_packages_are_named_and_the_set_up_goes_on(
    programs: Programs,
) -> None:
    programs.add("id", "echo 1000")
    programs.add("sudo", "exit 1")
    programs.add("dpkg-query", ALL_BUT_CONNTRACK)
    programs.add("apt-get")
    result = programs.run(BOOTSTRAP, "packages")
    assert result.returncode == 0
    assert "neither root nor sudo" in result.stdout
    assert "conntrack" in result.stdout
    assert not [call for call in programs.calls if call.startswith("apt-get")]


def test_a_failed_apt_is_said_and_the_set_up_goes_on(programs: Programs) -> None:
    programs.add("id", "echo 0")
    programs.add("dpkg-query", ALL_BUT_CONNTRACK)
    programs.add("apt-get", "exit 100")
    result = programs.run(BOOTSTRAP, "packages")
    assert result.returncode == 0
    assert "could not install conntrack" in result.stdout


def test_a_failed_update_leaves_the_lists_that_are_there(programs: Programs) -> None:
    programs.add("id", "echo 0")
    programs.add("dpkg-query", ALL_BUT_CONNTRACK)
    programs.add("apt-get", '[ "${*: -1}" != update ]')
    result = programs.run(BOOTSTRAP, "packages")
    assert result.returncode == 0
    assert "trying with the lists of packages that are here" in result.stdout
    assert "could not install" not in result.stdout
    assert [call for call in programs.calls if call.endswith(" install conntrack")]


@pytest.mark.parametrize("apt", ["true", "exit 100"])
def test_what_browser_and_prometheus_are_for_is_said_and_what_follows_without_them(
    programs: Programs, apt: str
) -> None:
    programs.add("id", "echo 0")
    programs.add("dpkg-query", "exit 1")
    programs.add("systemctl")
    programs.add("apt-get", apt)
    result = programs.run(BOOTSTRAP, "viewers")
    assert result.returncode == 0
    assert "these tests are skipped, or fail where TENURE_REQUIRE_NODE is set" in result.stdout
    assert ("could not install prometheus chromium" in result.stdout) == (apt == "exit 100")
    assert [call for call in programs.calls if call.endswith(" install prometheus chromium")]


def test_a_python_that_is_too_old_is_refused_in_one_sentence(programs: Programs) -> None:
    programs.add("python3.9", "exit 1")
    result = programs.run(BOOTSTRAP, "venv", PYTHON="python3.9")
    assert result.returncode == 1
    assert result.stderr == (
        "Tenure needs Python 3.11 or newer, and python3.9 is none: install one, or name one with PYTHON=...\n"
    )


def test_make_help_lists_every_target(programs: Programs) -> None:
    declared = re.search(r"^\.PHONY: (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert declared is not None
    listed = [
        line.split()[1] for line in programs.run("make", "--no-print-directory", "help").stdout.splitlines()
    ]
    assert sorted(listed) == sorted(declared[1].split())


@pytest.mark.parametrize(("failing", "code"), [("nothing", 0), ("lint", 1), ("test", 1)])
def test_ci_runs_lint_and_test_and_fails_when_either_fails(
    programs: Programs, failing: str, code: int
) -> None:
    programs.add("make", f'[ "$1" != {failing} ]')
    result = programs.run(ROOT / ".ci" / "run")
    assert result.returncode == code
    assert (f"failed: make {failing}" in result.stdout) == bool(code)
    assert programs.calls[0] == "make venv"
    assert sorted(programs.calls[1:-1]) == ["make lab", "make lint", "make packages viewers"]
    assert programs.calls[-1] == "make test"


def test_ci_tells_what_the_set_up_said_before_the_tests(programs: Programs) -> None:
    programs.add("make", 'echo "this is $1"')
    lines = programs.run(ROOT / ".ci" / "run").stdout.splitlines()
    assert sorted(lines[:-1]) == ["this is lab", "this is lint", "this is packages", "this is venv"]
    assert lines[-1] == "this is test"


def test_ci_does_not_let_tests_of_the_real_node_skip(programs: Programs) -> None:
    programs.add("make", 'echo "CI=$CI node=$TENURE_REQUIRE_NODE"')
    assert set(programs.run(ROOT / ".ci" / "run").stdout.splitlines()) == {"CI=true node=1"}
