"""A pod that was let in and lost its promise: when a card is free again, the scheduler is told, and answers or not."""

from datetime import timedelta

from controllers.pool.passing import ANSWER_S
from controllers.runtime import After
from tests.prove.pool_replica import SETTINGS
from tests.unit.pool.stage import Stage


async def lost(stage: Stage, *, cpu: str) -> str:
    """`a` asks for so much CPU that it found no node; its promise passed on to `b`, which has ended since. Its uid."""
    uid = stage.pod("a")
    needs(stage, "1000")
    await stage.calm()
    other = stage.pod("b")
    await later(stage, SETTINGS.promise_s)
    assert stage.phases()["s1-g0"] == (other, "Reserved")
    needs(stage, cpu)
    stage.world.drop("pods", "b")
    await stage.calm()
    assert stage.phases()["s1-g0"] == (uid, "Reserved")
    return uid


def needs(stage: Stage, cpu: str) -> None:
    pod = stage.world.pods["a"]
    pod["spec"]["containers"][0]["resources"]["requests"] = {"cpu": cpu}
    stage.world.put("pods", "a", pod)


async def later(stage: Stage, seconds: float) -> None:
    stage.world.now += timedelta(seconds=seconds)
    await stage.calm()


async def test_one_that_no_node_has_room_for_passes_its_card_on_within_seconds() -> None:
    stage = Stage()
    uid = await lost(stage, cpu="1000")
    waiting = stage.pod("c")
    await later(stage, ANSWER_S - 1)
    assert stage.phases()["s1-g0"] == (uid, "Reserved")
    await later(stage, 1)
    assert stage.phases()["s1-g0"] == (waiting, "Reserved")


async def test_one_that_could_start_keeps_its_card_for_the_time_of_a_promise() -> None:
    stage = Stage()
    uid = await lost(stage, cpu="1")
    waiting = stage.pod("c")
    await later(stage, SETTINGS.promise_s - 1)
    assert stage.phases()["s1-g0"] == (uid, "Reserved")
    await later(stage, 1)
    assert stage.phases()["s1-g0"] == (waiting, "Reserved")


async def test_nobody_takes_the_card_of_one_without_room_when_nobody_waits() -> None:
    stage = Stage()
    uid = await lost(stage, cpu="1000")
    await later(stage, ANSWER_S)
    assert stage.phases()["s1-g0"] == (uid, "Reserved")
    assert await stage.bind("a") == ""


async def test_a_look_is_due_when_the_answer_is() -> None:
    stage = Stage()
    await lost(stage, cpu="1000")
    stage.pod("c")
    await stage.calm()
    assert await stage.replica.pool.serve() == After(ANSWER_S)
