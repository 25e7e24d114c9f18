"""How the process starts, says that it is ready, and ends.

    starting ──▶ ready ──▶ draining ──▶ stopped

The composition root hands over an ordered list of parts. They start in this order; when all have started and every
condition is met, readiness turns on. A stop (a signal, or a task that ended although it must not) turns readiness
off at once, keeps everything serving for the drain time, and then stops the parts in reverse order.

A guarded task that ends is a fault of the program, whatever it ended with, and the process then ends in order with
exit code 1. It does not go on with red liveness instead: half a process would answer from a cache that nobody feeds
any more, and the kubelet's restart, with its back-off, is the same repair but begins three failed probes later.
"""

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import structlog

from service.metrics import MetricSet

# Seconds for all parts together to stop after the drain: the longest is the extender's or webhook's last answer (3 s),
# then a controller's current key (one API call, 10 s). With the drain of 12 s it stays below a grace period of 45 s.
STOP_S = 20.0
# Seconds between two looks whether the conditions are met, only for the log line that says so.
LOOK_EVERY_S = 0.5

log = structlog.get_logger(__name__)


class Phase(StrEnum):
    """Where the process stands."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    STOPPED = "stopped"


class Condition:
    """A named reason to be ready or not. It starts unmet, unless a `check` decides each time it is asked."""

    __slots__ = ("_check", "_why", "name")

    def __init__(self, name: str, check: Callable[[], str | None] | None = None) -> None:
        self.name = name
        self._check = check
        self._why: str | None = "not yet"

    def met(self) -> None:
        """Nothing speaks against readiness any more."""
        self._why = None

    def unmet(self, why: str) -> None:
        """Not ready; `why` is for people, who read it at /readyz."""
        self._why = why

    @property
    def why(self) -> str | None:
        """Why the condition is not met; None when it is."""
        return self._check() if self._check is not None else self._why


async def nothing() -> None:
    """The stop of a part that leaves nothing behind."""


@dataclass(frozen=True, slots=True)
class Part:
    """A step of the start and what undoes it. `stop` is also called when `start` failed or was cancelled half-way."""

    name: str
    start: Callable[[], Awaitable[None]]
    stop: Callable[[], Awaitable[None]] = nothing


class Lifecycle:
    """Phases, readiness conditions and guarded tasks of one process. `drain_s` and `stop_s` in seconds."""

    def __init__(self, metrics: MetricSet, *, drain_s: float, stop_s: float = STOP_S) -> None:
        self.phase = Phase.STARTING
        self.draining = False
        """True from the moment a stop was asked for: answers then close their connection. Read for each of them."""
        self.faults: list[str] = []
        """Names of guarded tasks that ended although they must not: liveness fails from then on."""
        self._drain_s = drain_s
        self._stop_s = stop_s
        self._conditions: dict[str, Condition] = {}
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._exit_code = 0
        self._metrics = _LifecycleMetrics(metrics, self)

    # Readiness

    def condition(self, name: str, check: Callable[[], str | None] | None = None) -> Condition:
        """A new condition; with `check`, a function that answers why it is not met, or None.

        Raises ValueError when the name is taken: two owners of one condition would hide each other's trouble.
        """
        if name in self._conditions:
            raise ValueError(f"there is a condition {name!r} already")
        condition = self._conditions[name] = Condition(name, check)
        self._metrics.condition.labels(name).set_function(lambda: float(condition.why is None))
        return condition

    def failing(self) -> Mapping[str, str]:
        """Why the process is not ready: condition to reason; empty when it is."""
        unmet = {c.name: why for c in self._conditions.values() if (why := c.why) is not None}
        return unmet if self.phase is Phase.READY else {"process": f"is {self.phase}"} | unmet

    # Tasks

    def task(
        self,
        name: str,
        run: Callable[[], Coroutine[Any, Any, None]],
        *,
        owner: str,
        finish: Callable[[], Awaitable[None]] = nothing,
    ) -> Part:
        """A part that keeps `run` going for ever. To stop it, `finish` is awaited, and what is left is cancelled."""
        guarded = _GuardedTask(self, name, owner=owner, run=run, finish=finish)
        self._metrics.faults.labels(name)
        return Part(name, guarded.start, guarded.stop)

    def fault(self, name: str, *, owner: str, error: BaseException | None) -> None:
        """A task ended that must not: show it everywhere, and end the process in order."""
        self.faults.append(name)
        self._exit_code = 1
        self._metrics.faults.labels(name).inc()
        log.error("task ended unexpectedly", task=name, owner=owner, exc_info=error)
        self.request_stop("fault")

    # Stopping

    def request_stop(self, reason: str) -> None:
        """Begin to end; safe to repeat."""
        if self._stop.is_set():
            return
        log.info("stopping", reason=reason, drain_s=self._drain_s if self.phase is Phase.READY else 0.0)
        self.phase = Phase.DRAINING
        self.draining = True
        self._stop.set()

    def signalled(self, name: str) -> None:
        """A signal asks for a stop; the second one ends the drain at once."""
        if self._stop.is_set():
            log.info("drain cut short", reason=name)
            self._hurry.set()
        self.request_stop(name)

    def handle_signals(self) -> None:
        """Listen to SIGTERM (kubelet) and SIGINT (a person at a terminal)."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.signalled, number.name)

    # The whole life

    async def run(self, parts: Sequence[Part], *, drained: Callable[[], Awaitable[None]] = nothing) -> int:
        """Start the parts, wait for a stop, drain, await `drained`, stop the parts; the exit code.

        `drained` closes the doors (listeners) before anything behind them stops. Whatever a part's start raises
        comes out after the parts before it were stopped.
        """
        begun: list[Part] = []
        try:
            if await self._until_stop(self._start(parts, begun)):
                self.phase = Phase.READY
                log.info("started", waiting_for=list(self.failing()))
                if await self._until_stop(self._all_met()):
                    log.info("ready")
                await self._stop.wait()
                await self._drain()
        finally:
            self.phase = Phase.DRAINING
            await self._stop_parts([*begun, Part("listeners", nothing, drained)])
            self.phase = Phase.STOPPED
        log.info("stopped", exit_code=self._exit_code)
        return self._exit_code

    async def _start(self, parts: Sequence[Part], begun: list[Part]) -> None:
        for part in parts:
            begun.append(part)
            log.debug("starting", part=part.name)
            await part.start()

    async def _all_met(self) -> None:
        while self.failing():  # noqa: ASYNC110 - a condition may be a check, and nobody tells when it changes
            await asyncio.sleep(LOOK_EVERY_S)

    async def _until_stop(self, work: Coroutine[Any, Any, None]) -> bool:
        """True when the work is done, False when a stop came first; raises what the work raised."""
        working = asyncio.create_task(work, name="start")
        stopping = asyncio.create_task(self._stop.wait(), name="stop requested")
        try:
            await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                await working
            return not self._stop.is_set()
        finally:
            await _cancelled(working, stopping)

    async def _drain(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._drain_s):
                await self._hurry.wait()

    async def _stop_parts(self, parts: Sequence[Part]) -> None:
        now = asyncio.get_running_loop().time
        end = now() + self._stop_s
        for part in reversed(parts):
            budget_s = (end - now()) / 2  # a part that hangs must not take the time of those behind it
            try:
                async with asyncio.timeout(budget_s):
                    await part.stop()
            except Exception:
                self._exit_code = 1
                log.exception("part did not stop", part=part.name, budget_s=budget_s)


