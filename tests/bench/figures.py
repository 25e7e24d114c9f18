"""What a benchmark is: a function that measures, and the figures that it declares."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import uvloop


@dataclass(frozen=True, slots=True)
class Reading:
    """What was measured: a value in the unit of its figure, from `n` samples."""

    value: float
    n: int

    def __post_init__(self) -> None:
        if not math.isfinite(self.value) or self.n < 1:
            raise ValueError(f"No figure: value {self.value} of {self.n} samples.")


Readings: TypeAlias = Reading | Mapping[str, Reading]
Measure: TypeAlias = Callable[[], Readings | Awaitable[Readings]]


@dataclass(frozen=True, slots=True)
class Figure:
    """A number that is measured again and again: its name and its unit."""

    name: str
    unit: str


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One measurement, and the figures that come out of it."""

    measure: Measure
    figures: tuple[Figure, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The figures' names; each leads to this benchmark."""
        return tuple(figure.name for figure in self.figures)

    def run(self) -> list[tuple[Figure, Reading]]:
        """Measure once, and return each declared figure with its reading.

        Raises:
            ValueError: other figures were measured than declared.
        """
        readings = _awaited(self.measure())
        if isinstance(readings, Reading):
            readings = {self.names[0]: readings}
        if set(readings) != set(self.names):
            raise ValueError(f"Declared: {', '.join(self.names)}; measured: {', '.join(readings)}.")
        return [(figure, readings[figure.name]) for figure in self.figures]


def figure(name: str, *, unit: str) -> Callable[[Measure | Benchmark], Benchmark]:
    """Declare a figure of the function below; decorate again for each further figure of the same run."""

    def declare(measure: Measure | Benchmark) -> Benchmark:
        declared = measure if isinstance(measure, Benchmark) else Benchmark(measure, ())
        return replace(declared, figures=(Figure(name, unit), *declared.figures))

    return declare


def _awaited(result: Readings | Awaitable[Readings]) -> Readings:
    if not inspect.isawaitable(result):
        return result
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_as_coroutine(result))


async def _as_coroutine(result: Awaitable[Readings]) -> Readings:
    return await result
