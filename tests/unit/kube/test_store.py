from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.kube.store import Change, Store
from service.objects import Pod
from tests.unit.kube.objects import pod


def heard(store: Store[Pod]) -> list[Change[Pod]]:
    changes: list[Change[Pod]] = []
    store.subscribe(changes.append)
    return changes


def by_node(found: Pod) -> Iterable[str]:
    return [found.spec.node_name] if found.spec.node_name else []


def test_an_addition_a_modification_and_a_deletion_are_told_with_both_sides() -> None:
    store = Store[Pod]()
    changes = heard(store)
    one, two = pod("x", "1"), pod("x", "2")
    store.apply(one)
    store.apply(two)
    store.apply(two, deleted=True)
    assert changes == [Change("a/x", None, one), Change("a/x", one, two), Change("a/x", two, None)]
    assert len(store) == 0


def test_a_handler_finds_in_the_store_what_it_was_told() -> None:
    store = Store[Pod]()
    store.add_index("node", by_node)
    seen: list[bool] = []

    def handler(change: Change[Pod]) -> None:
        indexed = store.by_index("node", "n")
        seen.append(store.get(change.key) == change.new and (change.new in indexed) == bool(change.new))

    store.subscribe(handler)
    store.apply(pod("x", "1", node="n"))
    store.replace([pod("y", "2", node="n")])
    assert seen == [True, True, True]


def test_a_list_reports_only_differences_and_missed_deletions_as_of_unknown_end() -> None:
    store = Store[Pod]()
    store.replace([pod("gone", "1"), pod("same", "2"), pod("moved", "3")])
    changes = heard(store)
    del changes[:]
    store.replace([pod("same", "2"), pod("moved", "4"), pod("new", "5")])
    assert changes == [
        Change("a/gone", pod("gone", "1"), None, final_state_unknown=True),
        Change("a/moved", pod("moved", "3"), pod("moved", "4")),
        Change("a/new", None, pod("new", "5")),
    ]


@pytest.mark.parametrize("way", ["list", "event"])
def test_a_name_that_was_taken_over_is_a_deletion_and_an_addition(way: str) -> None:
    store = Store[Pod]()
    old, new = pod("x", "1", uid="first"), pod("x", "2", uid="second")
    store.replace([old])
    changes = heard(store)
    del changes[:]
    if way == "list":
        store.replace([new])
    else:
        store.apply(new)
    assert changes == [
        Change("a/x", old, None, final_state_unknown=True),
        Change("a/x", None, new),
    ]


def test_an_event_that_was_seen_already_changes_nothing() -> None:
    store = Store[Pod]()
    store.apply(pod("x", "1"))
    changes = heard(store)
    del changes[:]
    store.apply(pod("x", "1"))
    store.apply(pod("never-seen", "1"), deleted=True)
    assert changes == []


def test_a_handler_that_raises_is_counted_and_keeps_nothing_from_others() -> None:
    store = Store[Pod]()

    def broken(change: Change[Pod]) -> None:
        raise RuntimeError(change.key)

    store.subscribe(broken)
    changes = heard(store)
    assert store.apply(pod("x")) == 1
    assert store.replace([pod("x", "2"), pod("y")]) == 2
    assert [change.key for change in changes] == ["a/x", "a/x", "a/y"]


def test_a_late_subscriber_is_told_what_is_there() -> None:
    store = Store[Pod]()
    store.replace([pod("x"), pod("y")])
    assert heard(store) == [Change("a/x", None, pod("x")), Change("a/y", None, pod("y"))]


def test_an_index_follows_its_objects() -> None:
    store = Store[Pod]()
    store.apply(pod("x", "1", node="n"))
    store.add_index("node", by_node)
    store.apply(pod("y", "2", node="n"))
    store.apply(pod("x", "3", node="m"))
    assert store.by_index("node", "n") == [pod("y", "2", node="n")]
    assert store.by_index("node", "m") == [pod("x", "3", node="m")]
    store.apply(pod("x", "3", node="m"), deleted=True)
    assert store.by_index("node", "m") == []
    with pytest.raises(KeyError):
        store.by_index("no such index", "n")


def test_a_store_is_synced_by_its_first_list_even_an_empty_one() -> None:
    store = Store[Pod]()
    store.apply(pod("x"))
    assert not store.synced
    store.replace([])
    assert store.synced


NAMES = st.sampled_from("abcd")
VERSIONS = st.integers(1, 9).map(str)
PODS = st.builds(
    pod, NAMES, VERSIONS, uid=st.sampled_from(["u1", "u2"]), node=st.sampled_from(["", "n", "m"])
)
STEPS = st.lists(st.one_of(st.tuples(PODS, st.booleans()), st.lists(PODS, max_size=4)))


@given(STEPS)
def test_who_adds_up_the_changes_has_the_store(steps: list[tuple[Pod, bool] | list[Pod]]) -> None:
    store = Store[Pod]()
    store.add_index("node", by_node)
    mirror: dict[str, Pod] = {}

    def handler(change: Change[Pod]) -> None:
        assert mirror.get(change.key) == change.old
        assert change.old is not None or change.new is not None
        if change.old is not None and change.new is not None:
            assert change.old.metadata.uid == change.new.metadata.uid
        mirror.pop(change.key, None)
        if change.new is not None:
            mirror[change.key] = change.new

    store.subscribe(handler)
    for step in steps:
        failures = store.replace(step) if isinstance(step, list) else store.apply(step[0], deleted=step[1])
        assert failures == 0
        assert sorted(map(repr, mirror.values())) == sorted(map(repr, store.list()))
        for node in ("n", "m"):
            expected = [found for found in store.list() if found.spec.node_name == node]
            assert sorted(map(repr, store.by_index("node", node))) == sorted(map(repr, expected))
