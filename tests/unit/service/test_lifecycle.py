import asyncio
from collections.abc import Awaitable, Callable

import pytest

from service.lifecycle import Lifecycle, Part, Phase
from service.metrics import MetricSet

pytestmark = pytest.mark.asyncio(loop_factories=["virtual"])

DRAIN_S = 12.0


@pytest.fixture
def metrics() -> MetricSet:
    return MetricSet()


@pytest.fixture
def lifecycle(metrics: MetricSet) -> Lifecycle:
    return Lifecycle(metrics, drain_s=DRAIN_S, stop_s=20.0)


def now() -> float:
    return asyncio.get_running_loop().time()


class Diary:
    """Parts that write down what was done to them and when."""

    def __init__(self) -> None:
        self.lines: list[tuple[float, str]] = []

    def write(self, what: str) -> Callable[[], Awaitable[None]]:
        async def step() -> None:
            self.lines.append((now(), what))

        return step

    def part(self, name: str) -> Part:
        return Part(name, self.write(f"start {name}"), self.write(f"stop {name}"))

    @property
    def words(self) -> list[str]:
        return [what for _, what in self.lines]


async def for_ever() -> None:
    await asyncio.Event().wait()


async def later(after_s: float, act: Callable[[], object]) -> None:
    await asyncio.sleep(after_s)
    act()


