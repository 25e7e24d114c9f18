import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controllers.pool import grant
from controllers.pool.demand import Demand, Kind, Need
from controllers.pool.grant import GrantError, Held
from controllers.pool.servers import Card
from tests.unit.pool import build

STRINGS = json.loads((Path(__file__).parents[2] / "fixtures/hami/devices-allocated.json").read_text())


def test_a_container_without_cards_keeps_its_position() -> None:
    demand = Demand((Need("init", Kind.INIT), Need("a", Kind.APP, 1), Need("b", Kind.APP, 2)))
    written = grant.annotations("s1", demand, build.cards(10, 20, 30))
    assert written["hami.io/remote-gpu-devices-allocated"] == (
        ";s1/GPU-0,NVIDIA,10,100:;s1/GPU-1,NVIDIA,20,100:s1/GPU-2,NVIDIA,30,100:;"
    )
    assert written["allocation.tenure.dev/b"] == "GPU-1,GPU-2"
    assert "allocation.tenure.dev/init" not in written


def test_the_endpoint_of_a_server_is_written_once_and_those_of_cards_in_card_order() -> None:
    one = build.demand(2)
    assert grant.annotations("s", one, build.cards(1, 1))["hami.io/lupine-endpoint"] == "10.0.0.1:14833"
    own = tuple(Card(f"GPU-{p}", p, "", 1, 100, 0, f"10.0.0.1:{p}", offered=True) for p in (7001, 7000))
    assert grant.annotations("s", one, own)["hami.io/lupine-endpoint"] == "10.0.0.1:7000,10.0.0.1:7001"


def test_cards_that_do_not_serve_the_demand_are_refused() -> None:
    with pytest.raises(GrantError, match='container "main"'):
        grant.divide(build.demand(2), build.cards(10))


def test_published_strings_keep_their_empty_slots() -> None:
    named = "a/" + STRINGS["init container without a card first"].lstrip(";")
    assert grant.decode(";" + named) == (
        (),
        (Held("a", "GPU-9b9030a3-0000-0000-0000-000000000000", 6144, 30),),
    )
    assert grant.decode(",,0,0:;a/GPU-1,NVIDIA,1,1:;") == ((), (Held("a", "GPU-1", 1, 1),))


@pytest.mark.parametrize("text", ["s/uuid,type,100:;", "uuid,NVIDIA,1,1:;", "s/,N,1,1:;", "s/u,N,x,1:;"])
def test_what_is_not_a_card_of_a_server_is_refused(text: str) -> None:
    with pytest.raises(GrantError):
        grant.decode(text)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=5))
def test_what_is_written_is_read_back(counts: list[int]) -> None:
    demand = Demand(tuple(Need(f"c{i}", Kind.APP, n) for i, n in enumerate(counts)))
    chosen = build.cards(*range(1, sum(counts) + 1))
    shares = grant.divide(demand, chosen)
    held = tuple(tuple(Held("n", c.id, c.memory_mib, c.cores) for c in share) for share in shares)
    assert grant.decode(grant.encode("n", shares)) == held
