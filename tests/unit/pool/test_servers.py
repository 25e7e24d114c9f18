import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from controllers.pool import servers
from controllers.pool.servers import Inventory, InventoryRules, Observed
from service import names
from tests.unit.pool import build

FIXTURES: Mapping[str, str] = json.loads(
    (Path(__file__).parents[2] / "fixtures/hami/node-nvidia-register.json").read_text()
)
H200 = FIXTURES["json-remote-h200"]
FIRST = "GPU-0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9"
SECOND = "GPU-1a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9"
RULES = InventoryRules()


def reasons(inventory: Inventory) -> list[tuple[str, ...]]:
    return [
        tuple(reason for reason in card.reasons if reason != "OccupancyUnknown") for card in inventory.cards
    ]


def test_only_cards_in_remote_mode_join_the_pool() -> None:
    mixed = json.dumps([*json.loads(H200), *json.loads(FIXTURES["json-v2.10-hami-core"])])
    found = servers.inventory(build.node(register=mixed), rules=RULES)
    assert [card.id for card in found.cards] == [FIRST, SECOND]
    local = servers.inventory(build.node(register=FIXTURES["json-v2.10-hami-core"]), rules=RULES)
    assert local == Inventory("10.0.0.1:14833")


@pytest.mark.parametrize(("label", "endpoint"), [("", "10.0.0.1:14833"), ("9000", "10.0.0.1:9000")])
def test_the_label_gives_the_port_and_an_empty_one_means_the_default(label: str, endpoint: str) -> None:
    found = servers.inventory(build.node(register=H200, label=label), rules=RULES)
    assert {card.endpoint for card in found.cards} == {endpoint}


@pytest.mark.parametrize("label", ["0", "65536", "http", "80 ", "-1", "٣"])
def test_a_label_that_is_no_port_leaves_the_node_without_cards_and_says_so(label: str) -> None:
    found = servers.inventory(build.node(register=H200, label=label), rules=RULES)
    assert not found.cards
    assert "is not a port from 1 to 65535" in found.problems[0]


def test_the_address_is_the_first_ipv4_internal_ip() -> None:
    addresses = [
        ("Hostname", "h"),
        ("ExternalIP", "1.2.3.4"),
        ("InternalIP", "fd00::1"),
        ("InternalIP", "10.0.0.9"),
    ]
    found = servers.inventory(build.node(register=H200, addresses=addresses), rules=RULES)
    assert found.endpoint == "10.0.0.9:14833"
    none = servers.inventory(build.node(register=H200, addresses=[("InternalIP", "fd00::1")]), rules=RULES)
    assert not none.cards
    assert "IPv4" in none.problems[0]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"ready": "False"}, "NodeNotReady"),
        ({"ready": "Unknown"}, "NodeNotReady"),
        ({"deleting": True}, "NodeDeleting"),
        ({"unschedulable": True}, "NodeUnschedulable"),
    ],
)
def test_cards_of_a_node_in_trouble_are_kept_but_not_offered(change: dict[str, object], reason: str) -> None:
    found = servers.inventory(build.node(register=H200, **change), rules=RULES)  # type: ignore[arg-type]
    assert reasons(found) == [(reason,), (reason,)]
    assert not any(card.offered for card in found.cards)


def test_unhealthy_cordoned_host_held_and_doubly_registered_cards_are_not_offered() -> None:
    sick = json.dumps([{**entry, "health": False} for entry in json.loads(H200)])
    assert reasons(servers.inventory(build.node(register=sick), rules=RULES)) == [("Unhealthy",)] * 2
    cordon = build.node(register=H200, annotations={names.DEVICE_CORDON: f"{FIRST}, other"})
    assert reasons(servers.inventory(cordon, rules=RULES)) == [("Cordoned",), ()]
    node = build.node(register=H200)
    held = servers.inventory(node, observed=[Observed(SECOND, "host")], rules=RULES)
    assert reasons(held) == [(), ("HostHeld",)]
    assert [card.offered for card in held.cards] == [True, False]
    double = servers.inventory(node, elsewhere={FIRST}, rules=RULES)
    assert reasons(double) == [("DuplicateId",), ()]


def test_a_card_nobody_ever_looked_at_is_offered_and_flagged() -> None:
    found = servers.inventory(build.node(register=H200), observed=[Observed(FIRST, "free")], rules=RULES)
    assert [(card.offered, card.reasons) for card in found.cards] == [
        (True, ()),
        (True, ("OccupancyUnknown",)),
    ]


def test_a_node_may_name_a_port_for_each_card() -> None:
    node = build.node(register=H200, annotations={names.CARD_ENDPOINTS: json.dumps({SECOND: 15001})})
    found = servers.inventory(node, rules=RULES)
    assert [card.endpoint for card in found.cards] == ["10.0.0.1:14833", "10.0.0.1:15001"]


@pytest.mark.parametrize("ports", ["[]", "{", '{"a":"b"}', '{"a":0}', '{"a":70000}'])
def test_card_endpoints_that_cannot_be_read_leave_the_node_without_cards(ports: str) -> None:
    node = build.node(register=H200, annotations={names.CARD_ENDPOINTS: ports})
    found = servers.inventory(node, rules=RULES)
    assert not found.cards
    assert names.CARD_ENDPOINTS in found.problems[0]


def test_a_server_node_without_a_readable_annotation_has_no_cards_and_says_what_is_missing() -> None:
    assert "is HAMi's device plugin running?" in servers.inventory(build.node(), rules=RULES).problems[0]
    for text in ("[]", "not-valid-json", ""):
        found = servers.inventory(build.node(register=text), rules=RULES)
        assert not found.cards
        assert found.problems
