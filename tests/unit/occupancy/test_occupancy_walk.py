"""Blocking calls beside the loop: late ones are left behind, and the rest is done in time."""

import asyncio
import threading
import time
from collections.abc import Callable

import pytest

from controllers.occupancy.walk import Walked, Walker

HANGING = 3
ALL = range(1, 7)
DOUBLED = {pid: pid * 2 for pid in ALL}
WITHOUT = {pid: double for pid, double in DOUBLED.items() if pid != HANGING}


class Visits:
    """Visits that double the pid; the one to HANGING returns when it is released."""

    def __init__(self) -> None:
        self.release = threading.Event()

    def __call__(self) -> Callable[[int], int | None]:
        def visit(pid: int) -> int | None:
            if pid == HANGING:
                self.release.wait(30)
            return pid * 2

        return visit


async def test_a_hanging_process_is_left_and_the_rest_is_visited() -> None:
    """C6, third card: a read that does not return, as with a process in state D."""
    visits, walker = Visits(), Walker("test", stall_s=0.3)
    assert await walker.visit(ALL, visits, deadline_s=10) == Walked(WITHOUT, (HANGING,), 0)
    assert await walker.visit(ALL, visits, deadline_s=10) == Walked(WITHOUT, (HANGING,), 0)
    visits.release.set()
    await asyncio.sleep(0.2)
    assert await walker.visit(ALL, visits, deadline_s=10) == Walked(DOUBLED)


async def test_the_walk_ends_at_its_deadline_and_says_what_is_missing() -> None:
    def slow() -> Callable[[int], int | None]:
        def visit(pid: int) -> int | None:
            time.sleep(0.1)
            return pid

        return visit

    walked = await Walker("test").visit(range(100), slow, deadline_s=0.5)
    assert 0 < len(walked.found) < 100
    assert len(walked.found) + walked.unvisited >= 99
    assert walked.stuck == ()


async def test_when_too_many_threads_hang_nothing_more_is_tried() -> None:
    visits, walker = Visits(), Walker("test", stall_s=0.2, most_stuck=1)
    walked = await walker.visit((HANGING, 4, 5), visits, deadline_s=10)
    assert (walked.found, walked.stuck, walked.unvisited) == ({}, (HANGING,), 2)
    visits.release.set()


async def test_the_loop_goes_on_meanwhile() -> None:
    visits, walker = Visits(), Walker("test", stall_s=0.5)
    walk = asyncio.create_task(walker.visit((HANGING,), visits, deadline_s=10))
    ticks = 0
    while not walk.done():
        await asyncio.sleep(0.01)
        ticks += 1
    visits.release.set()
    assert ticks > 5


async def test_a_fault_in_a_visit_is_raised_where_somebody_waits() -> None:
    def broken() -> Callable[[int], int | None]:
        def visit(pid: int) -> int | None:
            raise RuntimeError("fault")

        return visit

    with pytest.raises(RuntimeError, match="fault"):
        await Walker("test").visit((1,), broken, deadline_s=1)


async def test_a_single_call_answers_or_is_late() -> None:
    walker, release = Walker("test", stall_s=0.2, most_stuck=1), threading.Event()
    assert await walker.call(lambda: "x", deadline_s=1) == "x"
    with pytest.raises(TimeoutError):
        await walker.call(lambda: release.wait(30), deadline_s=1)
    with pytest.raises(TimeoutError):
        await walker.call(lambda: True, deadline_s=1)
    release.set()
    await asyncio.sleep(0.2)
    assert await walker.call(lambda: "y", deadline_s=1) == "y"
