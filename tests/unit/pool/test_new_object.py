"""A RemoteServer that somebody deleted is made again, and what its predecessor gave away is not given twice."""

import asyncio

from controllers.pool.bind import BindRequest
from tests.prove.pool_world import NAMESPACE, Fault
from tests.unit.pool.stage import Stage


async def test_a_binding_on_the_word_of_the_deleted_object_is_refused_or_heard_of_before_cards_are_offered() -> (
    None
):
    """Fails without `self._witnesses.hear(server)` in controllers/pool/settle.py.

    The Binding is on its way, its promise confirmed, when the object goes. Another pod of higher priority waits.
    """
    stage = Stage()
    early = stage.pod("early")
    await stage.calm()
    meta = stage.world.pods["early"]["metadata"]
    request = BindRequest(NAMESPACE, "early", meta["uid"], "n1")
    binding = asyncio.create_task(stage.replica.pool.binder.bind(request))
    assert await stage.flow(only=1) == 1  # the look at the promise
    (on_its_way,) = stage.turnstile.waiting
    stage.turnstile.waiting.clear()
    urgent = stage.pod("urgent", priority=9)
    stage.world.drop("servers", "s1")
    await stage.calm()
    assert stage.phases() == {"s1-g0": (urgent, "Reserved")}
    on_its_way[0].set_result(Fault.NONE)
    await stage.flow()
    assert await binding != ""
    assert stage.note("early") == ""
    assert early not in {uid for uid, _ in stage.phases().values()}


async def test_a_binding_that_landed_unheard_is_heard_of_before_cards_are_offered() -> None:
    stage = Stage()
    early = stage.pod("early")
    await stage.calm()
    assert await stage.bind("early") == ""
    stage.world.drop("servers", "s1")
    for replica in stage.replicas:  # the news of the placed pod is lost
        kept = [item for item in replica.news if item.kind != "pods"]
        replica.news.clear()
        replica.news.extend(kept)
    stage.pod("urgent", priority=9)
    await stage.calm()
    assert stage.phases() == {"s1-g0": (early, "Bound")}
