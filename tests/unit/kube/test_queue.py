import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.kube.queue import QueueFullError, WorkQueue
from tests.unit.kube import virtual


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_keys_come_in_order_and_each_once() -> None:
    queue = WorkQueue()
    for key in ("a", "b", "a", "c", "b"):
        queue.add(key)
    assert len(queue) == 3
    assert [await queue.get() for _ in range(3)] == ["a", "b", "c"]


async def test_a_key_added_while_a_worker_has_it_runs_once_more_afterwards() -> None:
    queue = WorkQueue()
    queue.add("a")
    assert await queue.get() == "a"
    queue.add("a")
    queue.add("a")
    assert len(queue) == 0
    queue.done("a")
    assert len(queue) == 1
    assert await queue.get() == "a"
    queue.done("a")
    assert len(queue) == 0


async def test_a_waiting_worker_is_woken() -> None:
    queue = WorkQueue()
    waiting = [asyncio.create_task(queue.get()) for _ in range(2)]
    await asyncio.sleep(0)
    queue.add("a")
    queue.add("b")
    assert sorted(await asyncio.gather(*waiting)) == ["a", "b"]


def test_a_delayed_key_comes_when_it_is_due_and_the_earlier_time_wins() -> None:
    async def main() -> None:
        queue = WorkQueue()
        queue.add_after("a", 10.0)
        queue.add_after("a", 5.0)
        queue.add_after("a", 20.0)
        assert await queue.get() == "a"
        assert now() == 5.0
        queue.done("a")
        await asyncio.sleep(60.0)
        assert len(queue) == 0

    virtual.run(main())


def test_pauses_double_for_each_key_until_it_is_forgotten() -> None:
    async def main() -> None:
        queue = WorkQueue(base_seconds=1.0, cap_seconds=8.0)
        pauses = []
        for _ in range(6):
            began = now()
            queue.add_rate_limited("a")
            await queue.get()
            queue.done("a")
            pauses.append(now() - began)
        assert pauses == [1.0, 2.0, 4.0, 8.0, 8.0, 8.0]
        assert queue.failures("a") == 6
        queue.forget("a")
        began = now()
        queue.add_rate_limited("a")
        await queue.get()
        assert now() - began == 1.0

    virtual.run(main())


def test_a_key_that_failed_for_days_still_has_a_pause() -> None:
    async def main() -> None:
        queue = WorkQueue()
        for _ in range(5000):
            queue.add_rate_limited("a")
        await queue.get()
        assert now() == 0.005

    virtual.run(main())


def test_how_long_the_head_waits_is_known() -> None:
    async def main() -> None:
        queue = WorkQueue(clock=now)
        assert queue.longest_wait == 0.0
        queue.add("a")
        await asyncio.sleep(3.0)
        queue.add("b")
        assert queue.longest_wait == 3.0

    virtual.run(main())


async def test_the_queue_is_bounded() -> None:
    queue = WorkQueue(max_keys=2)
    queue.add("a")
    queue.add_after("b", 60.0)
    queue.add("a")
    queue.add_after("b", 30.0)
    with pytest.raises(QueueFullError):
        queue.add("c")
    with pytest.raises(QueueFullError):
        queue.add_after("c", 60.0)
    await queue.get()
    queue.add("c")


KEYS = st.sampled_from("abc")
DELAYS = st.sampled_from([0.0, 0.5, 3.0])


@settings(deadline=None)
@given(
    adds=st.lists(st.tuples(DELAYS, KEYS, DELAYS), max_size=30), work=st.lists(DELAYS, min_size=1, max_size=5)
)
def test_no_key_is_lost_and_no_two_workers_have_the_same_one(
    adds: list[tuple[float, str, float]], work: list[float]
) -> None:
    """After its last addition every key is begun again, whatever workers, pauses and delays do."""

    async def main() -> None:
        queue = WorkQueue()
        held: set[str] = set()
        begun: dict[str, float] = {}

        async def worker(number: int) -> None:
            while True:
                key = await queue.get()
                assert key not in held
                held.add(key)
                begun[key] = now()
                await asyncio.sleep(work[number % len(work)])
                held.remove(key)
                queue.done(key)

        workers = [asyncio.create_task(worker(number)) for number in range(3)]
        wanted: dict[str, float] = {}
        for pause, key, delay in adds:
            await asyncio.sleep(pause)
            queue.add_after(key, delay)
            wanted[key] = max(wanted.get(key, 0.0), now())
        await asyncio.sleep(100.0)
        assert all(begun[key] >= when for key, when in wanted.items())
        assert begun.keys() == wanted.keys()
        assert not held
        for task in workers:
            assert not task.done()
            task.cancel()
        await asyncio.gather(*workers, return_exceptions=True)

    virtual.run(main())
