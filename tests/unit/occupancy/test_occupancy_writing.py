"""What would be written, computed from what stands there."""

import asyncio
import json
import os
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from controllers.occupancy import holdings, node
from controllers.occupancy.cards import Card
from controllers.occupancy.cgroups import Managed
from controllers.occupancy.damping import Damping, Standing, settle
from controllers.occupancy.ends import Ends
from controllers.occupancy.evidence import Gap, Why
from controllers.occupancy.holders import Holder, State, Verdict
from controllers.occupancy.metrics import OccupancyMetrics
from controllers.occupancy.observed import change, drains, observed
from controllers.occupancy.profiles import Current, Profile, plan
from controllers.occupancy.scanner import Scan
from controllers.pool import servers
from controllers.pool.servers import Allocation, Observed, RemoteServer, RemoteServerSpec, RemoteServerStatus
from service.metrics import MetricSet
from service.objects import Node, ObjectMeta

NOW, LATER = "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z"
A = Card("nvidia", "GPU-a", "nvidia0", model="H200", uuid="GPU-a")
B = Card("nvidia", "GPU-b", "nvidia1", model="H200", uuid="GPU-b")


def standing(card: Card, state: State, *, clients: int | None = 0, blind: bool = False) -> Standing:
    holders = (Holder(7, "python3", Managed.HOST, 1),) if state is State.HOST else ()
    gaps = (Gap("tool", Why.SLOW, "slow"),) if blind else ()
    return settle(None, Verdict(card, state, holders, gaps, clients), Damping(), NOW)


class TestPlansForProfiles:
    told = {"inUse": "true", "health": "busy"}  # noqa: RUF012 - read only

    def current(self, extra: dict[str, Any], **more: Any) -> Current:
        return Current(extra, **more)

    def test_values_of_others_are_remembered_when_they_are_replaced(self) -> None:
        step = plan(self.current({"health": "ok", "slot": "3"}), self.told)
        assert (step.needed, dict(step.replaced), dict(step.restore)) == (True, {"health": "ok"}, {})

    def test_nothing_is_done_when_all_is_said(self) -> None:
        owned = frozenset(self.told)
        step = plan(self.current(self.told, owned=owned, replaced={"health": "ok"}), self.told)
        assert (step.needed, dict(step.replaced)) == (False, {"health": "ok"})

    def test_a_value_that_others_put_back_meanwhile_is_the_one_to_remember(self) -> None:
        now = {"inUse": "true", "health": "degraded"}
        step = plan(self.current(now, owned=frozenset({"inUse"}), replaced={"health": "ok"}), self.told)
        assert (step.needed, dict(step.replaced)) == (True, {"health": "degraded"})

    def test_values_come_back_before_their_keys_are_let_go(self) -> None:
        owned = frozenset(self.told)
        step = plan(self.current(self.told, owned=owned, replaced={"health": "ok"}), {"inUse": "false"})
        assert (step.needed, dict(step.replaced), dict(step.restore)) == (True, {}, {"health": "ok"})

    def test_what_was_given_back_earlier_is_not_taken_away_by_the_next_giving_back(self) -> None:
        now = {"inUse": "false", "health": "busy", "healthy": "true"}
        current = self.current(
            now,
            owned=frozenset({"inUse", "health"}),
            given=frozenset({"healthy"}),
            replaced={"health": "ok"},
        )
        assert dict(plan(current, {"inUse": "false"}).restore) == {"healthy": "true", "health": "ok"}

    def test_whose_a_key_is_the_api_server_says(self) -> None:
        fields: dict[str, Any] = {"f:spec": {"f:extra": {"f:inUse": {}, ".": {}}, "f:model": {}}}
        body = {
            "metadata": {
                "name": "p",
                "annotations": {"tenure.dev/replaced": '{"health":"ok"}'},
                "managedFields": [
                    {"manager": "tenure-node", "operation": "Apply", "fieldsV1": fields},
                    {"manager": "tenure-node", "operation": "Update", "fieldsV1": {"f:spec": 7}},
                ],
            },
            "spec": {"nodeName": "n", "extra": {"inUse": "true"}},
        }
        current = Current.of(msgspec.convert(body, Profile))
        assert (current.owned, dict(current.replaced)) == (frozenset({"inUse"}), {"health": "ok"})

    @pytest.mark.parametrize("text", ["", "[]", "{", '{"health": 3}', "[" * 5000])
    def test_a_record_that_somebody_broke_is_none(self, text: str) -> None:
        body = {"metadata": {"name": "p", "annotations": {"tenure.dev/replaced": text}}}
        assert dict(Current.of(msgspec.convert(body, Profile)).replaced) == {}


