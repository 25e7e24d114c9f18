import pytest

from tests.unit.admission.pods import asking, decision, mutated, operations, pod
from webhook.admission.reserved import forged, opened

ENDPOINT = "hami.io/lupine-endpoint"
DEVICES = "hami.io/remote-gpu-devices-allocated"
CARDS = "allocation.tenure.dev/main"


@pytest.mark.parametrize("key", [ENDPOINT, DEVICES, CARDS, "allocation.tenure.dev/"])
@pytest.mark.parametrize("field", ["annotations", "labels"])
def test_every_decision_key_goes_and_its_neighbours_stay(key: str, field: str) -> None:
    entries = {"a/b": "1", key: "10.0.0.9:14833", "zone~1": "2"}
    obj = pod(annotations=entries) if field == "annotations" else pod(labels=entries)
    result = mutated(obj)
    assert result["metadata"][field] == {"a/b": "1", "zone~1": "2"}


@pytest.mark.parametrize(
    "scheduler", ["default-scheduler", "volcano", "hami-scheduler", "tenure-scheduler", ""]
)
def test_the_scheduler_of_a_pod_is_no_way_round(scheduler: str) -> None:
    result = mutated(pod(annotations={ENDPOINT: "x"}, schedulerName=scheduler))
    assert result["metadata"]["annotations"] == {}
    assert result["spec"]["schedulerName"] == scheduler


@pytest.mark.parametrize(
    "key",
    ["hami.io/lupine-endpoints", "xallocation.tenure.dev/a", "tenure.dev/wake", "hami.io/vgpu-time", ""],
)
def test_keys_of_others_are_not_ours(key: str) -> None:
    assert decision(pod(annotations={key: "main"}, labels={key: "v"})).patch == ()


def test_the_user_is_told_once_per_kind_what_was_removed() -> None:
    found = decision(pod(annotations={ENDPOINT: "x", DEVICES: "y"}, labels={CARDS: "z"}))
    assert found.warnings == (
        "annotation hami.io/lupine-endpoint and 1 more was removed: only Tenure writes it",
        "label allocation.tenure.dev/main was removed: only Tenure writes it",
    )
    assert found.stripped_keys == 3


def test_a_key_with_slash_and_tilde_is_escaped() -> None:
    found = decision(pod(annotations={"allocation.tenure.dev/~a/b": "x"}))
    assert operations(found) == [
        {"op": "remove", "path": "/metadata/annotations/allocation.tenure.dev~1~0a~1b"}
    ]


def test_a_requesting_pod_loses_them_too_and_none_is_written() -> None:
    result = mutated(asking(annotations={ENDPOINT: "10.9.9.9:1"}))
    assert result["metadata"]["annotations"] == {}


def test_setting_changing_and_removing_a_decision_key_are_all_forgeries() -> None:
    assert forged(None, {ENDPOINT: "a", "other": "b"}) == [ENDPOINT]
    assert forged({ENDPOINT: "a"}, {ENDPOINT: "b"}) == [ENDPOINT]
    assert forged({CARDS: "a", ENDPOINT: "e"}, {ENDPOINT: "e"}) == [CARDS]
    assert forged({ENDPOINT: "a", "x": "1"}, {ENDPOINT: "a", "x": "2"}) == []


def test_only_taking_our_gate_away_opens_it() -> None:
    gate = "tenure.dev/remote-gpu"
    assert opened([gate, "other"], ["other"])
    assert not opened([gate, "other"], [gate])
    assert not opened(["other"], [])
