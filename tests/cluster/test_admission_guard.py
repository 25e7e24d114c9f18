"""The guard policies of the chart on a real API server: one table, and the ways that no table can express."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster import admission_manifests as manifests
from tests.lab.api import Answer, Api, Call, client_context
from tests.lab.lab import Lab
from tests.lab.product import NAMESPACE, Product
from tests.unit.admission.guard_table import CASES, SERVER, Case
from tests.unit.admission.pods import Json, container, pod

MERGE = "application/merge-patch+json"
POLICIES = ("tenure-decision-keys", "tenure-gate")
_ADMISSION = "/apis/admissionregistration.k8s.io/v1"


def as_user(lab: Lab, user: str) -> Api:
    """The API server as a user whom authorization lets do everything: what is left is admission."""
    pair = lab._authority.client(user, groups=("system:masters",))
    return Api(lab.server, client_context(lab._authority.certificate, pair))


@pytest.fixture(scope="module")
def guarded(lab: Lab) -> Iterator[Lab]:
    """The lab with the guard in force."""
    objects = manifests.guard([SERVER])
    lab.apply(*objects)
    tenant = as_user(lab, "tenant-admin")
    forged = pod(annotations={"hami.io/lupine-endpoint": "x"})
    for _ in range(200):  # The API server learns of a policy through a watch of its own.
        answer = tenant.request(Call("POST", "/api/v1/namespaces/default/pods?dryRun=All", forged))
        if answer.status == 403:
            break
    yield lab
    for found in objects:
        plural = {"Policy": "policies", "Binding": "policybindings"}[
            found["kind"].removeprefix("ValidatingAdmissionPolicy") or "Policy"
        ]
        lab.api.ok(Call("DELETE", f"{_ADMISSION}/validatingadmission{plural}/{found['metadata']['name']}"))


def manifest(case: Case, name: str) -> Json:
    """The pod before the write; at CREATE the write itself."""
    said = case if case.way == "create" else case.had
    gates = case.gates if case.way == "create" else case.had.gates
    obj = pod(container(), annotations=said.annotations, labels=said.labels)
    obj["metadata"] = {key: value for key, value in obj["metadata"].items() if value} | {"name": name}
    # A gate of the test's own keeps the scheduler of the lab away, except from pods that are to be bound by hand.
    if "binding" in case.way:
        obj["spec"]["schedulerName"] = "nobody"
    obj["spec"]["schedulingGates"] = [{"name": gate} for gate in gates or []]
    return obj


def write(api: Api, namespace: str, case: Case, name: str) -> Answer:
    base = f"/api/v1/namespaces/{namespace}"
    metadata = {"annotations": case.annotations, "labels": case.labels}
    if case.way == "create":
        return api.request(Call("POST", f"{base}/pods", manifest(case, name)))
    if "binding" in case.way:
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": metadata | {"name": name},
            "target": {"apiVersion": "v1", "kind": "Node", "name": "nowhere"},
        }
        path = f"{base}/pods/{name}/binding" if case.way == "binding" else f"{base}/bindings"
        return api.request(Call("POST", path, binding))
    change: dict[str, Any] = {"metadata": metadata}
    if case.gates is not None:
        change["spec"] = {"schedulingGates": [{"name": gate} for gate in case.gates]}
    path = f"{base}/pods/{name}/status" if case.way == "status" else f"{base}/pods/{name}"
    return api.request(Call("PATCH", path, change, MERGE))


def test_the_policies_judge_every_write_of_the_table(guarded: Lab, namespace: str) -> None:
    server, tenant = as_user(guarded, SERVER), as_user(guarded, "tenant-admin")
    for number, case in enumerate(CASES):
        name = f"p{number}"
        if case.way != "create":
            server.ok(Call("POST", f"/api/v1/namespaces/{namespace}/pods", manifest(case, name)))
        answer = write(server if case.by == "server" else tenant, namespace, case, name)
        assert (answer.status < 300) == case.allowed, (case.name, answer.body)
        if not case.allowed:
            assert answer.status == 403, (case.name, answer.body)
            assert "only Tenure" in answer.json()["message"]
    # Bound to a node that is not there, some would take their time to go.
    server.ok(Call("DELETE", f"/api/v1/namespaces/{namespace}/pods", {"gracePeriodSeconds": 0}))


def test_what_these_tests_apply_is_what_helm_renders(lab: Lab) -> None:
    service = {"namespace": NAMESPACE, "name": "tenure-webhook", "path": "/admission/pods", "port": 443}
    rendered = Product(lab).manifests("templates/guard.yaml", "templates/webhook.yaml")
    applied = [*manifests.guard([SERVER]), manifests.webhook({"service": service})]
    assert sorted(rendered, key=str) == sorted(applied, key=str)


def test_the_policies_pass_the_api_server_s_own_type_check(guarded: Lab) -> None:
    for name in POLICIES:
        found = guarded.wait_for(
            f"{_ADMISSION}/validatingadmissionpolicies/{name}",
            accept=lambda policy: (
                policy.get("status", {}).get("observedGeneration") == policy["metadata"]["generation"]
            ),
        )
        assert "expressionWarnings" not in found["status"].get("typeChecking", {})


def test_a_pod_with_thousands_of_keys_stays_within_the_cost_of_the_policy(
    guarded: Lab, namespace: str
) -> None:
    many = {f"k{i}": "v" for i in range(4_000)}
    api, path = as_user(guarded, "tenant-admin"), f"/api/v1/namespaces/{namespace}/pods"

    def status(method: str, where: str, change: Json, kind: str = "application/json") -> int:
        return api.request(Call(method, where, change, kind), seconds=60).status

    assert status("POST", path, pod(annotations=many, schedulerName="nobody")) == 201
    assert status("PATCH", f"{path}/p", {"metadata": {"annotations": {"note": "1"}}}, MERGE) == 200
    forged = {"metadata": {"annotations": {"allocation.tenure.dev/a": "1"}}}
    assert status("PATCH", f"{path}/p", forged, MERGE) == 403
    all_forged = {f"allocation.tenure.dev/{i}": "v" for i in range(4_000)}
    assert status("POST", path, pod(annotations=all_forged)) == 403


def test_ephemeral_containers_are_no_way_to_a_key(guarded: Lab, namespace: str) -> None:
    api, path = as_user(guarded, "tenant-admin"), f"/api/v1/namespaces/{namespace}/pods"
    api.ok(Call("POST", path, pod(schedulerName="nobody")))
    change = {
        "metadata": {"annotations": {"hami.io/lupine-endpoint": "x"}},
        "spec": {"ephemeralContainers": [{"name": "e", "image": "example/image"}]},
    }
    patch = "application/strategic-merge-patch+json"
    answer = api.request(Call("PATCH", f"{path}/p/ephemeralcontainers", change, patch))
    assert answer.status in {200, 403}
    found = api.ok(Call("GET", f"{path}/p"))
    assert "hami.io/lupine-endpoint" not in found["metadata"].get("annotations", {})