class TestWhatThePoolIsTold:
    def server(self, *told: Observed, cards: tuple[str, ...] = (), drain: bool = False) -> RemoteServer:
        allocation = Allocation("GPU-a", "u", "ns", "p", servers.Phase.DRAINING, NOW)
        status = RemoteServerStatus(
            cards=tuple(servers.Card(card) for card in cards), allocations=(allocation,) if drain else ()
        )
        return RemoteServer(ObjectMeta("n1"), RemoteServerSpec(told), status)

    def test_each_card_has_an_entry(self) -> None:
        told = observed([standing(B, State.FREE), standing(A, State.HOST, clients=2)], self.server(), NOW)
        assert told == (Observed("GPU-a", "host", 2, NOW), Observed("GPU-b", "free", 0, NOW))

    def test_a_card_that_the_agent_does_not_know_is_unknown_and_keeps_its_time(self) -> None:
        first = observed([], self.server(cards=("GPU-x",)), NOW)
        assert first == (Observed("GPU-x", "unknown", None, NOW),)
        assert observed([], self.server(*first, cards=("GPU-x",)), LATER) == first

    def test_a_card_whose_id_the_kind_cannot_hold_is_left_out(self) -> None:
        long = Card("nvidia", "GPU-" + "a" * 200, "nvidia0")
        assert observed([standing(long, State.FREE)], self.server(), NOW) == ()

    def test_it_is_written_on_change_only(self) -> None:
        told = observed([standing(A, State.FREE)], self.server(), NOW)
        patch = change(self.server(), told, NOW)
        assert patch == {
            "spec": {
                "observed": ({"card": "GPU-a", "state": "free", "lupineClients": 0, "since": NOW},),
                "seen": NOW,
            }
        }
        assert change(self.server(*told), told, LATER) is None

    def test_each_look_is_news_while_a_card_drains(self) -> None:
        told = observed([standing(A, State.FREE)], self.server(), NOW)
        assert change(self.server(*told, drain=True), told, LATER) == {"spec": {"seen": LATER}}
        assert drains(self.server(drain=True))
        assert not drains(self.server())
        assert not drains(None)


class TestTheNode:
    def object(self, **annotations: str) -> Node:
        names = {"cordon": "hami.io/device-cordon", "own": "tenure.dev/device-cordon-owned"}
        notes = {names[key]: value for key, value in annotations.items()}
        return Node(ObjectMeta("n1", resource_version="5", annotations=notes))

    def test_label_and_cordon_are_one_guarded_write(self) -> None:
        patch = node.change(self.object(cordon="GPU-x"), [standing(A, State.HOST)], complete=True)
        assert patch == {
            "metadata": {
                "labels": {"airm.ai-computing.io/host-held": "1"},
                "annotations": {
                    "hami.io/device-cordon": "GPU-x,GPU-a",
                    "tenure.dev/device-cordon-owned": "GPU-a",
                },
                "resourceVersion": "5",
            }
        }

    def test_other_spacing_in_others_lists_is_left_alone(self) -> None:
        patch = node.change(self.object(cordon=" GPU-x , GPU-y "), [standing(A, State.FREE)], complete=True)
        assert patch is not None
        assert patch["metadata"].keys() == {"labels", "resourceVersion"}

    def test_taking_back_leaves_what_others_wrote(self) -> None:
        patch = node.change(self.object(cordon="GPU-x,GPU-a", own="GPU-a"), [], complete=False)
        assert patch is not None
        assert patch["metadata"]["annotations"] == {
            "hami.io/device-cordon": "GPU-x",
            "tenure.dev/device-cordon-owned": None,
        }


