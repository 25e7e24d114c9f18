import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest
import structlog

from controllers.runtime import After, Controller, Done, Outcome, Result, Retry, RuntimeMetrics, Terminal
from service.kube import errors
from service.kube.queue import WorkQueue
from service.metrics import MetricSet
from tests.unit.kube import virtual


class World:
    """A controller, what it did and when, in virtual time."""

    def __init__(self, *, workers: int = 1) -> None:
        self.queue = WorkQueue(base_seconds=1.0, cap_seconds=8.0)
        self.metrics = MetricSet()
        self.script: dict[
            str, list[Outcome | BaseException | Callable[[], Coroutine[Any, Any, Outcome]]]
        ] = {}
        self.seen: list[tuple[str, float]] = []
        self.running: set[str] = set()
        self.controller = Controller(
            "test",
            self.reconcile,
            queue=self.queue,
            workers=workers,
            deadline=10.0,
            metrics=RuntimeMetrics(self.metrics),
        )

    async def reconcile(self, key: str) -> Outcome:
        assert key not in self.running
        self.running.add(key)
        self.seen.append((key, asyncio.get_running_loop().time()))
        try:
            script = self.script.get(key, [])
            step = script.pop(0) if script else Done()
            if isinstance(step, BaseException):
                raise step
            return await step() if callable(step) else step
        finally:
            self.running.discard(key)

    def count(self, result: Result) -> float:
        value = self.metrics.registry.get_sample_value(
            "tenure_controller_reconciles_total", {"controller": "test", "result": result}
        )
        assert value is not None
        return value

    def run(self, seconds: float) -> None:
        async def main() -> None:
            task = asyncio.create_task(self.controller.run())
            for key in self.script:
                self.queue.add(key)
            await asyncio.sleep(seconds)
            assert not task.done()
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

        virtual.run(main())

    def times(self, key: str) -> list[float]:
        return [when for seen, when in self.seen if seen == key]


def test_a_key_that_is_done_is_left_alone() -> None:
    world = World()
    world.script = {"a": [Done()]}
    world.run(1000.0)
    assert world.times("a") == [0.0]
    assert world.count(Result.DONE) == 1


def test_a_key_comes_again_after_the_time_it_asked_for_and_its_failures_are_forgotten() -> None:
    world = World()
    world.script = {"a": [Retry("x"), Retry("x"), After(100.0), Retry("x"), Done()]}
    world.run(1000.0)
    assert world.times("a") == [0.0, 1.0, 3.0, 103.0, 104.0]


def test_a_key_that_failed_comes_again_after_growing_pauses() -> None:
    world = World()
    world.script = {"a": [Retry("x")] * 6}
    world.run(1000.0)
    assert world.times("a") == [0.0, 1.0, 3.0, 7.0, 15.0, 23.0, 31.0]
    assert world.count(Result.RETRY) == 6


def test_what_cannot_succeed_is_not_tried_again() -> None:
    world = World()
    world.script = {"a": [Terminal("wrong in itself")]}
    with structlog.testing.capture_logs() as logged:
        world.run(1000.0)
    assert world.times("a") == [0.0]
    assert [line["reason"] for line in logged] == ["wrong in itself"]


def test_a_failed_api_call_is_tried_again_and_is_no_bug() -> None:
    world = World()
    world.script = {"a": [errors.Unavailable(503), errors.Conflict(409)]}
    with structlog.testing.capture_logs() as logged:
        world.run(1000.0)
    assert world.times("a") == [0.0, 1.0, 3.0]
    assert world.count(Result.API_ERROR) == 2
    assert not any(line["log_level"] == "error" for line in logged)


@pytest.mark.parametrize("bug", [RuntimeError("bug"), asyncio.CancelledError()])
def test_a_bug_is_logged_counted_and_keeps_nothing_from_other_keys(bug: BaseException) -> None:
    world = World()
    world.script = {"a": [bug], "b": [Done()]}
    with structlog.testing.capture_logs() as logged:
        world.run(1000.0)
    assert world.times("a") == [0.0, 1.0]
    assert world.times("b") == [0.0]
    assert world.count(Result.BUG) == 1
    assert [line["key"] for line in logged if line["log_level"] == "error"] == ["a"]


def test_a_reconcile_that_hangs_is_ended_at_its_deadline() -> None:
    async def hang() -> Outcome:
        await asyncio.Event().wait()
        return Done()

    world = World()
    world.script = {"a": [hang], "b": [Done()]}
    world.run(1000.0)
    assert world.times("a") == [0.0, 11.0]
    assert world.times("b") == [10.0]
    assert world.count(Result.TIMED_OUT) == 1


def test_workers_share_the_keys_and_never_one_key() -> None:
    async def slow() -> Outcome:
        await asyncio.sleep(5.0)
        return Done()

    world = World(workers=3)
    world.script = {"a": [slow, slow], "b": [slow], "c": [slow], "d": [slow]}

    async def again() -> None:
        task = asyncio.create_task(world.controller.run())
        for key in ("a", "b", "c", "d"):
            world.queue.add(key)
        await asyncio.sleep(1.0)
        world.queue.add("a")
        await asyncio.sleep(100.0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    virtual.run(again())
    assert world.times("a") == [0.0, 5.0]
    assert world.times("d") == [5.0]


def test_it_stops_when_it_is_told_to_even_in_the_middle_of_a_key() -> None:
    async def hang() -> Outcome:
        await asyncio.Event().wait()
        return Done()

    world = World()
    world.script = {"a": [hang]}
    world.run(1.0)
    assert world.running == set()
    assert world.count(Result.BUG) == 0


def finishing(world: World, *, after: float) -> tuple[float, set[str]]:
    """When `finish` returned and which keys were still in the queue."""

    async def main() -> tuple[float, set[str]]:
        task = asyncio.create_task(world.controller.run())
        for key in world.script:
            world.queue.add(key)
        await asyncio.sleep(after)
        await world.controller.finish()
        finished = asyncio.get_running_loop().time()
        await asyncio.wait_for(task, 0.1)
        left = {await world.queue.get() for _ in range(len(world.queue))}
        return finished, left

    return virtual.run(main())


def test_it_finishes_the_keys_at_work_and_leaves_the_others_in_the_queue() -> None:
    async def slow() -> Outcome:
        await asyncio.sleep(5.0)
        return Done()

    world = World(workers=2)
    world.script = {"a": [slow], "b": [slow], "c": [slow]}
    assert finishing(world, after=1.0) == (5.0, {"c"})
    assert world.count(Result.DONE) == 2
    assert world.running == set()


def test_it_finishes_at_once_when_nothing_is_at_work() -> None:
    assert finishing(World(workers=3), after=1.0) == (1.0, set())


def test_what_never_ran_has_finished() -> None:
    virtual.run(World().controller.finish())


def test_every_outcome_is_counted_from_the_start() -> None:
    world = World()
    assert [world.count(result) for result in Result] == [0.0] * len(Result)
