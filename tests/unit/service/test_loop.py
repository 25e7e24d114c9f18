import asyncio
import time

from service import loop
from service.metrics import MetricSet


async def test_a_blocked_loop_shows_in_the_lag() -> None:
    metrics = MetricSet()
    task = asyncio.create_task(loop.LoopLag(metrics).run())
    await asyncio.sleep(2 * loop.LOOK_EVERY_S)
    time.sleep(loop.LOOK_EVERY_S + 0.06)  # noqa: ASYNC251 - the point of this test
    await asyncio.sleep(0.01)
    task.cancel()
    value = metrics.registry.get_sample_value
    count = value("tenure_loop_lag_seconds_count") or 0
    below = value("tenure_loop_lag_seconds_bucket", {"le": "0.05"}) or 0
    assert count - below >= 1


def test_the_program_runs_on_uvloop_and_returns_the_exit_code() -> None:
    async def main() -> int:
        assert type(asyncio.get_running_loop()).__module__.startswith("uvloop")
        return 7

    assert loop.run(main()) == 7