class TestMetrics:
    labels = {"component": "tenure-node", "vendor": "nvidia", "model": "H200"}  # noqa: RUF012 - read only

    def test_gauges_count_what_is_known_and_fall_silent_for_what_is_not(self) -> None:
        registry = CollectorRegistry()
        metrics = OccupancyMetrics(MetricSet(registry))

        def shown(name: str) -> float | None:
            return registry.get_sample_value(name, self.labels)

        held, in_use, unknown = (
            "rm_accel_accelerators_host_held",
            "rm_accel_accelerators_in_use",
            "tenure_occupancy_unknown_cards",
        )
        metrics.show([standing(A, State.FREE), standing(B, State.FREE)])
        assert [shown(name) for name in (held, in_use, unknown)] == [0, 0, 0]
        metrics.show([standing(A, State.HOST), standing(B, State.UNKNOWN, blind=True)])
        assert [shown(name) for name in (held, in_use, unknown)] == [1, 1, 1]
        metrics.show([standing(A, State.FREE), standing(B, State.UNKNOWN, blind=True)])
        assert [shown(name) for name in (held, in_use, unknown)] == [None, None, 1]
        metrics.show([])
        assert [shown(name) for name in (held, in_use, unknown)] == [None, None, None]

    def test_a_source_that_fails_is_counted_once_for_each_scan(self) -> None:
        registry = CollectorRegistry()
        gaps = tuple(Gap("tool", Why.SLOW, f"slow {n}") for n in range(3))
        OccupancyMetrics(MetricSet(registry)).scanned(Scan((), gaps, 0.2))
        name = "tenure_occupancy_source_errors_total"
        assert registry.get_sample_value(name, {"source": "tool", "reason": "slow"}) == 1


class TestEnds:
    async def test_the_end_of_a_process_wakes(self) -> None:
        woken = asyncio.Event()
        ends = Ends(woken.set)
        program = await asyncio.create_subprocess_exec("sleep", "600")
        ends.watch([program.pid])
        ends.watch([program.pid])
        program.kill()
        async with asyncio.timeout(10):
            await woken.wait()
        await program.wait()
        ends.close()

    async def test_a_process_that_is_gone_already_wakes_at_once(self) -> None:
        woken = asyncio.Event()
        Ends(woken.set).watch([4_194_300])
        assert woken.is_set()

    async def test_one_that_is_not_watched_any_more_wakes_nobody(self) -> None:
        woken = asyncio.Event()
        ends = Ends(woken.set)
        ends.watch([os.getpid()])
        ends.watch([])
        assert not woken.is_set()


class TestWhatPeopleAreShown:
    def published(self, **extra: str) -> holdings.CardHoldings:
        body = {"metadata": {"name": "n1-a"}, "spec": {"nodeName": "n1", "extra": extra}}
        return holdings._published(msgspec.convert(body, Profile))

    @pytest.mark.parametrize(
        ("managed", "state"), [("host", "host"), ("k8s", "k8s"), ("unknown", "unknown"), ("lupine", "free")]
    )
    def test_a_profile_says_who_holds_the_card(self, managed: str, state: str) -> None:
        text = json.dumps([{"pid": 7, "command": "x", "managed": managed}])
        card = self.published(inUse="true", holders=text)
        assert (card.state, card.holders[0].pid) == (state, 7)

    def test_without_keys_it_is_unknown(self) -> None:
        assert self.published().state == "unknown"
        assert self.published(inUse="maybe", holders="{").state == "unknown"

    def test_a_row_names_each_holder_and_whose_it_is(self) -> None:
        held = (
            holdings.Held(7, "python3", "host"),
            holdings.Held(8, "train", "k8s", "ml/p"),
            holdings.Held(9, "lupine_driver_server", "lupine"),
        )
        card = holdings.CardHoldings("n1", "GPU-a", "nvidia", "H200", "host", held, "tool is slow")
        (row,) = holdings.rows(holdings.Holdings((card,)))
        assert dict(zip(holdings.HEADER, row, strict=True))["HELD BY"] == (
            "python3 (7, host), train (8, ml/p), lupine_driver_server (9, lupine client)"
        )

    def test_host_held_and_unknown_cards_are_findings(self) -> None:
        free = self.published(inUse="false", holders="[]")
        assert not holdings.Holdings((free,)).has_findings
        assert holdings.Holdings((free, self.published())).has_findings
        assert holdings.Holdings((), "blind").has_findings
