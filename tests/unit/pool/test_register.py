import json
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controllers.pool.register import RegisterError, cordoned, decode

FIXTURES = json.loads((Path(__file__).parents[2] / "fixtures/hami/node-nvidia-register.json").read_text())


@pytest.mark.parametrize(
    ("name", "ids"),
    [
        ("json-v2.10-two-cards-second-unhealthy", ["id-1", "id-2"]),
        ("json-v2.10-hami-core", ["GPU-0"]),
        ("json-mig", ["GPU-0"]),
        ("text-v2.7-seven-fields", ["GPU-ebe7c3f7-303d-558d-435e-99a160631fe4"]),
        ("text-v2.7-nine-fields", ["GPU-ebe7c3f7-303d-558d-435e-99a160631fe4"]),
    ],
)
def test_both_formats_of_the_field_are_read(name: str, ids: list[str]) -> None:
    assert [card.id for card in decode(FIXTURES[name]).cards] == ids


def test_absent_keys_are_the_zero_values_that_go_leaves_out() -> None:
    first, second = decode(FIXTURES["json-remote-h200"]).cards
    assert (first.index, first.numa, first.mode, first.memory_mib) == (0, 0, "remote", 143771)
    assert (second.index, second.numa) == (1, 1)
    (bare,) = decode('[{"id":"GPU-x","devmem":1}]').cards
    assert not bare.healthy
    assert bare.mode == ""


def test_seven_fields_mean_mode_hami_core_and_index_zero() -> None:
    (card,) = decode(FIXTURES["text-v2.7-seven-fields"]).cards
    assert (card.mode, card.index, card.healthy, card.type) == ("hami-core", 0, True, "NVIDIA-Tesla P4")


@pytest.mark.parametrize("text", FIXTURES["bad"])
def test_a_bad_annotation_never_gives_a_card_and_always_says_why(text: str) -> None:
    try:
        found = decode(text)
    except RegisterError:
        return
    assert not found.cards
    assert found.left_out


def test_one_odd_entry_is_left_out_by_name_and_the_others_stay() -> None:
    found = decode(
        '[null, 7, {"id":"GPU-a","devmem":true}, {"id":"GPU,b","devmem":1}, {"id":"GPU-c","devmem":1}]'
    )
    assert [card.id for card in found.cards] == ["GPU-c"]
    assert len(found.left_out) == 4


def test_an_id_listed_twice_is_offered_by_neither() -> None:
    found = decode('[{"id":"GPU-a","devmem":1},{"id":"GPU-a","devmem":2},{"id":"GPU-b","devmem":1}]')
    assert [card.id for card in found.cards] == ["GPU-b"]
    assert "GPU-a" in found.left_out[0]


def test_pretty_printed_json_with_whole_floats_and_unknown_numa_is_read() -> None:
    text = '\n[\n  {"id":"GPU-0...","count":1e1,"devmem":32768.0,"type":"V100 (测试)","numa":-1}\n]\n'
    (card,) = decode(text).cards
    assert (card.memory_mib, card.numa, card.type) == (32768, None, "V100 (测试)")


def test_order_and_gaps_of_indexes_do_not_matter() -> None:
    text = "GPU-a3,10,143771,100,NVIDIA H20,1,true,3,remote:GPU-a0,10,143771,100,NVIDIA H20,0,true,0,remote:"
    assert [(card.id, card.index) for card in decode(text).cards] == [("GPU-a3", 3), ("GPU-a0", 0)]


@given(
    st.text() | st.recursive(st.none() | st.booleans() | st.floats() | st.text(), st.lists).map(json.dumps)
)
def test_any_text_is_read_or_refused_and_nothing_else(text: str) -> None:
    with suppress(RegisterError):
        decode(text)


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["id", "devmem", "index", "numa", "mode", "health", "type"]),
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        )
    )
)
def test_any_list_of_objects_is_read_or_refused_and_nothing_else(entries: list[dict[str, object]]) -> None:
    try:
        found = decode(json.dumps(entries))
    except RegisterError:
        return
    assert all(card.id and card.memory_mib > 0 for card in found.cards)


def test_the_cordon_list_is_trimmed_and_empty_items_are_skipped() -> None:
    assert cordoned(" GPU-a, ,GPU-b,") == {"GPU-a", "GPU-b"}
    assert cordoned(None) == frozenset()
