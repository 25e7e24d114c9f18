from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import msgspec

from controllers.pool import placement
from controllers.pool.placement import Overdue
from controllers.pool.room import Room, requested
from service.objects import (
    Container,
    Node,
    NodeSpec,
    Pod,
    Quantity,
    ResourceRequirements,
    Taint,
    Toleration,
)
from tests.unit.pool import build


def uses(cpu: Quantity, memory: Quantity = 0, *, always: bool = False) -> Container:
    requests: dict[str, Quantity] = {"cpu": cpu, "memory": memory}
    return Container("c", "Always" if always else None, ResourceRequirements(None, requests))


@dataclass
class Place:
    """A node of 4 cores, 8 GiB and 2 pods."""

    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False

    def node(self) -> Node:
        base = build.node("n1", label=None)
        return msgspec.structs.replace(
            base,
            metadata=msgspec.structs.replace(base.metadata, labels=dict(self.labels)),
            spec=NodeSpec(self.unschedulable, self.taints),
            status=msgspec.structs.replace(
                base.status, allocatable={"cpu": "4", "memory": "8Gi", "pods": "2"}
            ),
        )


def fits(pod: Pod, place: Place | None = None, *, beside: tuple[Pod, ...] = ()) -> bool:
    room = Room()
    for other in beside:
        room.learn(other)
    return room.fits(pod, [(place or Place()).node()])


def with_spec(pod: Pod, **changes: Any) -> Pod:
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, **changes))


def test_the_largest_phase_counts_and_sidecars_run_beside_every_later_one() -> None:
    pod = build.pod("u", uses("1"), uses("500m"), inits=(uses("250m", always=True), uses("3")))
    assert requested(pod)["cpu"] == Decimal("3.25")


def test_a_pod_fits_only_where_cpu_memory_and_pod_slots_are_left() -> None:
    pod = build.pod("u", uses("3", "1Gi"))
    assert fits(pod)
    assert not fits(pod, beside=(build.pod("a", uses("2"), node="n1"),))
    assert not fits(build.pod("u", uses("1", "9Gi")))
    small = tuple(build.pod(uid, uses("100m"), node="n1") for uid in ("a", "b"))
    assert not fits(pod, beside=small)
    assert fits(pod, beside=(build.pod("a", uses("2"), node="n1", phase="Succeeded"),))


def test_room_comes_back_when_a_pod_is_gone() -> None:
    room = Room()
    room.learn(build.pod("a", uses("4"), node="n1"))
    pod = build.pod("u", uses("1"))
    assert not room.fits(pod, [Place().node()])
    room.forget("a")
    assert room.fits(pod, [Place().node()])


def test_a_node_selector_and_required_affinity_must_match() -> None:
    pod = with_spec(build.pod("u", uses("1")), node_selector={"zone": "a"})
    assert fits(pod, Place({"zone": "a"}))
    assert not fits(pod, Place({"zone": "b"}))

    def affine(*expressions: Mapping[str, Any]) -> Pod:
        terms = {"nodeSelectorTerms": [{"matchExpressions": list(expressions)}]}
        rule = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
        return with_spec(build.pod("u", uses("1")), affinity=rule)

    gen = Place({"gen": "7"})
    assert fits(affine({"key": "gen", "operator": "In", "values": ["7"]}), gen)
    assert not fits(affine({"key": "gen", "operator": "NotIn", "values": ["7"]}), gen)
    assert fits(affine({"key": "gen", "operator": "Exists"}, {"key": "x", "operator": "DoesNotExist"}), gen)
    assert fits(affine({"key": "gen", "operator": "Gt", "values": ["6"]}), gen)
    assert not fits(affine({"key": "gen", "operator": "Lt", "values": ["6"]}), gen)
    assert not fits(affine({"key": "gen", "operator": "Gt", "values": ["many"]}), gen)


def test_taints_keep_out_whoever_does_not_tolerate_them() -> None:
    tainted = Place(taints=(Taint("gpu", "yes", "NoSchedule"),))
    pod = build.pod("u", uses("1"))
    assert not fits(pod, tainted)
    for toleration in (
        Toleration("gpu", "Exists"),
        Toleration("gpu", "Equal", "yes", "NoSchedule"),
        Toleration("", "Exists"),
    ):
        assert fits(with_spec(pod, tolerations=(toleration,)), tainted)
    assert not fits(with_spec(pod, tolerations=(Toleration("gpu", "Equal", "no"),)), tainted)
    assert fits(pod, Place(taints=(Taint("gpu", "yes", "PreferNoSchedule"),)))


def test_an_unschedulable_node_has_no_room() -> None:
    assert not fits(build.pod("u", uses("1")), Place(unschedulable=True))


def late(uid: str, server: str, *sizes: int, seconds: float) -> Overdue:
    held = tuple(build.card(f"{server}-{uid}-{i}", mib=size, index=90 + i) for i, size in enumerate(sizes))
    return Overdue(uid, server, held, build.ago(seconds))


def test_the_oldest_unused_promise_passes_on_and_no_more_than_needed() -> None:
    offers = [build.offer("s")]
    unused = [late("newer", "s", 10, seconds=400), late("older", "s", 10, seconds=500)]
    found = placement.pass_on(build.waiting("w"), offers, unused, "binpack")
    assert found is not None
    assert found.losers == ("older",)
    assert [card.id for card in found.choice.cards] == ["s-older-0"]


def test_free_cards_count_beside_those_that_pass_on() -> None:
    found = placement.pass_on(
        build.waiting("w", count=2), [build.offer("s", 10)], [late("l", "s", 10, seconds=400)], "binpack"
    )
    assert found is not None
    assert {card.id for card in found.choice.cards} == {"s-0", "s-l-0"}


def test_cards_that_do_not_fit_the_waiting_pod_stay_where_they_are() -> None:
    unused = [late("l", "s", 10, seconds=400), late("m", "t", 10, seconds=400)]
    offers = [build.offer("s"), build.offer("t")]
    assert placement.pass_on(build.waiting("w", mib=20), offers, unused, "binpack") is None
    assert placement.pass_on(build.waiting("w", count=2), offers, unused, "binpack") is None
