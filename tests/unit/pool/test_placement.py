from datetime import timedelta
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from controllers.pool import placement
from controllers.pool.placement import Offer, Plan, Policy, Waiting
from tests.unit.pool import build

STARVATION = timedelta(minutes=10)


def plan(waiting: list[Waiting], offers: list[Offer], policy: Policy = "binpack") -> Plan:
    return placement.plan(waiting, offers, policy=policy, now=build.NOW, starvation=STARVATION)


def served(found: Plan) -> dict[str, str]:
    return {pod.uid: choice.server for pod, choice in found.promises}


def test_all_cards_of_a_pod_come_from_one_server() -> None:
    offers = [build.offer("a", 10), build.offer("b", 10)]
    assert placement.choose(build.demand(2), offers, "binpack") is None
    assert placement.choose(build.demand(2), [*offers, build.offer("c", 10, 10)], "binpack") is not None


def test_memory_filters_cards_and_never_splits_one() -> None:
    offers = [build.offer("a", 10, 20)]
    assert placement.choose(build.demand(1, 21), offers, "binpack") is None
    found = placement.choose(build.demand(1, 15), offers, "binpack")
    assert found is not None
    assert [card.memory_mib for card in found.cards] == [20]


def test_the_tightest_fit_wins_so_that_large_cards_stay_for_large_requests() -> None:
    found = placement.choose(
        build.demand(1, 8), [build.offer("a", 80, 40), build.offer("b", 10, 80)], "binpack"
    )
    assert found is not None
    assert (found.server, found.cards[0].memory_mib) == ("b", 10)


def test_binpack_fills_one_server_and_spread_evens_out() -> None:
    offers = [build.offer("a", 10, 10, 10), build.offer("b", 10)]
    assert served(plan([build.waiting()], offers)) == {"u1": "b"}
    assert served(plan([build.waiting()], offers, "spread")) == {"u1": "a"}


def test_equal_servers_are_taken_by_name() -> None:
    offers = [build.offer("b", 10), build.offer("a", 10)]
    assert served(plan([build.waiting()], offers)) == {"u1": "a"}


def test_the_queue_goes_by_priority_then_age_then_uid() -> None:
    pods = [
        build.waiting("young", since=build.ago(1)),
        build.waiting("z-old", since=build.ago(5)),
        build.waiting("a-old", since=build.ago(5)),
        build.waiting("important", priority=7, since=build.NOW),
    ]
    assert list(served(plan(pods, [build.offer("s", 1, 1, 1, 1)]))) == [
        "important",
        "a-old",
        "z-old",
        "young",
    ]


def test_a_pod_is_passed_over_only_when_the_free_cards_cannot_serve_it() -> None:
    pods = [build.waiting("large", count=2, since=build.ago(5)), build.waiting("small", since=build.ago(1))]
    assert served(plan(pods, [build.offer("s", 10)])) == {"small": "s"}
    assert served(plan(pods, [build.offer("s", 10, 10)])) == {"large": "s"}


def test_a_pod_that_starves_keeps_the_free_cards_of_the_server_with_its_best_chance() -> None:
    pods = [build.waiting("large", count=4, since=build.ago(601)), build.waiting("small", since=build.ago(1))]
    offers = [build.offer("far", 1, held=[1, 1, 1]), build.offer("near", 1, 1, 1, held=[1])]
    found = plan(pods, offers)
    assert found.kept == {("near", f"near-{number}"): "large" for number in range(3)}
    assert served(found) == {"small": "far"}


def test_only_the_cards_that_a_starving_pod_could_use_are_kept_for_it() -> None:
    pods = [build.waiting("picky", mib=20, since=build.ago(601)), build.waiting("small", since=build.ago(1))]
    found = plan(pods, [build.offer("s", 10, held=[40])])
    assert not found.kept
    assert served(found) == {"small": "s"}


def test_nothing_is_kept_for_a_pod_that_none_could_ever_serve() -> None:
    pods = [build.waiting("huge", count=9, since=build.ago(9999)), build.waiting("small")]
    found = plan(pods, [build.offer("s", 1, 1)])
    assert not found.kept
    assert served(found) == {"small": "s"}


sizes = st.lists(st.sampled_from([10, 20, 40]), max_size=6)


@given(st.lists(st.sampled_from([0, 10, 15, 20, 40]), min_size=1, max_size=4), sizes)
def test_fit_finds_the_smallest_cards_whenever_any_set_fits(slots: list[int], free: list[int]) -> None:
    found = placement.fit(slots, build.cards(*free))
    wanted = sorted(slots)
    fitting = [
        chosen
        for chosen in combinations(sorted(free), len(slots))
        if all(size >= least for size, least in zip(chosen, wanted, strict=True))
    ]
    assert (found is not None) == bool(fitting)
    if found is not None:
        assert sum(card.memory_mib for card in found) == min(map(sum, fitting))


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 2)), max_size=8),
    st.lists(sizes, max_size=3),
    st.sampled_from(["binpack", "spread"]),
)
def test_a_plan_never_gives_a_card_twice_and_does_not_depend_on_the_order_it_reads(
    asked: list[tuple[int, int]], pool: list[list[int]], policy: Policy
) -> None:
    pods = [build.waiting(f"u{i}", count=n, priority=p) for i, (n, p) in enumerate(asked)]
    offers = [build.offer(f"s{i}", *free) for i, free in enumerate(pool)]
    found = plan(pods, offers, policy)
    given_away = [card.id for _, choice in found.promises for card in choice.cards]
    assert len(given_away) == len(set(given_away))
    assert plan(pods[::-1], offers[::-1], policy) == found
