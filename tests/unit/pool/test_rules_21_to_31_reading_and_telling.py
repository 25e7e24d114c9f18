"""The field's rules for reading the cluster, for forged allocations and for metrics, one test each.

Tenure keeps no snapshot with a time to live: watches keep the book. What is left of the forced refresh is one shared,
consistent list of the servers before a pod is rejected.
"""

import asyncio
import json
from datetime import timedelta

from prometheus_client import generate_latest

from controllers.pool.lookup import PAUSE_S
from controllers.pool.metrics import Filter
from controllers.pool.notices import DOUBT_S
from service import names
from service.metrics import MetricSet
from tests.prove.pool_replica import Replica
from tests.prove.pool_world import Fault
from tests.unit.pool.stage import Heard, Stage, cards, node_object


def deaf(stage: Stage) -> Replica:
    """A second replica that has heard of no promise yet."""
    replica = stage.replicas[1]
    replica.news.clear()
    return replica


async def test_rule_21_a_read_on_the_schedulers_path_has_a_deadline_and_most_calls_need_none() -> None:
    stage = Stage()
    stage.pod("p")
    await stage.calm()
    asked = asyncio.create_task(stage.filter("p"))
    await stage.turns()
    assert stage.turnstile.waiting == []
    assert (await asked)[0] is Filter.PROMISED
    assert stage.replica.pool.shared.settings.read_deadline_s == 1.0


async def test_rule_22_an_api_server_that_hangs_costs_one_read_and_not_one_per_pod() -> None:
    """Fails without `self._failed_at` in controllers/pool/lookup.py."""
    stage = Stage(servers={"s1": [1000]})
    for name in ("a", "b", "c"):
        stage.pod(name)
    calls = [asyncio.create_task(stage.replica.extender.filter(body(stage, name))) for name in ("a", "b")]
    assert await stage.flow(Fault.NOT_SENT) == 1
    assert [(await call)[0] for call in calls] == [Filter.UNKNOWN] * 2
    late = asyncio.create_task(stage.replica.extender.filter(body(stage, "c")))
    assert await stage.flow(Fault.NOT_SENT) == 0
    outcome, told = await late
    assert outcome is Filter.UNKNOWN
    assert "did not answer" in told.error
    stage.world.now += timedelta(seconds=PAUSE_S)
    again = asyncio.create_task(stage.replica.extender.filter(body(stage, "c")))
    assert await stage.flow() == 1
    assert (await again)[0] is Filter.NO_PROMISE


def body(stage: Stage, name: str) -> bytes:
    return json.dumps({"Pod": stage.world.pods[name], "NodeNames": ["n1"]}).encode()


async def test_rule_23_a_slow_read_holds_up_nobody_and_an_older_answer_overwrites_no_newer_one() -> None:
    """Review finding R6. Fails without `_overtaken` in `Book.learn`, controllers/pool/book.py."""
    stage = Stage(servers={"s1": [40_000]})
    uid = stage.pod("known")
    await stage.calm()
    stage.pod("stranger", count=9)
    slow = asyncio.create_task(stage.replica.extender.filter(body(stage, "stranger")))
    await stage.turns()
    stage.turnstile.waiting.pop()[0].set_result(Fault.SLOW)
    await stage.turns()
    outcome, _ = await stage.replica.extender.filter(body(stage, "known"))
    assert outcome is Filter.PROMISED
    (old_answer,) = stage.turnstile.waiting
    stage.turnstile.waiting.clear()
    stage.world.drop("pods", "known")
    heir = stage.pod("heir")
    await stage.calm()
    old_answer[0].set_result(Fault.NONE)
    await stage.turns()
    assert (await slow)[0] is Filter.NO_PROMISE
    assert stage.replica.pool.shared.book.promise(uid) is None
    assert stage.replica.pool.shared.book.promise(heir) is not None


async def test_rule_24_before_a_rejection_the_servers_are_read_once() -> None:
    """Fails when `Lookup.promise` in controllers/pool/lookup.py answers from the book alone."""
    stage = Stage(replicas=2)
    await stage.calm()
    stage.pod("p")
    while stage.replica.news:
        stage.replica.hear()
    stage.replica.serve()
    await stage.flow()
    asked = asyncio.create_task(deaf(stage).extender.filter(body(stage, "p")))
    assert await stage.flow() == 1
    assert (await asked)[0] is Filter.PROMISED


