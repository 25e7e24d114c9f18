"""Pauses between tries."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

# Seconds on a clock that only goes forward, as `time.monotonic` and `loop.time` give them.
Clock = Callable[[], float]

# client-go's reflector (tools/cache, reflector.go), but for its cap of 30 s: that is for thousands of kubelets. With
# the jitter it would be a minute after an API server came back until a freed card is noticed.
START_S = 0.8
FACTOR = 2.0
CAP_S = 8.0
JITTER = 1.0
RESET_AFTER_S = 120.0


@dataclass(slots=True)
class Backoff:
    """Exponential pauses with jitter, forgotten after a time of health.

    A pause is `start` x `factor`^n, at most `cap`, plus up to `jitter` times itself. All times in seconds.
    """

    clock: Clock
    rng: random.Random
    start: float = START_S
    factor: float = FACTOR
    cap: float = CAP_S
    jitter: float = JITTER
    reset_after: float = RESET_AFTER_S
    _pause: float = field(init=False, default=0.0)
    _last: float = field(init=False, default=float("-inf"))

    def next(self) -> float:
        """The pause to take now. Without a call for `reset_after` seconds the series starts again."""
        now = self.clock()
        healthy = now - self._last > self.reset_after
        self._pause = self.start if healthy or not self._pause else min(self._pause * self.factor, self.cap)
        pause = self._spread(self._pause)
        self._last = now + pause
        return pause

    def longest(self) -> float:
        """The pause for something that will not change soon: the cap, spread."""
        self._pause = self.cap
        pause = self._spread(self.cap)
        self._last = self.clock() + pause
        return pause

    def _spread(self, pause: float) -> float:
        return pause * (1.0 + self.jitter * self.rng.random())
