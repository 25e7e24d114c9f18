"""The field's rules for finding remote cards, one test each (HAMi's remote backend and its review; Tenure's design).

Where a rule speaks of a mechanism that Tenure does not have, its test shows what became of it here.
"""

import json

import pytest
from pydantic import ValidationError

from controllers.pool import servers
from controllers.pool.pods import Resources, view
from controllers.pool.servers import InventoryRules
from service import names
from service.settings import PoolSettings
from tests.unit.pool import build
from tests.unit.pool.stage import Stage, cards

RULES = InventoryRules()


def test_rule_1_two_resource_names_and_a_port_and_empty_names_disable_the_backend() -> None:
    pool = PoolSettings()
    assert (pool.resource_count_name, pool.resource_memory_name, pool.lupine_port) == (
        "hami.io/remote-gpu",
        "hami.io/remote-gpu-memory",
        14833,
    )
    assert not PoolSettings(resource_count_name="", resource_memory_name="").enabled
    with pytest.raises(ValidationError, match="both, or leave both empty"):
        PoolSettings(resource_count_name="", resource_memory_name="x")


def test_rule_2_the_request_is_read_under_the_names_of_the_settings_and_no_other() -> None:
    """The scheduler's configuration takes them from the same values: see the chart's tests."""
    renamed = Resources("example.com/gpu", "example.com/gpu-mib")
    pod = build.pod("u", build.asks(remote_gpu="1"))
    assert view(pod, Resources()) is not None
    assert view(pod, renamed) is None
    with pytest.raises(ValidationError, match="must differ"):
        PoolSettings(resource_count_name="x", resource_memory_name="x")


async def test_rule_3_the_request_stays_in_the_limits_and_the_extender_decides() -> None:
    stage = Stage()
    stage.pod("p")
    before = stage.world.pods["p"]["spec"]["containers"]
    await stage.placed("p")
    assert stage.world.pods["p"]["spec"]["containers"] == before
    assert before[0]["resources"]["limits"] == {names.REMOTE_GPU: "1"}


@pytest.mark.parametrize(
    ("label", "endpoint"), [("", "10.0.0.1:14833"), ("9000", "10.0.0.1:9000"), (None, "")]
)
def test_rule_4_a_node_is_a_server_by_its_label_whose_value_is_the_port(
    label: str | None, endpoint: str
) -> None:
    node = build.node(register=json.dumps(cards("s1", [1000])), label=label)
    assert servers.is_server(node) is (label is not None)
    if label is not None:
        assert servers.inventory(node, rules=RULES).endpoint == endpoint


def test_rule_5_the_inventory_is_read_from_the_nodes_register_annotation() -> None:
    found = servers.inventory(build.node(register=json.dumps(cards("s1", [1000, 2000]))), rules=RULES)
    assert [(card.id, card.memory_mib) for card in found.cards] == [("s1-g0", 1000), ("s1-g1", 2000)]


def test_rule_6_only_cards_in_remote_mode_join_the_pool() -> None:
    """Review finding R4. Fails without `if card.mode == rules.mode` in controllers/pool/servers.py, `inventory`."""
    listed = cards("s1", [1000, 2000])
    listed[0]["mode"] = "hami-core"
    found = servers.inventory(build.node(register=json.dumps(listed)), rules=RULES)
    assert [card.id for card in found.cards] == ["s1-g1"]


async def test_rule_7_a_card_is_named_by_its_server_and_its_id() -> None:
    stage = Stage()
    stage.pod("p")
    await stage.placed("p")
    assert stage.note("p") == "s1/s1-g0,NVIDIA,40000,100:;"


async def test_rule_8_a_node_that_becomes_a_server_is_no_client_and_the_last_server_going_is_no_error() -> (
    None
):
    """Review finding R3: no cards is an answer, not a failure.

    Fails when `Settler.reconcile` in controllers/pool/settle.py takes no empty `Inventory()` for a node that ceased
    to serve, or when `Extender._without_servers` in webhook/extender/handlers.py keeps servers.
    """
    stage = Stage(servers={"s1": [40_000]})
    stage.pod("p")
    await stage.calm()
    stage.add_server("n2", [10_000])
    await stage.calm()
    _, told = await stage.filter("p")
    assert json.loads(bytes(told.node_names)) == ["n1", "s2"]
    for name in ("s1", "n2"):
        stage.world.drop("nodes", name)
    stage.world.drop("pods", "p")
    await stage.calm()
    assert stage.world.servers == {}
    assert stage.replica.pool.shared.book.offers() == []
