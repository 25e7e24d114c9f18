from collections.abc import Sequence
from datetime import timedelta

import msgspec
import pytest

from controllers.pool import ledger
from controllers.pool.ledger import DrainRules, Fate, Scene, Witness
from controllers.pool.servers import (
    Inventory,
    Observed,
    RemoteServer,
    RemoteServerStatus,
)
from tests.unit.pool import build

RULES = DrainRules(cool_down=timedelta(0), silent=timedelta(seconds=120))


def settle(
    server: RemoteServer,
    fate: Fate = Fate.UNKNOWN,
    *,
    inventory: Inventory | None = None,
    witnesses: Sequence[Witness] = (),
    rules: DrainRules = RULES,
) -> RemoteServerStatus:
    listed = inventory or Inventory("10.0.0.1:14833", server.status.cards)
    return ledger.settle(server, Scene(listed, lambda _: fate, witnesses, rules, build.NOW))


def phases(status: RemoteServerStatus) -> list[str]:
    return [item.phase for item in status.allocations]


def test_nothing_to_do_changes_nothing() -> None:
    server = build.server(held=[build.allocation()])
    assert settle(server, Fate.WAITING) == server.status


def test_a_promise_becomes_bound_when_its_pod_is_placed() -> None:
    assert phases(settle(build.server(held=[build.allocation()]), Fate.PLACED)) == ["Bound"]


@pytest.mark.parametrize("phase", ["Reserved", "Bound"])
def test_a_pod_nobody_knows_gives_nothing_back(phase: str) -> None:
    server = build.server(held=[build.allocation(phase=phase)])
    assert settle(server, Fate.UNKNOWN) == server.status


def test_a_pod_that_never_had_a_node_leaves_its_cards_at_once() -> None:
    agent = [Observed("GPU-0", "k8s", 1)]
    server = build.server(held=[build.allocation()], observed=agent, seen=build.NOW)
    assert phases(settle(server, Fate.NEVER_PLACED)) == []


def test_without_an_agent_a_card_drains_for_the_cool_down() -> None:
    rules = DrainRules(cool_down=timedelta(seconds=30))
    server = build.server(held=[build.allocation(phase="Bound")])
    assert phases(settle(server, Fate.ENDED, rules=rules)) == ["Draining"]
    for since, expected in ((29, ["Draining"]), (30, [])):
        held = [build.allocation(phase="Draining", since=build.ago(since))]
        assert phases(settle(build.server(held=held), Fate.ENDED, rules=rules)) == expected


def test_without_an_agent_and_cool_down_a_card_is_free_with_its_pods_end() -> None:
    assert phases(settle(build.server(held=[build.allocation(phase="Bound")]), Fate.ENDED)) == []


def drained(view: Observed, *, seen: float, since: float) -> bool:
    held = [build.allocation(phase="Draining", since=build.ago(since))]
    server = build.server(held=held, observed=[view], seen=build.ago(seen))
    return phases(settle(server, Fate.ENDED)) == []


def test_a_draining_card_is_free_when_its_agent_looked_after_the_end_and_saw_nobody() -> None:
    assert drained(Observed("GPU-0", "free", 0), seen=1, since=5)
    assert not drained(Observed("GPU-0", "free", 0), seen=6, since=5)


def test_a_draining_card_is_never_given_while_the_agent_sees_a_client() -> None:
    assert not drained(Observed("GPU-0", "free", 1), seen=1, since=10_000)
    assert not drained(Observed("GPU-0", "host"), seen=1, since=10_000)


def test_a_draining_card_is_free_120_s_after_its_agent_fell_silent_or_unknown() -> None:
    busy = Observed("GPU-0", "k8s", 1)
    assert not drained(busy, seen=119, since=10_000)
    assert drained(busy, seen=120, since=10_000)
    unknown = Observed("GPU-0", "unknown")
    assert not drained(unknown, seen=1, since=119)
    assert drained(unknown, seen=1, since=120)


def test_a_held_card_that_left_the_inventory_is_missing_and_goes_with_its_pod() -> None:
    server = build.server(of=build.cards(10, 20), held=[build.allocation("GPU-1", phase="Bound")])
    rest = Inventory("10.0.0.1:14833", build.cards(10))
    status = settle(server, Fate.PLACED, inventory=rest)
    assert [(card.id, card.offered, card.reasons) for card in status.cards] == [
        ("GPU-0", True, ()),
        ("GPU-1", False, ("Missing",)),
    ]
    assert [card.id for card in settle(server, Fate.ENDED, inventory=rest).cards] == ["GPU-0"]


def test_a_placed_pod_that_no_object_lists_is_written_back_as_bound() -> None:
    witness = Witness("u9", "ns", "p9", ("GPU-0",))
    status = settle(build.server(), witnesses=[witness])
    assert [(a.card, a.pod_uid, a.phase) for a in status.allocations] == [("GPU-0", "u9", "Bound")]


def test_a_witness_takes_no_card_from_its_holder_nor_an_unknown_one_and_the_older_one_wins() -> None:
    server = build.server(of=build.cards(1, 1), held=[build.allocation("GPU-0", "u1", "Bound")])
    liar = Witness("u2", "ns", "p2", ("GPU-0", "GPU-7"))
    older, younger = (Witness(uid, "ns", uid, ("GPU-1",)) for uid in ("old", "new"))
    status = settle(server, Fate.PLACED, witnesses=[liar, older, younger])
    assert [(a.card, a.pod_uid) for a in status.allocations] == [("GPU-0", "u1"), ("GPU-1", "old")]


def test_a_card_that_is_not_free_cannot_be_reserved() -> None:
    server = build.server(
        of=[*build.cards(1, 1), build.card("GPU-x", offered=False)], held=[build.allocation("GPU-0", "u1")]
    )
    for wanted in (("GPU-0",), ("GPU-x",), ("GPU-1", "GPU-0"), ("GPU-1", "GPU-1"), ("none",), ()):
        assert ledger.reserve(server, pod=Witness("u2", "ns", "p", wanted), now=build.NOW) is None
    status = ledger.reserve(server, pod=Witness("u2", "ns", "p", ("GPU-1",)), now=build.NOW)
    assert status is not None
    assert (status.free, status.held, status.total) == (0, 2, 3)


def test_an_unused_promise_is_revoked_and_then_resolved_by_what_its_pod_says() -> None:
    held = [
        build.allocation("GPU-0", "u1", "Bound"),
        build.allocation("GPU-1", "u1"),
        build.allocation("GPU-2", "u2"),
        build.allocation("GPU-3", "u3"),
    ]
    server = build.server(of=build.cards(1, 1, 1, 1), held=held)
    revoked = ledger.revoke(server, {"u1", "u2"}, now=build.NOW)
    assert phases(revoked) == ["Bound", "Passing", "Passing", "Reserved"]
    resolved = ledger.resolve(
        msgspec.structs.replace(server, status=revoked), {"u1": False, "u2": True}, now=build.NOW
    )
    assert [(a.card, a.phase) for a in resolved.allocations] == [
        ("GPU-0", "Bound"),
        ("GPU-2", "Bound"),
        ("GPU-3", "Reserved"),
    ]


def test_a_revoked_promise_becomes_bound_when_its_pod_turns_out_to_be_placed() -> None:
    server = build.server(held=[build.allocation(phase="Passing")])
    assert phases(settle(server, Fate.PLACED)) == ["Bound"]
    assert phases(settle(server, Fate.WAITING)) == ["Passing"]
    assert phases(settle(server, Fate.NEVER_PLACED)) == []