class _GuardedTask:
    """A task that must live until it is asked to end."""

    def __init__(
        self,
        lifecycle: Lifecycle,
        name: str,
        *,
        owner: str,
        run: Callable[[], Coroutine[Any, Any, None]],
        finish: Callable[[], Awaitable[None]],
    ) -> None:
        self._lifecycle = lifecycle
        self._name = name
        self._owner = owner
        self._run = run
        self._finish = finish
        self._ending = False
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = asyncio.create_task(self._guard(), name=self._name)

    async def stop(self) -> None:
        self._ending = True
        if self._task is None:
            return
        try:
            await self._finish()
        finally:
            self._task.cancel()
        await asyncio.wait({self._task})

    async def _guard(self) -> None:
        try:
            await self._run()
        except asyncio.CancelledError as error:
            if not self._ending:
                self._lifecycle.fault(self._name, owner=self._owner, error=error)
        except Exception as error:  # noqa: BLE001 - the supervisor of all tasks: fault() reports whatever it is
            self._lifecycle.fault(self._name, owner=self._owner, error=error)
        else:
            if not self._ending:
                self._lifecycle.fault(self._name, owner=self._owner, error=None)


async def _cancelled(*tasks: asyncio.Task[Any]) -> None:
    """Cancel the tasks and wait for their end; what they raise now is the cancellation, or was raised before."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class _LifecycleMetrics:
    def __init__(self, metrics: MetricSet, lifecycle: Lifecycle) -> None:
        self.faults = metrics.counter(
            "tenure_task_faults", "Tasks that ended although they must run for ever.", {"task": str}
        )
        self.condition = metrics.gauge(
            "tenure_ready_condition", "1 when the readiness condition is met.", {"condition": str}
        )
        ready = metrics.gauge("tenure_ready", "1 while the process asks for traffic.")
        ready.set_function(lambda: float(not lifecycle.failing()))