async def test_rule_25_cards_of_a_server_that_changed_meanwhile_are_not_given_on_the_old_reading() -> None:
    """Review finding R5. Fails without the resourceVersion in `ServerWriter.swap`, controllers/pool/writer.py."""
    stage = Stage()
    await stage.calm()
    uid = stage.pod("p")
    stage.hear()
    sick = [card | {"health": False} for card in cards("s1", [40_000])]
    stage.replica.serve()
    await stage.turns()
    (held_up,) = stage.turnstile.waiting
    stage.turnstile.waiting.clear()
    server = stage.world.servers["s1"]
    status = server["status"]
    gone = [card | {"offered": False, "reasons": ["Unhealthy"]} for card in status["cards"]]
    stage.world.put("servers", "s1", server | {"status": status | {"cards": gone}})
    notes = {names.NODE_REGISTER: json.dumps(sick)}
    node = node_object({names.LUPINE_SERVER_LABEL: ""}, notes)
    stage.world.put(
        "nodes", "s1", node | {"metadata": stage.world.nodes["s1"]["metadata"] | node["metadata"]}
    )
    held_up[0].set_result(Fault.NONE)
    await stage.flow()
    assert stage.phases() == {}
    await stage.calm()
    assert stage.replica.pool.shared.book.promise(uid) is None
    assert stage.world.pods["p"]["spec"]["schedulingGates"]


async def test_rule_26_a_failed_read_keeps_what_is_known() -> None:
    stage = Stage(servers={"s1": [40_000], "s2": [40_000]})
    await stage.calm()
    known = list(stage.replica.pool.shared.book.names)
    stage.pod("stranger", count=9)
    asked = asyncio.create_task(stage.replica.extender.filter(body(stage, "stranger")))
    await stage.flow(Fault.NOT_SENT)
    assert (await asked)[0] is Filter.UNKNOWN
    assert list(stage.replica.pool.shared.book.names) == known


async def test_rule_27_nothing_is_written_while_no_fleet_changed() -> None:
    stage = Stage()
    await stage.calm()
    version = stage.world.version
    stage.world.put("nodes", "s1", stage.world.nodes["s1"])
    await stage.calm()
    assert stage.world.version == version + 1


async def test_rule_28_a_change_of_health_alone_is_a_change() -> None:
    """Review finding R8. Fails when `_read` in controllers/pool/pool.py leaves annotations out of what it compares."""
    stage = Stage()
    await stage.calm()
    assert stage.server().status.free == 1
    queue = stage.replica.pool._to_settle  # the controller's own queue; no worker runs here
    while len(queue):
        queue.done(await queue.get())
    sick = [card | {"health": False} for card in cards("s1", [40_000])]
    changed = node_object({names.LUPINE_SERVER_LABEL: ""}, {names.NODE_REGISTER: json.dumps(sick)})
    meta = stage.world.nodes["s1"]["metadata"] | changed["metadata"]
    stage.world.put("nodes", "s1", changed | {"metadata": meta})
    stage.hear()
    assert len(queue) == 1
    stage.replica.settle(await queue.get())
    await stage.flow()
    assert stage.server().status.free == 0


async def test_rule_29_an_allocation_that_a_pod_only_claims_holds_nothing_and_is_reported() -> None:
    """Review finding R7. Fails when `_witness` in controllers/pool/pods.py believes cards that nobody asked for."""
    stage = Stage()
    heard = Heard()
    stage.replica.pool.shared.notices._events = heard.recorder
    stage.pod("liar", annotations={names.DEVICES_ALLOCATED: "s1/s1-g0,NVIDIA,1,1:s1/s1-g0b,NVIDIA,1,1:;"})
    liar = stage.world.pods["liar"]
    liar["spec"] |= {"nodeName": "n1", "schedulingGates": []}
    stage.world.put("pods", "liar", liar)
    honest = stage.pod("honest")
    await stage.calm()
    assert stage.phases() == {"s1-g0": (honest, "Reserved")}
    stage.world.now += timedelta(seconds=DOUBT_S)
    await stage.calm()
    assert heard.said.count(("liar", "AllocationNotBelieved")) == 1


async def test_rule_30_each_card_is_told_once_by_its_server_and_no_client_node_repeats_it() -> None:
    """Review finding H2. Fails when `PoolCollector` in controllers/pool/collect.py tells a card once per node."""
    stage = Stage(servers={"s1": [40_000, 40_000]})
    await stage.calm()
    lines = scraped(stage, "hami_remote_gpu_allocated{")
    assert len(lines) == 2
    assert all('server="s1"' in line and "node=" not in line for line in lines)


async def test_rule_31_a_scrape_reads_memory_and_shows_what_is_held() -> None:
    stage = Stage()
    stage.pod("p")
    await stage.placed("p")
    (line,) = scraped(stage, "hami_remote_gpu_allocated{")
    assert line.endswith(" 1.0")
    (memory,) = scraped(stage, "hami_vgpu_memory_allocated_bytes{")
    assert 'device_uuid="s1-g0"' in memory
    assert float(memory.split()[-1]) == 40_000 * 1024 * 1024
    assert stage.turnstile.waiting == []


def scraped(stage: Stage, start: str) -> list[str]:
    registry: MetricSet = stage.replica.metrics
    return [
        line for line in generate_latest(registry.registry).decode().splitlines() if line.startswith(start)
    ]
