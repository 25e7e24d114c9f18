"""The pool on the real API server and scheduler: the whole way from a request to a card and back."""

import json
import time
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from service import names
from tests.cluster.pool import REGISTERS, SCHEDULER_RETURNS_S, SERVERS, Tenure, manifest, running
from tests.lab import Lab
from tests.lab.api import Call


@pytest.fixture(scope="module")
def tenure(lab: Lab) -> Iterator[Tenure]:
    with running(lab) as found:
        yield found


def counts(field: str, number: int) -> Callable[[Any], bool]:
    return lambda server: bool(server["status"][field] == number)


def reason_for_waiting(pod: Any) -> str:
    conditions = pod["status"].get("conditions", [])
    return next((c["reason"] for c in conditions if c["type"] == "PodScheduled"), "")


def test_a_pod_gets_a_card_and_its_endpoint_with_its_node(tenure: Tenure, namespace: str) -> None:
    tenure.pod(namespace, "first", remote_gpu=1, remote_gpu_memory=100_000)
    pod = tenure.bound(namespace, "first")
    notes = pod["metadata"]["annotations"]
    assert notes[names.LUPINE_ENDPOINT] == "198.19.1.1:14833"
    assert notes[names.DEVICES_ALLOCATED].startswith(f"{tenure.large}/GPU-")
    assert pod["spec"]["nodeName"].startswith("client-")
    (env,) = [e for e in pod["spec"]["containers"][0]["env"] if e["name"] == names.LUPINE_SERVER_ENV]
    assert env["valueFrom"]["fieldRef"]["fieldPath"] == f"metadata.annotations['{names.LUPINE_ENDPOINT}']"

    def is_bound(server: Any) -> bool:
        held = server["status"]["allocations"]
        return [(a["podUID"], a["phase"]) for a in held] == [(pod["metadata"]["uid"], "Bound")]

    status = tenure.server(tenure.large, is_bound)["status"]
    assert (status["total"], status["free"], status["held"]) == (2, 1, 1)


def test_a_pod_waits_gated_and_is_bound_as_soon_as_cards_are_free(tenure: Tenure, namespace: str) -> None:
    tenure.pod(namespace, "holder", remote_gpu=2, remote_gpu_memory=100_000)
    tenure.bound(namespace, "holder")
    tenure.pod(namespace, "waiter", remote_gpu=1, remote_gpu_memory=100_000)
    waiting = tenure.until(namespace, "waiter", lambda pod: bool(reason_for_waiting(pod)))
    assert reason_for_waiting(waiting) == "SchedulingGated"
    assert names.DEVICES_ALLOCATED not in waiting["metadata"].get("annotations", {})
    tenure.delete(namespace, "holder")
    began = time.monotonic()
    tenure.bound(namespace, "waiter")
    # No benchmark: a scheduler that nobody wakes would look again after 5 minutes.
    assert time.monotonic() - began < 30


def test_all_cards_of_a_pod_come_from_one_server(tenure: Tenure, namespace: str) -> None:
    tenure.pod(namespace, "four", remote_gpu=4)
    pod = tenure.bound(namespace, "four")
    pieces = pod["metadata"]["annotations"][names.DEVICES_ALLOCATED].rstrip(";:").split(":")
    assert {piece.partition("/")[0] for piece in pieces} == {tenure.small}
    assert len(set(pieces)) == 4


def test_forged_allocations_are_gone_and_hold_nothing(tenure: Tenure, namespace: str) -> None:
    forged = {
        names.LUPINE_ENDPOINT: "203.0.113.9:14833",
        names.DEVICES_ALLOCATED: f"{tenure.large}/GPU-x,NVIDIA,1,100:;",
        f"{names.ALLOCATION_PREFIX}main": "GPU-x",
        "example.com/mine": "kept",
    }
    pod = tenure.create(namespace, manifest("forger", {}, forged))
    assert pod["metadata"]["annotations"] == {"example.com/mine": "kept"}


def test_nobody_is_placed_on_a_server_node_for_a_remote_card(tenure: Tenure, namespace: str) -> None:
    pod = manifest("misled", {names.REMOTE_GPU: "1"})
    pod["spec"]["nodeSelector"] = {"kubernetes.io/hostname": tenure.small}
    tenure.create(namespace, pod)
    found = tenure.until(namespace, "misled", lambda pod: reason_for_waiting(pod) == "Unschedulable")
    message = found["status"]["conditions"][0]["message"]
    assert not found["spec"].get("nodeName")
    assert "serves its cards to others" in message or "node affinity" in message


def test_a_card_that_turns_unhealthy_is_not_offered_and_comes_back(tenure: Tenure) -> None:
    good = REGISTERS["json-remote-a100-four-cards"]
    sick = json.dumps([{**card, "health": False} for card in json.loads(good)])
    for register, free in ((sick, 0), (good, 4)):
        tenure.register(tenure.small, register)
        tenure.server(tenure.small, counts("free", free))


