"""What runs a controller: keys come from a queue, workers reconcile them, one switch decides what follows.

    source ──key──▶ WorkQueue ──▶ worker ──▶ reconcile(key) ──▶ Done | After | Retry | Terminal

As in controller-runtime (pkg/internal/controller), the outcome is a value and the switch stands in one place.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum

import structlog

from service.kube.errors import KubeError
from service.kube.queue import WorkQueue
from service.metrics import MetricSet

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Done:
    """Nothing more to do until the key is added again."""


@dataclass(frozen=True, slots=True)
class After:
    """Well, and to be looked at again in some seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Retry:
    """Not done; again after a growing pause. `reason` is for the log."""

    reason: str


@dataclass(frozen=True, slots=True)
class Terminal:
    """Cannot succeed as things are; only a change of the object helps."""

    reason: str


Outcome = Done | After | Retry | Terminal
Reconcile = Callable[[str], Awaitable[Outcome]]


class Result(StrEnum):
    """An outcome as a closed label."""

    DONE = "done"
    AFTER = "after"
    RETRY = "retry"
    TERMINAL = "terminal"
    API_ERROR = "api_error"
    TIMED_OUT = "timed_out"
    BUG = "bug"


class RuntimeMetrics:
    """What all controllers count, by their names."""

    def __init__(self, metrics: MetricSet) -> None:
        self.results = metrics.counter(
            "tenure_controller_reconciles", "Reconciled keys.", {"controller": str, "result": Result}
        )
        self.seconds = metrics.histogram(
            "tenure_controller_reconcile_seconds", "Duration of one reconcile.", {"controller": str}
        )
        self.depth = metrics.gauge(
            "tenure_controller_queue_keys", "Keys that wait for a worker.", {"controller": str}
        )


class Controller:
    """Runs `reconcile` on the keys of a queue, never twice at once for one key. `deadline` in seconds."""

    def __init__(
        self,
        name: str,
        reconcile: Reconcile,
        *,
        queue: WorkQueue,
        workers: int = 1,
        deadline: float,
        metrics: RuntimeMetrics,
    ) -> None:
        self.name = name
        self._reconcile = reconcile
        self._queue = queue
        self._workers = workers
        self._deadline = deadline
        self._metrics = metrics
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._busy: set[int] = set()
        self._finishing = False
        self._ended = asyncio.Event()
        self._ended.set()
        for result in Result:
            metrics.results.labels(name, result.value)
        metrics.depth.labels(name).set_function(lambda: len(queue))

    async def run(self) -> None:
        """Work until `finish`. Cancelled, each worker drops its key where it stands: every write is safe to repeat."""
        self._ended.clear()
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(self._workers):
                    name = f"{self.name} worker {number}"
                    self._tasks[number] = group.create_task(self._work(number), name=name)
        finally:
            self._ended.set()

    async def finish(self) -> None:
        """Take no further key, and return when those at work are done. It does not run again."""
        self._finishing = True
        for number, task in self._tasks.items():
            if number not in self._busy:
                task.cancel()
        await self._ended.wait()

    async def _work(self, number: int) -> None:
        while not self._finishing:
            key = await self._queue.get()
            self._busy.add(number)
            try:
                await self.once(key)
            finally:
                self._busy.discard(number)
                self._queue.done(key)

    async def once(self, key: str) -> None:
        """Reconcile one key and do what its outcome says."""
        started = time.perf_counter()
        result, outcome = await self._outcome(key)
        self._metrics.results.labels(self.name, result.value).inc()
        self._metrics.seconds.labels(self.name).observe(time.perf_counter() - started)
        match outcome:
            case Done():
                self._queue.forget(key)
            case After(seconds):
                self._queue.forget(key)
                self._queue.add_after(key, seconds)
            case Retry(reason):
                log.info("to be tried again", controller=self.name, key=key, reason=reason)
                self._queue.add_rate_limited(key)
            case Terminal(reason):
                log.warning("given up until it changes", controller=self.name, key=key, reason=reason)
                self._queue.forget(key)

    async def _outcome(self, key: str) -> tuple[Result, Outcome]:
        try:
            async with asyncio.timeout(self._deadline):
                outcome = await self._reconcile(key)
        except KubeError as error:
            return Result.API_ERROR, Retry(str(error))
        except TimeoutError:
            return Result.TIMED_OUT, Retry(f"not finished within {self._deadline} s")
        except (Exception, asyncio.CancelledError) as error:
            # The supervisor of reconciles: a fault of ours in one key must not stop the others. That holds for a
            # cancellation that nobody asked of this worker, which would end it without a trace.
            if isinstance(error, asyncio.CancelledError) and _cancelled():
                raise
            log.exception("reconcile failed: this is a bug", controller=self.name, key=key)
            return Result.BUG, Retry("a bug, see the log")
        return Result[type(outcome).__name__.upper()], outcome


def _cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
