"""From verdicts to what is said about a card and done with it."""

import json

import pytest

from controllers.occupancy import profiles
from controllers.occupancy.cards import Card, profile_name
from controllers.occupancy.cgroups import Managed
from controllers.occupancy.damping import Damping, Standing, restored, settle
from controllers.occupancy.evidence import Gap, Why
from controllers.occupancy.holders import Holder, State, Verdict
from controllers.occupancy.labels import Cordon, cordon, host_held

A = Card("nvidia", "GPU-a", "nvidia0", uuid="GPU-a", model="H200", bdf="0000:01:00.0")
B = Card("nvidia", "GPU-b", "nvidia1", uuid="GPU-b")
HOLDER = Holder(37839, "python3", Managed.HOST, 5)
RULES = Damping()


def free(card: Card = A) -> Verdict:
    return Verdict(card, State.FREE, lupine_clients=0)


def host(card: Card = A) -> Verdict:
    return Verdict(card, State.HOST, (HOLDER,), lupine_clients=0)


def unknown(card: Card = A) -> Verdict:
    return Verdict(card, State.UNKNOWN, gaps=(Gap("tool", Why.SLOW, "slow"),))


def after(*verdicts: Verdict, rules: Damping = RULES, before: Standing | None = None) -> Standing:
    standing = before
    for number, verdict in enumerate(verdicts):
        standing = settle(standing, verdict, rules, f"2026-01-01T00:00:{number:02d}Z")
    assert standing is not None
    return standing


class TestDamping:
    def test_a_host_holder_is_believed_on_first_sight(self) -> None:
        standing = after(free(), host())
        assert (standing.state, standing.excluded, standing.observed) == (State.HOST, True, State.HOST)

    def test_he_is_gone_after_two_clean_scans_and_not_after_one(self) -> None:
        once = after(host(), free())
        assert (once.state, once.excluded, once.verdict.holders) == (State.HOST, True, (HOLDER,))
        twice = after(host(), free(), free())
        assert (twice.state, twice.excluded, twice.observed) == (State.FREE, False, State.FREE)

    def test_when_nobody_can_look_silence_is_said_and_the_exclusion_stays(self) -> None:
        standing = after(host(), unknown())
        assert (standing.state, standing.excluded, standing.observed) == (State.UNKNOWN, True, State.HOST)

    def test_a_blind_scan_between_clean_ones_starts_the_count_again(self) -> None:
        assert after(host(), free(), unknown(), free()).excluded
        assert not after(host(), free(), unknown(), free(), free()).excluded

    def test_a_card_that_was_never_seen_is_unknown_and_not_excluded(self) -> None:
        standing = after(unknown())
        assert (standing.state, standing.excluded, standing.observed) == (State.UNKNOWN, False, State.UNKNOWN)

    def test_memory_of_a_process_that_is_gone_counts_for_no_clean_scan(self) -> None:
        gone = Verdict(
            A, State.UNKNOWN, (Holder(1, "gone", Managed.UNKNOWN),), (Gap("p", Why.PROCESS_GONE, "x"),)
        )
        assert after(host(), gone, free()).excluded

    def test_pods_with_a_gap_count_for_no_clean_scan(self) -> None:
        pods = Verdict(A, State.K8S, (Holder(1, "x", Managed.K8S),), (Gap("t", Why.FAILED, "x"),))
        assert after(host(), pods, pods, pods).excluded

    def test_both_numbers_are_settings(self) -> None:
        slow = Damping(host_rounds=2, clean_rounds=3)
        assert not after(host(), rules=slow).excluded
        assert after(host(), host(), rules=slow).excluded
        assert after(host(), host(), free(), free(), rules=slow).excluded
        assert not after(host(), host(), free(), free(), free(), rules=slow).excluded
        with pytest.raises(ValueError, match="at least one"):
            Damping(clean_rounds=0)

    def test_what_an_earlier_life_excluded_needs_clean_scans_too(self) -> None:
        before = restored(unknown(), "2026-01-01T00:00:00Z")
        assert after(unknown(), before=before).excluded
        assert after(free(), before=before).excluded
        assert not after(free(), free(), before=before).excluded

    def test_the_time_moves_only_when_what_the_pool_is_told_changes(self) -> None:
        assert after(host(), host(), host()).since == "2026-01-01T00:00:00Z"
        served = Verdict(A, State.FREE, (Holder(1, "x", Managed.LUPINE),), lupine_clients=1)
        assert after(free(), free(), served, served).since == "2026-01-01T00:00:02Z"

    def test_the_number_of_lupine_clients_is_never_damped(self) -> None:
        assert after(host(), free()).clients == 0
        assert after(host(), unknown()).clients is None