def test_an_annotation_that_cannot_be_read_leaves_no_cards_and_one_event_on_the_node(
    tenure: Tenure,
) -> None:
    for register, total in (("not-valid", 0), (REGISTERS["json-remote-a100-four-cards"], 4)):
        tenure.register(tenure.small, register)
        tenure.server(tenure.small, counts("total", total))
    events = tenure.lab.wait_for(
        "/apis/events.k8s.io/v1/namespaces/default/events",
        accept=lambda found: bool(about(found, tenure.small)),
    )
    assert "neither a JSON list" in about(events, tenure.small)[0]["note"]


def about(events: Any, node: str, reason: str = "CardsNotUsable") -> list[Any]:
    return [e for e in events["items"] if e["regarding"].get("name") == node and e["reason"] == reason]


def test_a_server_whose_kubelet_offers_the_same_cards_to_local_pods_is_warned_about(tenure: Tenure) -> None:
    """A HAMi scheduler that does not know mode `remote` would give them away a second time."""
    path = f"/api/v1/nodes/{tenure.small}/status"
    for count in ("4", "0"):
        body = {"status": {"capacity": {"nvidia.com/gpu": count}, "allocatable": {"nvidia.com/gpu": count}}}
        tenure.lab.api.ok(Call("PATCH", path, body, "application/merge-patch+json"))
        metric = f"tenure_pool_servers_offered_locally {float(count != '0')}"
        assert eventually(partial(is_scraped, tenure, metric))
    events = tenure.lab.wait_for(
        "/apis/events.k8s.io/v1/namespaces/default/events",
        accept=lambda found: bool(about(found, tenure.small, "CardsOfferedTwice")),
    )
    (event,) = about(events, tenure.small, "CardsOfferedTwice")
    assert event["type"] == "Warning"
    assert "nvidia.com/gpu" in event["note"]


def test_a_waiting_pod_is_told_why_once_and_nothing_else_is_written_on_it(
    tenure: Tenure, namespace: str
) -> None:
    tenure.pod(namespace, "large", remote_gpu=64)
    tenure.pod(namespace, "holder", remote_gpu=2, remote_gpu_memory=100_000)
    tenure.bound(namespace, "holder")
    tenure.pod(namespace, "busy", remote_gpu=1, remote_gpu_memory=100_000)
    path = f"/apis/events.k8s.io/v1/namespaces/{namespace}/events"
    expected = [("large", "NoServerLargeEnough"), ("busy", "WaitingForCards")]
    events = tenure.lab.wait_for(
        path, accept=lambda found: all(about(found, name, reason) for name, reason in expected)
    )
    before = [tenure.read(namespace, name)["metadata"]["resourceVersion"] for name, _ in expected]
    for number in range(5):  # each is a round over the queue
        tenure.pod(namespace, f"other-{number}", remote_gpu=64)
    tenure.lab.wait_for(path, accept=lambda found: bool(about(found, "other-4", "NoServerLargeEnough")))
    events = tenure.lab.api.ok(Call("GET", path))
    assert [len(about(events, name, reason)) for name, reason in expected] == [1, 1]
    after = [tenure.read(namespace, name)["metadata"]["resourceVersion"] for name, _ in expected]
    assert before == after


def is_scraped(tenure: Tenure, line: str) -> bool:
    with urllib.request.urlopen(f"{tenure.replica.url}/metrics", timeout=10) as answer:  # noqa: S310 - our own
        return line in answer.read().decode().splitlines()


def eventually(holds: Callable[[], bool], seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.2)
    return holds()


def test_a_deleted_server_object_is_made_again_and_still_knows_who_holds_its_cards(
    tenure: Tenure, namespace: str
) -> None:
    tenure.pod(namespace, "keeper", remote_gpu=1, remote_gpu_memory=100_000)
    pod = tenure.bound(namespace, "keeper")
    old = tenure.server(tenure.large, lambda found: found["status"]["held"] == 1)
    tenure.lab.api.ok(Call("DELETE", f"{SERVERS}/{tenure.large}", {}))

    def is_rebuilt(found: Any) -> bool:
        is_new = found["metadata"]["uid"] != old["metadata"]["uid"]
        return is_new and bool(found.get("status", {}).get("held") == 1)

    held = tenure.server(tenure.large, is_rebuilt)["status"]["allocations"]
    assert [(a["podUID"], a["phase"]) for a in held] == [(pod["metadata"]["uid"], "Bound")]


@pytest.mark.timeout(300)  # 20 s, one minute for Tenure, and what kube-scheduler takes.
def test_the_next_pod_is_served_after_the_api_server_was_killed_for_20_seconds(
    tenure: Tenure, namespace: str
) -> None:
    tenure.lab.components.kill("kube-apiserver")
    time.sleep(20)
    tenure.lab.components.start("kube-apiserver")
    tenure.pod(namespace, "after", remote_gpu=1)
    tenure.promised(namespace, "after")
    tenure.bound(namespace, "after", seconds=SCHEDULER_RETURNS_S)
    log = tenure.lab.log(tenure.replica.name).read_text()
    assert "Traceback" not in log
    assert '"exception"' not in log
    tenure.lab.restart_controllers()
