"""Visit many processes with blocking calls, beside the loop, and be back in time whatever they do.

A read below /proc may never return: a process in state D, a dead file system behind one of its files. Such a thread
cannot be ended. It is left behind, its process is remembered as stuck, and a new thread goes on with the rest.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")

# Seconds a single process may take; a visit costs about 0.3 ms with 50 open files.
STALL_S = 2.0
# Threads left behind in one program; beyond that nothing more is tried until some return.
MOST_STUCK = 8
_LOOK_S = 0.02


@dataclass(frozen=True, slots=True)
class Walked(Generic[T]):
    """What the visits gave, by process id. `stuck` never answered; `unvisited` were not reached in time."""

    found: dict[int, T]
    stuck: tuple[int, ...] = ()
    unvisited: int = 0


@dataclass(slots=True)
class _Reader(Generic[T]):
    """One thread's work. The thread writes everything but `left`, which tells it that nobody waits any more."""

    pids: Sequence[int]
    visitor: Callable[[], Callable[[int], T | None]]
    found: dict[int, T] = field(default_factory=dict)
    at: int = 0
    since: float = field(default_factory=time.monotonic)
    left: bool = False
    error: Exception | None = None
    done: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        try:
            visit = self.visitor()
            while not self.left and self.at < len(self.pids):
                pid = self.pids[self.at]
                result = visit(pid)
                if result is not None and not self.left:
                    self.found[pid] = result
                self.since = time.monotonic()
                self.at += 1
        except Exception as error:  # noqa: BLE001 - raised again by who waits, in the loop
            self.error = error
        finally:
            self.done.set()


class Walker:
    """Starts and counts the threads. `name` is for people who look at them."""

    def __init__(self, name: str, *, stall_s: float = STALL_S, most_stuck: int = MOST_STUCK) -> None:
        self._name = name
        self._stall_s = stall_s
        self._most_stuck = most_stuck
        self._stuck: dict[int, threading.Event] = {}

    async def visit(
        self, pids: Iterable[int], visitor: Callable[[], Callable[[int], T | None]], *, deadline_s: float
    ) -> Walked[T]:
        """Call a function made by `visitor` (one for each thread, in it) with each pid; None is not kept.

        Processes whose reader is still stuck from an earlier walk are not visited again. Returns at the deadline at
        the latest, with what there is. Raises whatever a visit raised.
        """
        self._stuck = {pid: done for pid, done in self._stuck.items() if not done.is_set()}
        todo: Sequence[int] = [pid for pid in pids if pid not in self._stuck]
        found: dict[int, T] = {}
        end = time.monotonic() + deadline_s
        while todo and time.monotonic() < end and len(self._stuck) < self._most_stuck:
            reader = _Reader(todo, visitor)
            threading.Thread(target=reader.run, name=self._name, daemon=True).start()
            await self._follow(reader, end)
            todo = self._rest(reader)
            found |= reader.found
        return Walked(found, tuple(sorted(self._stuck)), len(todo))

    async def call(self, ask: Callable[[], T], *, deadline_s: float) -> T:
        """One blocking call. Raises TimeoutError when it is late, or still hangs from an earlier time."""
        walked = await self.visit((0,), lambda: lambda _: (ask(),), deadline_s=deadline_s)
        if not walked.found:
            raise TimeoutError
        return walked.found[0][0]

    async def _follow(self, reader: _Reader[T], end: float) -> None:
        """Wait until the thread is through, hangs at one process, or the time is over."""
        while not reader.done.is_set():
            now = time.monotonic()
            if now >= end or now - reader.since > self._stall_s:
                return
            await asyncio.sleep(_LOOK_S)

    def _rest(self, reader: _Reader[T]) -> Sequence[int]:
        """What is still to be visited; a thread that has not ended is left to itself."""
        if reader.done.is_set():
            if reader.error is not None:
                raise reader.error
            return ()
        reader.left = True
        if time.monotonic() - reader.since <= self._stall_s:
            return reader.pids[reader.at :]
        self._stuck[reader.pids[reader.at]] = reader.done
        return reader.pids[reader.at + 1 :]
