"""The field's rules for who holds a card and how long, one test each.

Tenure has no booking in memory: a promise is written into the `RemoteServer` by compare-and-swap before the scheduler
sees the pod, and the Binding carries the allocation. Rules 17 to 19 show what became of the booking.
"""

from controllers.pool.metrics import Filter
from service import names
from tests.prove.pool_world import Fault
from tests.unit.pool.stage import Stage


async def test_rule_15_a_card_given_to_a_pod_on_one_client_is_taken_for_all() -> None:
    stage = Stage()
    holder, waiter = stage.pod("holder"), stage.pod("waiter")
    await stage.placed("holder", "n1")
    assert stage.phases() == {"s1-g0": (holder, "Bound")}
    assert stage.replica.pool.shared.book.promise(waiter) is None
    assert (await stage.filter("waiter"))[0] is Filter.NO_PROMISE


async def test_rule_16_only_pods_that_landed_hold_and_a_failed_bind_blocks_nobody() -> None:
    stage = Stage()
    uid = stage.pod("p", annotations={names.DEVICES_ALLOCATED: "s1/s1-g0,NVIDIA,40000,100:;"})
    await stage.calm()
    assert stage.phases() == {"s1-g0": (uid, "Reserved")}
    stage.world.pods["p"]["spec"]["schedulingGates"] = [{"name": "somebody/else"}]
    assert await stage.bind("p") != ""
    stage.world.pods["p"]["spec"]["schedulingGates"] = []
    await stage.calm()
    assert await stage.bind("p") == ""


async def test_rule_17_a_card_promised_by_one_replica_is_not_promised_by_another_that_has_not_heard() -> None:
    """Review finding R2. Fails without the resourceVersion in `ServerWriter.swap`, controllers/pool/writer.py."""
    stage = Stage(replicas=2)
    await stage.calm()
    first, second = stage.replicas
    one = stage.pod("one")
    while first.news:
        first.hear()
    first.serve()
    await stage.flow()
    stage.world.put("pods", "one", stage.world.pods["one"] | {"spec": stage.world.pods["one"]["spec"]})
    two = stage.pod("two", priority=9)
    late = [item for item in second.news if item.kind != "servers"]
    second.news.clear()
    second.news.extend(late)
    while second.news:
        second.hear()
    assert second.pool.shared.book.promise(one) is None
    second.serve()
    await stage.flow()
    assert {uid for uid, _ in stage.phases().values()} == {one}
    assert second.pool.shared.book.promise(two) is None


async def test_rule_18_a_promise_outlives_relists_and_a_restart_until_the_placed_pod_takes_over() -> None:
    stage = Stage()
    uid = stage.pod("p")
    await stage.calm()
    stage.replica.relist()
    stage.replica.crash()
    await stage.calm()
    assert stage.phases() == {"s1-g0": (uid, "Reserved")}
    assert await stage.bind("p") == ""
    await stage.calm()
    assert stage.phases() == {"s1-g0": (uid, "Bound")}


async def test_rule_19_an_attempt_that_falls_through_keeps_the_promise_and_a_pod_never_blocks_itself() -> (
    None
):
    stage = Stage()
    uid = stage.pod("p")
    await stage.calm()
    for _ in range(3):
        assert (await stage.filter("p"))[0] is Filter.PROMISED
    assert stage.phases() == {"s1-g0": (uid, "Reserved")}
    stage.world.drop("pods", "p")
    await stage.calm()
    assert stage.phases() == {}


async def test_rule_20_nothing_is_given_back_on_the_word_of_a_read_that_failed() -> None:
    """Fails when `Settler._exists` in controllers/pool/settle.py takes an unanswered read for an absent pod."""
    stage = Stage()
    stage.pod("p")
    await stage.calm()
    held = stage.phases()
    stage.replica.crash()
    stage.replica.pool.shared.pods.forget(held["s1-g0"][0])
    stage.replica.settle("s1")
    await stage.flow(Fault.NOT_SENT)
    assert stage.phases() == held
