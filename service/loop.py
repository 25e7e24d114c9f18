"""The event loop: which one, and how late it runs."""

import asyncio
import gc
from collections.abc import Coroutine
from typing import Any, TypeVar

import uvloop

from service.metrics import MetricSet

# Seconds between two looks: fine enough to see most stalls of one list page (75 ms), too rare to cost anything.
LOOK_EVERY_S = 0.1
# The same for an agent, whom only its node's kubelet asks: ten looks a second were a quarter of what it cost at rest.
LOOK_OF_AGENT_EVERY_S = 1.0
LAG_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)

R = TypeVar("R")


def run(main: Coroutine[Any, Any, R]) -> R:
    """Run `main` on uvloop; its result.

    What was imported lives as long as the process. Frozen, it is never walked again by the garbage collector, whose
    full collection stops the loop: 105 ms with it, 8 ms without.
    """
    gc.collect()
    gc.freeze()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


class LoopLag:
    """Measures how much later than asked a sleeper wakes: that is how long any answer waits before it begins."""

    def __init__(self, metrics: MetricSet, *, every_s: float = LOOK_EVERY_S) -> None:
        self._every_s = every_s
        self._lag = metrics.histogram(
            "tenure_loop_lag_seconds",
            "How late the event loop runs what is due; one sample each 100 ms (agents: 1 s).",
            buckets=LAG_BUCKETS,
        )

    async def run(self) -> None:
        """Measure for ever."""
        now = asyncio.get_running_loop().time
        while True:
            due = now() + self._every_s
            await asyncio.sleep(self._every_s)
            self._lag.observe(max(0.0, now() - due))
