"""The lab itself: every other test of the cluster stands on what is seen here."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab import Lab, LabError
from tests.lab.api import Call


@pytest.fixture(scope="module")
def second_lab(lab: Lab) -> Iterator[Lab]:
    second = Lab(lab.state / "second")
    yield second.up(feature_gates={"DRAConsumableCapacity": False})
    second.down()


def test_a_user_has_exactly_the_rights_that_rbac_gives(lab: Lab, namespace: str) -> None:
    alice = lab.kubeconfig_for("alice", groups=["dev"])
    with pytest.raises(LabError, match='User "alice" cannot list resource "pods"'):
        lab.kubectl("get", "pods", "-n", namespace, kubeconfig=alice)
    lab.kubectl("create", "rolebinding", "dev", "--clusterrole=view", "--group=dev", "-n", namespace)
    assert "No resources found" not in lab.kubectl("get", "pods", "-n", namespace, kubeconfig=alice)


def test_a_service_account_gets_a_token_that_the_api_server_knows(lab: Lab, namespace: str) -> None:
    user = f"system:serviceaccount:{namespace}:default"
    answer = lab.kubectl("auth", "whoami", "-o", "json", kubeconfig=lab.kubeconfig_for(user))
    info = json.loads(answer)["status"]["userInfo"]
    assert info["username"] == user
    assert f"system:serviceaccounts:{namespace}" in info["groups"]


def test_the_audit_log_names_user_verb_and_resource(lab: Lab, namespace: str) -> None:
    bob = lab.kubeconfig_for("bob")
    with pytest.raises(LabError):
        lab.kubectl("get", "secrets", "-n", namespace, kubeconfig=bob)
    events = [json.loads(line) for line in lab.audit_log.read_text().splitlines()]
    (event,) = [e for e in events if e["user"]["username"] == "bob" and "secrets" in e["requestURI"]]
    assert (event["verb"], event["objectRef"]["resource"]) == ("list", "secrets")
    assert event["responseStatus"]["code"] == 403


def test_a_killed_api_server_comes_back_with_its_data_and_without_compacted_versions(second_lab: Lab) -> None:
    server = second_lab.server
    second_lab.kubectl("create", "namespace", "kept")
    created = second_lab.api.ok(Call("GET", "/api/v1/namespaces/kept"))["metadata"]["resourceVersion"]
    second_lab.kubectl("label", "namespace", "kept", "still=here")
    second_lab.etcd_compact()
    second_lab.components.kill("kube-apiserver")
    assert second_lab.components.states()["kube-apiserver"] == "stopped"
    with pytest.raises(LabError):
        second_lab.kubectl("get", "namespaces")
    second_lab.components.start("kube-apiserver")
    assert second_lab.server == server
    assert "kept" in second_lab.kubectl("get", "namespaces")
    old = f"/api/v1/namespaces?resourceVersion={created}&resourceVersionMatch=Exact"
    assert second_lab.api.request(Call("GET", old)).status == 410


def test_a_second_scheduler_serves_its_own_profile_only(lab: Lab, namespace: str) -> None:
    lab.start_scheduler("second", {"profiles": [{"schedulerName": "second"}]})
    try:
        spec = {"schedulerName": "second", "containers": [{"name": "c", "image": "none"}], "nodeName": None}
        metadata = {"name": "p", "namespace": namespace}
        lab.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        events = lab.wait_for(
            f"/api/v1/namespaces/{namespace}/events", accept=lambda found: bool(found["items"])
        )
        assert {event["reportingComponent"] for event in events["items"]} == {"second"}
    finally:
        lab.components.stop("second")


def test_two_labs_side_by_side_share_nothing(lab: Lab, second_lab: Lab) -> None:
    second_lab.kubectl("create", "namespace", "only-there")
    assert "only-there" not in lab.kubectl("get", "namespaces")
    with pytest.raises(LabError, match="certificate signed by unknown authority"):
        second_lab.kubectl("get", "namespaces", f"--server={second_lab.server}", kubeconfig=lab.kubeconfig)


def test_a_feature_gate_reaches_the_api_server(second_lab: Lab) -> None:
    metrics = second_lab.api.request(Call("GET", "/metrics")).body.decode()
    (line,) = [m for m in metrics.splitlines() if 'name="DRAConsumableCapacity"' in m]
    assert line.endswith(" 0")


def test_a_folder_holds_one_lab(lab: Lab) -> None:
    with pytest.raises(LabError, match="a lab is kept in"):
        Lab(lab.state).up()


@pytest.mark.timeout(300)  # Two clusters are started, and one is taken to pieces.
def test_after_a_crash_down_leaves_nothing_and_up_works_again(lab: Lab) -> None:
    third = Lab(lab.state / "third").up()
    pids = _pids(third.state)
    assert len(pids) == 4
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    third.down()
    third.down()
    assert [path.name for path in third.state.iterdir()] == ["logs"]
    third.up()
    third.down()
    assert _pids(third.state) == []


def _pids(state: Path) -> list[int]:
    """Every process on this machine whose command line names the folder."""
    found = []
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = command.read_bytes()
        except OSError:
            continue
        if f"{state}/".encode() in text:
            found.append(int(command.parent.name))
    return found