def sample(metrics: MetricSet, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


# Readiness


async def test_a_process_that_starts_is_not_ready_and_names_each_unmet_condition(
    lifecycle: Lifecycle,
) -> None:
    pods = lifecycle.condition("pods synced")
    lifecycle.condition("certificate verified", check=lambda: "no CA yet")
    lifecycle.condition("nodes synced").met()
    pods.unmet("the first list is not complete")
    assert lifecycle.failing() == {
        "process": "is starting",
        "pods synced": "the first list is not complete",
        "certificate verified": "no CA yet",
    }


async def test_readiness_follows_the_conditions_after_the_start(
    lifecycle: Lifecycle, metrics: MetricSet
) -> None:
    seen: list[object] = []
    condition = lifecycle.condition("pods synced")

    async def watch() -> None:
        await asyncio.sleep(1)
        seen.append(lifecycle.failing())
        condition.met()
        seen.append(lifecycle.failing())
        seen.append(sample(metrics, "tenure_ready_condition", condition="pods synced"))
        condition.unmet("gone again")
        seen.append(lifecycle.failing())
        lifecycle.request_stop("test")

    async with asyncio.TaskGroup() as group:
        group.create_task(watch())
        assert await lifecycle.run([]) == 0
    assert seen == [{"pods synced": "not yet"}, {}, 1.0, {"pods synced": "gone again"}]


async def test_a_condition_has_one_owner(lifecycle: Lifecycle) -> None:
    lifecycle.condition("pods synced")
    with pytest.raises(ValueError, match="pods synced"):
        lifecycle.condition("pods synced")


# Start and stop


async def test_parts_start_in_order_and_stop_in_reverse_after_the_doors_are_closed(
    lifecycle: Lifecycle,
) -> None:
    diary = Diary()
    parts = [diary.part("ops"), diary.part("caches"), diary.part("controllers")]
    async with asyncio.TaskGroup() as group:
        group.create_task(later(5, lambda: lifecycle.signalled("SIGTERM")))
        assert await lifecycle.run(parts, drained=diary.write("doors closed")) == 0
    assert diary.lines == [
        (0, "start ops"),
        (0, "start caches"),
        (0, "start controllers"),
        (5 + DRAIN_S, "doors closed"),
        (5 + DRAIN_S, "stop controllers"),
        (5 + DRAIN_S, "stop caches"),
        (5 + DRAIN_S, "stop ops"),
    ]
    assert lifecycle.phase is Phase.STOPPED


async def test_readiness_goes_at_once_when_a_signal_comes_and_serving_goes_on(lifecycle: Lifecycle) -> None:
    diary = Diary()
    async with asyncio.TaskGroup() as group:
        running = group.create_task(lifecycle.run([diary.part("listener")]))
        await asyncio.sleep(1)
        assert lifecycle.failing() == {}
        assert not lifecycle.draining
        lifecycle.signalled("SIGTERM")
        assert lifecycle.failing() == {"process": "is draining"}
        assert lifecycle.draining
        await asyncio.sleep(DRAIN_S - 0.1)
        assert not running.done()
        assert diary.words == ["start listener"]
    assert running.result() == 0


async def test_a_second_signal_ends_the_drain(lifecycle: Lifecycle) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(later(1, lambda: lifecycle.signalled("SIGTERM")))
        group.create_task(later(3, lambda: lifecycle.signalled("SIGTERM")))
        assert await lifecycle.run([]) == 0
        assert now() == 3


async def test_a_process_that_was_never_ready_stops_without_a_drain(lifecycle: Lifecycle) -> None:
    diary = Diary()
    waits = Part("sync", for_ever, diary.write("stop sync"))
    async with asyncio.TaskGroup() as group:
        group.create_task(later(4, lambda: lifecycle.signalled("SIGTERM")))
        assert await lifecycle.run([diary.part("ops"), waits, diary.part("never")]) == 0
        assert now() == 4
    assert diary.words == ["start ops", "stop sync", "stop ops"]


async def test_an_error_of_a_start_comes_out_after_the_earlier_parts_were_stopped(
    lifecycle: Lifecycle,
) -> None:
    diary = Diary()

    async def occupied() -> None:
        raise OSError("port 9443 is in use")

    with pytest.raises(OSError, match="9443"):
        await lifecycle.run([diary.part("ops"), Part("webhook", occupied, diary.write("stop webhook"))])
    assert diary.words == ["start ops", "stop webhook", "stop ops"]


async def test_parts_that_do_not_stop_leave_the_others_their_time_within_the_budget(
    lifecycle: Lifecycle,
) -> None:
    diary = Diary()
    stuck = Part("stuck", diary.write("start stuck"), for_ever)

    async def release() -> None:
        await asyncio.sleep(2)
        await diary.write("lease released")()

    async with asyncio.TaskGroup() as group:
        group.create_task(later(0, lambda: lifecycle.signalled("SIGTERM")))
        code = await lifecycle.run([Part("lease", diary.write("start lease"), release), stuck, stuck])
    assert code == 1
    assert diary.words[-1] == "lease released"
    assert now() <= DRAIN_S + 20.0


async def test_a_part_that_fails_to_stop_does_not_keep_the_others_from_it(lifecycle: Lifecycle) -> None:
    diary = Diary()

    async def broken() -> None:
        raise RuntimeError("bug")

    async with asyncio.TaskGroup() as group:
        group.create_task(later(1, lambda: lifecycle.signalled("SIGTERM")))
        code = await lifecycle.run([diary.part("lease"), Part("broken", broken_start(diary), broken)])
    assert code == 1
    assert diary.words == ["start lease", "start broken", "stop lease"]


def broken_start(diary: Diary) -> Callable[[], Awaitable[None]]:
    return diary.write("start broken")


# Guarded tasks


async def returns() -> None:
    await asyncio.sleep(3)


async def raises() -> None:
    await asyncio.sleep(3)
    raise RuntimeError("bug")


async def cancels_itself() -> None:
    await asyncio.sleep(3)
    raise asyncio.CancelledError


@pytest.mark.parametrize("end", [returns, raises, cancels_itself])
async def test_a_task_that_ends_drains_the_process_and_makes_its_exit_code_1(
    lifecycle: Lifecycle, metrics: MetricSet, end: Callable[[], Awaitable[None]]
) -> None:
    diary = Diary()
    task = lifecycle.task("pods reflector", end, owner="caches")  # type: ignore[arg-type] # all three are coroutines
    assert sample(metrics, "tenure_task_faults_total", task="pods reflector") == 0
    assert await lifecycle.run([diary.part("ops"), task], drained=diary.write("doors closed")) == 1
    assert lifecycle.faults == ["pods reflector"]
    assert sample(metrics, "tenure_task_faults_total", task="pods reflector") == 1
    assert diary.lines[1:] == [(3 + DRAIN_S, "doors closed"), (3 + DRAIN_S, "stop ops")]


async def test_a_fault_during_the_drain_does_not_shorten_it(lifecycle: Lifecycle) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(later(1, lambda: lifecycle.signalled("SIGTERM")))
        assert await lifecycle.run([lifecycle.task("short", returns, owner="test")]) == 1
    assert now() == 1 + DRAIN_S


async def test_a_task_is_cancelled_when_its_part_stops_and_that_is_no_fault(lifecycle: Lifecycle) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(later(1, lambda: lifecycle.signalled("SIGTERM")))
        assert await lifecycle.run([lifecycle.task("pods reflector", for_ever, owner="caches")]) == 0
    assert lifecycle.faults == []


async def test_a_task_is_let_finish_before_it_is_cancelled(lifecycle: Lifecycle) -> None:
    diary = Diary()

    async def finish() -> None:
        await asyncio.sleep(2)
        await diary.write("key finished")()

    part = lifecycle.task("pool controller", for_ever, owner="pool", finish=finish)
    async with asyncio.TaskGroup() as group:
        group.create_task(later(1, lambda: lifecycle.signalled("SIGTERM")))
        assert await lifecycle.run([diary.part("lease"), part]) == 0
    assert diary.lines[1:] == [(1 + DRAIN_S + 2, "key finished"), (1 + DRAIN_S + 2, "stop lease")]


async def test_a_task_that_ends_while_it_finishes_is_no_fault(lifecycle: Lifecycle) -> None:
    ending = asyncio.Event()

    async def finish() -> None:
        ending.set()
        await asyncio.sleep(1)

    async def until_told() -> None:
        await ending.wait()

    async with asyncio.TaskGroup() as group:
        group.create_task(later(1, lambda: lifecycle.signalled("SIGTERM")))
        assert await lifecycle.run([lifecycle.task("told", until_told, owner="test", finish=finish)]) == 0
    assert lifecycle.faults == []


async def test_a_task_that_does_not_finish_is_cancelled_when_the_budget_is_spent(
    lifecycle: Lifecycle,
) -> None:
    cancelled = asyncio.Event()

    async def deaf() -> None:
        try:
            await for_ever()
        finally:
            cancelled.set()

    part = lifecycle.task("deaf", deaf, owner="test", finish=for_ever)
    async with asyncio.TaskGroup() as group:
        group.create_task(later(1, lambda: lifecycle.signalled("SIGTERM")))
        assert await lifecycle.run([part]) == 1
    await asyncio.sleep(0)
    assert cancelled.is_set()


async def test_an_error_while_ending_is_a_fault_too(lifecycle: Lifecycle) -> None:
    async def breaks() -> None:
        try:
            await for_ever()
        except asyncio.CancelledError:
            raise RuntimeError("bug in the clean-up") from None

    async with asyncio.TaskGroup() as group:
        group.create_task(later(1, lambda: lifecycle.signalled("SIGTERM")))
        assert await lifecycle.run([lifecycle.task("breaks", breaks, owner="test")]) == 1
    assert lifecycle.faults == ["breaks"]
