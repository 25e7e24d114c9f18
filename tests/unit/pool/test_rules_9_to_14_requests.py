"""The field's rules for what a pod asks and gets, one test each."""

import msgspec
import pytest

from controllers.pool import demand, grant, placement
from controllers.pool.demand import DemandError
from controllers.pool.pods import Resources, view
from service import names
from service.objects import Container, EnvVar, EnvVarSource, FieldRef, Quantity, ResourceRequirements
from tests.unit.pool import build
from tests.unit.pool.stage import Stage


def asked(**resources: int) -> demand.Demand | None:
    limits: dict[str, Quantity] = {f"hami.io/{key.replace('_', '-')}": n for key, n in resources.items()}
    container = Container("main", resources=ResourceRequirements(limits))
    return demand.of([container], None, names.REMOTE_GPU, names.REMOTE_GPU_MEMORY)


def test_rule_9_a_request_is_a_count_of_whole_cards_and_perhaps_memory_per_card() -> None:
    assert asked(remote_gpu=0) is None
    assert asked() is None
    found = asked(remote_gpu=2, remote_gpu_memory=1000)
    assert found is not None
    assert found.slots == (1000, 1000)
    with pytest.raises(DemandError):
        asked(remote_gpu_memory=1000)


def test_rule_10_memory_filters_cards_and_the_card_is_wholly_held() -> None:
    choice = placement.choose(build.demand(1, 3000), [build.offer("s1", 1000, 4000)], "binpack")
    assert choice is not None
    assert [card.memory_mib for card in choice.cards] == [4000]
    written = grant.annotations("s1", build.demand(1, 3000), choice.cards)
    assert ",4000,100:" in written[names.DEVICES_ALLOCATED]


def test_rule_11_all_cards_of_a_request_come_from_one_server() -> None:
    offers = [build.offer("s1", 1000, 1000), build.offer("s2", 1000)]
    assert placement.choose(build.demand(3), offers, "binpack") is None


async def test_rule_12_unhealthy_held_and_promised_cards_are_no_candidates() -> None:
    stage = Stage(servers={"s1": [40_000, 40_000]})
    first, second = stage.pod("first"), stage.pod("second")
    stage.pod("third")
    await stage.placed("first")
    held = stage.phases()
    assert held == {"s1-g0": (first, "Bound"), "s1-g1": (second, "Reserved")}
    assert not stage.server().free_cards()


async def test_rule_13_endpoint_and_devices_are_written_by_the_binding() -> None:
    stage = Stage()
    stage.pod("p")
    await stage.calm()
    assert stage.note("p") == ""
    assert await stage.bind("p") == ""
    notes = stage.world.pods["p"]["metadata"]["annotations"]
    assert notes[names.LUPINE_ENDPOINT] == "10.0.0.1:14833"
    assert notes[names.DEVICES_ALLOCATED] == "s1/s1-g0,NVIDIA,40000,100:;"


def test_rule_14_a_pod_without_the_variable_from_our_annotation_is_never_served() -> None:
    """The variable itself is the webhook's: see the tests of admission."""
    good = build.asks(remote_gpu=1)
    path = f"metadata.annotations['{names.LUPINE_ENDPOINT}']"
    twice = build.asks(remote_gpu=1)
    own = EnvVar(names.LUPINE_SERVER_ENV, EnvVarSource(FieldRef(path)))
    doubled = msgspec.structs.replace(twice, env=(own, own))
    for container, served in (
        (good, True),
        (build.asks(remote_gpu=1, injected=False), False),
        (doubled, False),
    ):
        seen = view(build.pod("u", container), Resources())
        assert seen is not None
        assert seen.may_be_served is served
