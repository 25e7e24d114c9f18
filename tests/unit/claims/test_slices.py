"""Which devices a node can use."""

from typing import Any

import msgspec
import pytest

from service.objects import Node
from tests.unit.claims.build import NPU, device, inventory, slice_

NODES = {
    name: msgspec.convert({"metadata": {"name": name, "labels": labels}}, Node)
    for name, labels in (("n1", {"zone": "a", "size": "4"}), ("n2", {"size": "40"}))
}


def having(selector: Any) -> list[str]:
    found = slice_(NPU, None, [device("a", {})])
    del found["spec"]["allNodes"]
    found["spec"]["nodeSelector"] = selector
    made = inventory([found], NODES)
    return [node for node in made.nodes if made.pools(node)]


def term(key: str, operator: str, *values: object, where: str = "matchExpressions") -> dict[str, Any]:
    return {"nodeSelectorTerms": [{where: [{"key": key, "operator": operator, "values": list(values)}]}]}


@pytest.mark.parametrize(
    ("selector", "nodes"),
    [
        (term("zone", "In", "a", "b"), ["n1"]),
        (term("zone", "NotIn", "a"), ["n2"]),
        (term("zone", "Exists"), ["n1"]),
        (term("zone", "DoesNotExist"), ["n2"]),
        (term("size", "Gt", "10"), ["n2"]),
        (term("size", "Lt", "10"), ["n1"]),
        (term("metadata.name", "In", "n2", where="matchFields"), ["n2"]),
        ({"nodeSelectorTerms": [{}]}, []),
    ],
)
def test_a_slice_may_select_its_nodes(selector: Any, nodes: list[str]) -> None:
    assert having(selector) == nodes


@pytest.mark.parametrize(
    "selector",
    [
        {},
        {"nodeSelectorTerms": 3},
        {"nodeSelectorTerms": [True]},
        {"nodeSelectorTerms": [{"matchExpressions": True}]},
        {"nodeSelectorTerms": [{"matchExpressions": [7]}]},
        {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": True}]}]},
        term("size", "Gt", "many"),
        term("size", "Gt"),
    ],
)
def test_a_selector_that_makes_no_sense_selects_no_node(selector: Any) -> None:
    assert having(selector) == []
