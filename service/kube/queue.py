"""A queue of keys that need work, as client-go's util/workqueue: three containers, and no key lost.

`order` holds what waits, `dirty` what must be looked at (again), `running` what workers have in their hands. A key
that is added while a worker has it runs once more afterwards; two workers never have the same key.
"""

import asyncio
import time
from collections import deque

from service.kube.backoff import Clock

# Seconds. The first as in client-go (util/workqueue, default_rate_limiters.go); the cap is what a person waits for.
BASE_S = 0.005
CAP_S = 60.0
# Keys. More than the pods of the largest supported cluster (150,000): a bound against a bug, not a limit of use.
MAX_KEYS = 200_000
# Doublings after which every cap in use is reached; keeps the arithmetic small for a key that fails for days.
MAX_DOUBLINGS = 32


class QueueFullError(Exception):
    """More keys than `max_keys` are waiting."""


class WorkQueue:
    """Keys in order of arrival, each at most once. To add is synchronous, so a store's handler can do it.

    Adding raises QueueFullError beyond `max_keys`.
    """

    def __init__(
        self,
        *,
        base_seconds: float = BASE_S,
        cap_seconds: float = CAP_S,
        max_keys: int = MAX_KEYS,
        clock: Clock = time.monotonic,
    ) -> None:
        self._base = base_seconds
        self._cap = cap_seconds
        self._max_keys = max_keys
        self._clock = clock
        self._order: deque[tuple[str, float]] = deque()
        self._dirty: set[str] = set()
        self._running: set[str] = set()
        self._failures: dict[str, int] = {}
        self._delayed: dict[str, asyncio.TimerHandle] = {}
        self._filled = asyncio.Event()

    def __len__(self) -> int:
        """Keys that are due and not yet in a worker's hands."""
        return len(self._order)

    @property
    def longest_wait(self) -> float:
        """Seconds since the key at the head came in; 0.0 when nothing waits."""
        return self._clock() - self._order[0][1] if self._order else 0.0

    def add(self, key: str) -> None:
        """Have `key` looked at, after all that wait already."""
        if key in self._dirty:
            return
        self._check_room()
        self._enqueue(key)

    def add_after(self, key: str, seconds: float) -> None:
        """Have `key` looked at in `seconds`, unless it is due before."""
        if seconds <= 0:
            self.add(key)
            return
        loop = asyncio.get_running_loop()
        waiting = self._delayed.get(key)
        if waiting is None:
            self._check_room()
        elif waiting.when() <= loop.time() + seconds:
            return
        else:
            waiting.cancel()
        self._delayed[key] = loop.call_later(seconds, self._due, key)

    def add_rate_limited(self, key: str) -> None:
        """Have `key` looked at after a pause that doubles with each call, until `forget`."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        self.add_after(key, min(self._cap, self._base * 2 ** min(failures, MAX_DOUBLINGS)))

    def failures(self, key: str) -> int:
        """How often `key` was added with a growing pause since it was forgotten."""
        return self._failures.get(key, 0)

    def forget(self, key: str) -> None:
        """The next growing pause of `key` is the shortest again."""
        self._failures.pop(key, None)

    async def get(self) -> str:
        """Take the key that waits longest, or wait for one. Call `done` with it."""
        while not self._order:
            self._filled.clear()
            await self._filled.wait()
        key, _ = self._order.popleft()
        self._dirty.discard(key)
        self._running.add(key)
        return key

    def done(self, key: str) -> None:
        """The worker has finished with `key`; if it was added meanwhile, it waits again."""
        self._running.discard(key)
        if key in self._dirty:
            self._wait(key)

    def _due(self, key: str) -> None:
        del self._delayed[key]
        if key not in self._dirty:
            self._enqueue(key)

    def _enqueue(self, key: str) -> None:
        self._dirty.add(key)
        if key not in self._running:
            self._wait(key)

    def _wait(self, key: str) -> None:
        self._order.append((key, self._clock()))
        self._filled.set()

    def _check_room(self) -> None:
        if len(self._dirty) + len(self._delayed) >= self._max_keys:
            raise QueueFullError(f"{self._max_keys} keys are waiting")
