import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from webhook.extender import wire
from webhook.extender.wire import NodeNames, WireError

names = st.lists(
    st.from_regex(r"[a-z0-9]([-a-z0-9.]{0,8}[a-z0-9])?", fullmatch=True), unique=True, max_size=12
)


@given(names, names, st.sampled_from([(",", ":"), None]))
def test_names_are_taken_out_as_from_a_decoded_list(
    have: list[str], unwanted: list[str], separators: tuple[str, str] | None
) -> None:
    raw = json.dumps(have, separators=separators).encode()
    kept, found = NodeNames(raw).without(unwanted)
    assert kept.decoded() == [name for name in have if name not in unwanted]
    assert sorted(found) == sorted(set(have) & set(unwanted))


def test_a_name_inside_another_one_is_another_name() -> None:
    kept, found = NodeNames(b'["gpu-10","a-gpu-1","gpu-1"]').without(["gpu-1"])
    assert kept.raw == b'["gpu-10","a-gpu-1"]'
    assert found == ["gpu-1"]


def test_many_servers_are_taken_out_in_one_pass() -> None:
    have = [f"n{number}" for number in range(100)]
    kept, found = NodeNames(json.dumps(have).encode()).without(have[:50])
    assert kept.decoded() == have[50:]
    assert found == have[:50]


def test_go_s_capitals_and_small_first_letters_are_both_read() -> None:
    pod = {"metadata": {"name": "p", "uid": "u"}}
    for body in ({"Pod": pod, "NodeNames": ["a"]}, {"pod": pod, "nodeNames": ["a"]}):
        found, nodes = wire.decode_filter(json.dumps(body).encode())
        assert (found.metadata.uid, nodes.decoded()) == ("u", ["a"])


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"{", "not a filter call"),
        (b"[]", "not a filter call"),
        (b'{"NodeNames":["a"]}', "no Pod"),
        (b'{"Pod":{"metadata":{}},"NodeNames":null}', "nodeCacheCapable"),
        (b'{"Pod":{"metadata":{}},"Nodes":{"items":[]}}', "nodeCacheCapable"),
        (b'{"Pod":' + b'{"metadata":' * 3000 + b"1" + b"}" * 3000 + b"}", "not a filter call"),
    ],
)
def test_what_kube_scheduler_does_not_send_is_refused_with_a_sentence(body: bytes, sentence: str) -> None:
    with pytest.raises(WireError, match=sentence):
        wire.decode_filter(body)


def test_answers_carry_go_s_names() -> None:
    encoded = json.loads(msgspec.json.encode(wire.FilterResult(error="x")))
    assert encoded == {"NodeNames": [], "FailedNodes": {}, "FailedAndUnresolvableNodes": {}, "Error": "x"}


def test_bind_and_preempt_calls_are_read_or_refused() -> None:
    args = wire.decode_bind(b'{"PodName":"p","PodNamespace":"ns","PodUID":"u","Node":"n"}')
    assert (args.pod_name, args.pod_namespace, args.pod_uid, args.node) == ("p", "ns", "u", "n")
    for decode in (wire.decode_bind, wire.decode_preempt):
        with pytest.raises(WireError):
            decode(b"{}")
