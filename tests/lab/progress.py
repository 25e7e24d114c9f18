"""What a person sees while something long runs: one live line on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import RenderableType

PLAIN_LINE_EVERY_S = 15.0  # A log shows life four times a minute, and 10 minutes of build stay 40 lines.
REDRAWS_PER_S = 8.0
SECONDS_PER_MINUTE = 60


class Task:
    """One long piece of work: what it is, how far it is, since when it runs.

    The worker moves it on; whoever draws it only reads.
    """

    def __init__(
        self, title: str, *, unit: str = "packages", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.title = title
        self.done = 0
        self.total: int | None = None
        self.detail = ""
        self._unit = unit
        self._clock = clock
        self._started = clock()

    def expect(self, total: int) -> None:
        """Say how many units of work there are in all."""
        self.total = total

    def advance(self, detail: str = "") -> None:
        """One unit more is under way or done; `detail` names it."""
        self.done += 1
        self.detail = detail

    def note(self, detail: str) -> None:
        """Say what happens now, without counting it."""
        self.detail = detail

    def elapsed(self) -> str:
        """Return the time since the start, as people say it: `8 s`, `3 min 05 s`."""
        minutes, seconds = divmod(int(self._clock() - self._started), SECONDS_PER_MINUTE)
        return f"{minutes} min {seconds:02d} s" if minutes else f"{seconds} s"

    def describe(self) -> str:
        """Return the whole state in one line."""
        count = f"{self.done} of {self.total} {self._unit}" if self.total else ""
        return ", ".join(part for part in (f"{self.title}: {self.elapsed()}", count, self.detail) if part)


class _LiveLine:
    """Draws a task anew each time that rich asks, so that the seconds run even when nothing else moves."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._spinner = Spinner("dots")

    def __rich__(self) -> RenderableType:
        self._spinner.update(text=Text(self._task.describe(), no_wrap=True, overflow="ellipsis"))
        return self._spinner


@contextmanager
def progress(
    title: str,
    *,
    unit: str = "packages",
    console: Console | None = None,
    plain_line_every_s: float = PLAIN_LINE_EVERY_S,
) -> Iterator[Task]:
    """Show `title` and how far it is until the block ends; then one line says how long it took."""
    console = console or Console(stderr=True, highlight=False)
    task = Task(title, unit=unit)
    draw = _live(task, console) if console.is_terminal else _plain_lines(task, console, plain_line_every_s)
    try:
        with draw:
            yield task
    except BaseException:
        _say(console, f"{title}: stopped after {task.elapsed()}")
        raise
    _say(console, f"{title}: done in {task.elapsed()}")


def _say(console: Console, line: str) -> None:
    console.print(Text(line), soft_wrap=True)


def _live(task: Task, console: Console) -> Live:
    return Live(_LiveLine(task), console=console, transient=True, refresh_per_second=REDRAWS_PER_S)


@contextmanager
def _plain_lines(task: Task, console: Console, every_s: float) -> Iterator[None]:
    over = threading.Event()

    def print_until_over() -> None:
        while not over.wait(every_s):
            _say(console, task.describe())

    printer = threading.Thread(target=print_until_over, name="progress", daemon=True)
    _say(console, f"{task.title} ...")
    printer.start()
    try:
        yield
    finally:
        over.set()
        printer.join()
