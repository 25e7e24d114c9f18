"""What a proof is: a function that tries something at random many times, and counts where it did not hold."""

from __future__ import annotations

import asyncio
import inspect
import random
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import uvloop

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.lab.progress import Task

COUNTEREXAMPLES_SHOWN = 5  # Enough to see a pattern, few enough to read.


class Run:
    """One run of a proof: its seed, and how often it tried and failed so far."""

    def __init__(self, seed: int, task: Task) -> None:
        self.seed = seed
        self.tried = 0
        self.failed = 0
        self._task = task
        self._failed_trial = 0

    def trials(self, count: int) -> Iterator[random.Random]:
        """Yield `count` times a generator of random numbers of its own, made from the seed and the trial's number."""
        self._task.expect(self.tried + count)
        for _ in range(count):
            self.tried += 1
            self._task.advance()
            yield random.Random(f"{self.seed}/{self.tried}")

    def check(self, holds: bool, otherwise: str) -> None:  # noqa: FBT001 - It reads as an assertion does.
        """Count the current trial as failed, once, unless `holds`; `otherwise` says what was seen instead."""
        if holds or self._failed_trial == self.tried:
            return
        self._failed_trial = self.tried
        self.failed += 1
        if self.failed <= COUNTEREXAMPLES_SHOWN:
            print(f"trial {self.tried} of seed {self.seed}: {otherwise}", file=sys.stderr)


Body: TypeAlias = Callable[[Run], Awaitable[None] | None]


@dataclass(frozen=True, slots=True)
class Proof:
    """One claim about the product, with the function that attacks it."""

    name: str
    body: Body

    @property
    def names(self) -> tuple[str, ...]:
        """The one name of it."""
        return (self.name,)

    def run(self, run: Run) -> None:
        """Attack the claim; `run` holds the count afterwards. Async bodies run on uvloop, as the product does."""
        result = self.body(run)
        if inspect.isawaitable(result):
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(_as_coroutine(result))


def proof(name: str) -> Callable[[Body], Proof]:
    """Make the function below a proof of that name."""
    return lambda body: Proof(name, body)


async def _as_coroutine(result: Awaitable[None]) -> None:
    await result
