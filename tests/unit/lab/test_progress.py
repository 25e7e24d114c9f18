"""tests.lab.progress: what a person and a log see."""

from __future__ import annotations

import io
import threading

import pytest
from rich.console import Console

from tests.lab.progress import Task, progress


class Clock:
    """A clock that stands still until it is told otherwise."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_task_says_what_runs_how_far_and_for_how_long() -> None:
    clock = Clock()
    task = Task("Building cluster", clock=clock)
    assert task.describe() == "Building cluster: 0 s"
    task.expect(2841)
    task.advance("k8s.io/api/core/v1")
    clock.now += 185.9
    assert task.describe() == "Building cluster: 3 min 05 s, 1 of 2841 packages, k8s.io/api/core/v1"


class Lines(io.StringIO):
    """An output that tells when it has so many lines."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.complete = threading.Event()
        self._count = count

    def write(self, text: str) -> int:
        written = super().write(text)
        if self.getvalue().count("\n") >= self._count:
            self.complete.set()
        return written


def test_without_a_terminal_a_plain_line_comes_now_and_then() -> None:
    output = Lines(3)
    console = Console(file=output, force_terminal=False)
    with progress("Building cluster", console=console, plain_line_every_s=0.01) as task:
        task.note("linking")
        assert output.complete.wait(timeout=10)
    lines = output.getvalue().splitlines()
    assert lines[0] == "Building cluster ..."
    assert lines[2] == "Building cluster: 0 s, linking"
    assert lines[-1] == "Building cluster: done in 0 s"
    assert "\x1b" not in output.getvalue()


def test_on_a_terminal_one_line_is_drawn_and_removed_at_the_end() -> None:
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, width=80)
    with progress("Building cluster", console=console) as task:
        task.note("linking")
    assert "\x1b[2K" in output.getvalue()
    assert output.getvalue().splitlines()[-1].endswith("Building cluster: done in 0 s")


def test_work_that_fails_is_not_called_done() -> None:
    output = io.StringIO()
    with (
        pytest.raises(OSError, match="no room"),
        progress("Building cluster", console=Console(file=output, force_terminal=False)),
    ):
        raise OSError("no room")
    assert output.getvalue().splitlines()[-1] == "Building cluster: stopped after 0 s"
