"""Nodes for tests of occupancy."""

from collections.abc import Callable, Iterator

import pytest

from tests.cluster import occupancy
from tests.cluster.occupancy import PROFILES, SERVERS, Json, Seen
from tests.lab import Lab
from tests.lab.api import Call


@pytest.fixture(scope="module")
def kinds(lab: Lab) -> None:
    occupancy.install_kinds(lab)


@pytest.fixture
def make_node(lab: Lab, kinds: None, namespace: str) -> Iterator[Callable[..., Seen]]:
    """Make a node object named after the test; with `serves` it is a lupine server."""
    made: list[str] = []

    def make(suffix: str = "", *, serves: bool = False, **metadata: Json) -> Seen:
        name = f"{namespace}{suffix}"
        occupancy.node(lab, name, **metadata)
        made.append(name)
        if serves:
            kind = {"apiVersion": "tenure.dev/v1alpha1", "kind": "RemoteServer", "metadata": {"name": name}}
            lab.apply(kind)
        return Seen(lab, name)

    yield make
    for name in made:
        for path in (f"/api/v1/nodes/{name}", f"{SERVERS}/{name}"):
            lab.api.request(Call("DELETE", path))
        for profile in Seen(lab, name).profiles():
            lab.api.request(Call("DELETE", f"{PROFILES}/{profile}"))