class TestLabel:
    def test_it_counts_host_held_cards(self) -> None:
        assert host_held([after(host(A)), after(free(B))], complete=True) == "1"

    def test_zero_needs_every_card_seen(self) -> None:
        assert host_held([after(free(A)), after(free(B))], complete=True) == "0"
        assert host_held([after(free(A)), after(unknown(B))], complete=True) is None
        assert host_held([after(free(A))], complete=False) is None
        assert host_held([], complete=True) is None

    def test_positive_evidence_is_said_beside_unknown_cards(self) -> None:
        assert host_held([after(host(A)), after(unknown(B))], complete=False) == "1"

    def test_an_excluded_card_that_is_unknown_now_is_no_zero(self) -> None:
        assert host_held([after(host(A), unknown(A))], complete=True) is None


class TestCordon:
    def test_it_adds_to_what_others_wrote(self) -> None:
        new = cordon(Cordon.parse("GPU-x, GPU-y", None), [after(host(A)), after(free(B))])
        assert new.annotations() == ("GPU-x,GPU-y,GPU-a", "GPU-a")

    def test_it_takes_back_only_its_own(self) -> None:
        before = Cordon.parse("GPU-x,GPU-a", "GPU-a")
        assert cordon(before, [after(free(A))]).annotations() == ("GPU-x", None)

    def test_a_card_that_others_cordoned_stays_cordoned(self) -> None:
        held = cordon(Cordon.parse("GPU-a", None), [after(host(A))])
        assert held.annotations() == ("GPU-a", None)
        assert cordon(held, [after(free(A))]).annotations() == ("GPU-a", None)

    def test_an_entry_that_somebody_removed_comes_back_while_the_reason_lasts(self) -> None:
        assert cordon(Cordon.parse("", "GPU-a"), [after(host(A))]).annotations() == ("GPU-a", "GPU-a")

    def test_a_cordon_stays_while_nobody_can_look(self) -> None:
        before = Cordon.parse("GPU-a", "GPU-a")
        assert cordon(before, [after(host(A), unknown(A))]) == before

    def test_only_nvidia_cards_are_cordoned(self) -> None:
        other = Card("furiosa", "0000:03:00.0", "npu0", uuid="09512C86")
        assert cordon(Cordon(), [after(host(other))]) == Cordon()


class TestProfile:
    def test_a_free_card_says_so(self) -> None:
        assert profiles.keys(after(free())) == {"inUse": "false", "holders": "[]"}

    def test_a_host_held_card_is_busy_and_not_healthy(self) -> None:
        assert profiles.keys(after(host())) == {
            "inUse": "true",
            "holders": '[{"pid":37839,"command":"python3","managed":"host"}]',
            "health": "busy",
            "healthy": "false",
        }

    def test_a_card_held_by_pods_keeps_its_health_keys(self) -> None:
        holder = Holder(9, "train", Managed.K8S, 1, namespace="ml", pod="p", pod_uid="u")
        told = profiles.keys(after(Verdict(A, State.K8S, (holder,))))
        assert json.loads(told["holders"]) == [
            {"pid": 9, "command": "train", "managed": "k8s", "pod": "ml/p"}
        ]
        assert told.keys() == {"inUse", "holders"}

    def test_an_unknown_card_says_nothing(self) -> None:
        assert profiles.keys(after(unknown())) == {}
        assert profiles.keys(after(host(), unknown())) == {}

    def test_the_list_of_holders_has_an_end(self) -> None:
        many = Verdict(A, State.HOST, tuple(Holder(n, "x" * 64, Managed.HOST, 1) for n in range(1, 500)))
        assert len(json.loads(profiles.keys(after(many))["holders"])) == 64


class TestNames:
    def test_a_profile_is_named_by_node_and_card(self) -> None:
        card = Card("furiosa", "0000:03:00.0", "npu0")
        assert profile_name("n1.example", card) == "n1.example-0000-03-00.0"

    def test_long_names_are_cut_and_stay_different(self) -> None:
        long = "n" * 250
        names = {profile_name(long, Card("x", f"0000:03:00.{n}", "c")) for n in range(2)}
        assert len(names) == 2
        assert all(len(name) <= 253 for name in names)

    def test_a_card_is_called_by_its_stable_names_only(self) -> None:
        assert A.called("gpu-A")
        assert A.called("0000:01:00.0")
        assert not A.called("nvidia0")
        assert not A.called("")
