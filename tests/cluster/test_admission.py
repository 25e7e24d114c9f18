"""Admission end to end: a client creates a pod on the real API server and reads back what became of it."""

import base64
import json
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.cluster import admission_manifests as manifests
from tests.cluster.admission_server import HOST, LATE, Webhook, serving
from tests.cluster.test_admission_guard import MERGE, as_user
from tests.lab.api import Answer, Api, Call, client_context
from tests.lab.controlplane import environment
from tests.lab.lab import Lab
from tests.unit.admission.guard_table import SERVER
from tests.unit.admission.pods import CARD, MEMORY, Json, asking, container, env, pod

ENDPOINT = "hami.io/lupine-endpoint"
DEVICES = "hami.io/remote-gpu-devices-allocated"
CARDS = "allocation.tenure.dev/main"
FORGED = {ENDPOINT: "10.6.6.6:14833", DEVICES: "n/GPU-1,NVIDIA,1,100:;", CARDS: "GPU-1"}
GATE = "tenure.dev/remote-gpu"
VGPU = {"nvidia.com/vgpu-number": "1"}
TENANT = "tenant"
_HOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"


@dataclass(frozen=True)
class Tenant:
    """A user with the role `edit` in one namespace, and nothing else."""

    api: Api
    namespace: str

    @property
    def pods(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    def create(self, obj: Json, query: str = "") -> Answer:
        return self.api.request(Call("POST", self.pods + query, obj))

    def read(self, name: str = "p") -> Json:
        found: Json = self.api.ok(Call("GET", f"{self.pods}/{name}"))
        return found

    def created(self, obj: Json) -> Json:
        answer = self.create(obj)
        assert answer.status == 201, answer.body
        return self.read(answer.json()["metadata"]["name"])

    def refused(self, obj: Json) -> str:
        answer = self.create(obj)
        assert answer.status == 403, answer.body
        return str(answer.json()["message"])


def eventually(condition: Callable[[], bool], *, seconds: float = 20) -> None:
    """The API server learns of a configuration through a watch of its own: ask until it has."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.05)


def configure(lab: Lab, webhook: Webhook, **values: Any) -> None:
    """Register the webhook as the chart does, but by URL."""
    config = {"url": webhook.url, "caBundle": base64.b64encode(webhook.ca_pem).decode()}
    lab.apply(manifests.webhook(config, **values))


@pytest.fixture(scope="module")
def webhook(lab: Lab) -> Iterator[Webhook]:
    """The webhook in force, and the guard behind it."""
    objects = manifests.guard([SERVER])
    lab.apply(*objects)
    with serving() as running:
        configure(lab, running)
        probe = Call("POST", "/api/v1/namespaces/default/pods?dryRun=All", asking())
        eventually(lambda: gates(lab.api.ok(probe)) == [GATE])
        yield running
    lab.api.ok(Call("DELETE", f"{_HOOKS}/tenure"))
    for found in objects:
        lab.kubectl("delete", found["kind"], found["metadata"]["name"])


@pytest.fixture
def tenant(lab: Lab, webhook: Webhook, namespace: str) -> Tenant:
    pair = lab._authority.client(TENANT)
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "edit", "namespace": namespace},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
        "subjects": [{"kind": "User", "name": TENANT, "apiGroup": "rbac.authorization.k8s.io"}],
    }
    lab.apply(binding)
    api = Api(lab.server, client_context(lab._authority.certificate, pair))
    found = Tenant(api, namespace)
    eventually(lambda: api.request(Call("GET", found.pods)).status == 200)
    return found


def gates(found: Json) -> list[str]:
    return [gate["name"] for gate in found["spec"].get("schedulingGates", [])]


def keys(found: Json) -> set[str]:
    """Decision keys that a pod carries."""
    meta = found["metadata"]
    return FORGED.keys() & {*meta.get("annotations", {}), *meta.get("labels", {})}


# What becomes of a request


def test_a_requesting_pod_is_gated_connected_and_on_our_scheduler(tenant: Tenant) -> None:
    found = tenant.created(asking(limits=CARD | {MEMORY: "8192"}))
    assert gates(found) == [GATE]
    assert found["spec"]["schedulerName"] == "tenure-scheduler"
    path = f"metadata.annotations['{ENDPOINT}']"
    assert env(found)["LUPINE_SERVER"]["fieldRef"]["fieldPath"] == path


def test_containers_of_every_kind_and_gates_of_others_come_through(tenant: Tenant) -> None:
    inits = [container("i", CARD), container("s", CARD, restartPolicy="Always")]
    found = tenant.created(
        asking(initContainers=inits, schedulingGates=[{"name": "example.com/quota"}], labels={"app": "x"})
    )
    assert gates(found) == ["example.com/quota", GATE]
    assert all("LUPINE_SERVER" in env(found, name) for name in ("i", "s", "main"))


def test_a_generated_name_and_an_object_without_namespace_work(tenant: Tenant) -> None:
    obj = asking()
    obj["metadata"] = {"generateName": "job-"}
    found = tenant.created(obj)
    assert found["metadata"]["name"].startswith("job-")
    assert gates(found) == [GATE]


def test_a_dry_run_shows_the_pod_and_leaves_nothing(tenant: Tenant) -> None:
    answer = tenant.create(asking(), "?dryRun=All")
    assert gates(answer.json()) == [GATE]
    assert tenant.api.ok(Call("GET", tenant.pods))["items"] == []


def test_a_large_pod_comes_through(tenant: Tenant) -> None:
    many = [container(f"c{i}", CARD | VGPU if i % 2 else None) for i in range(40)]
    found = tenant.created(pod(*many, annotations={"big": "x" * 200_000}))
    assert len(found["spec"]["volumes"]) >= 20
    assert sum("LUPINE_SERVER" in env(found, f"c{i}") for i in range(40)) == 20


def test_regions_of_two_long_names_are_accepted_by_the_api_server(tenant: Tenant) -> None:
    long = ["a" * 62 + "b", "a" * 62 + "c"]
    found = tenant.created(pod(*(container(name, VGPU) for name in long)))
    volumes = [volume for volume in found["spec"]["volumes"] if "csi" in volume]
    assert [v["csi"]["volumeAttributes"]["container"] for v in volumes] == long
    assert found["spec"]["nodeSelector"] == {"tenure.dev/regions": "ready"}


def test_a_device_claim_by_name_is_accepted_by_the_api_server(tenant: Tenant) -> None:
    annotations = {"tenure.dev/claim-template": "npu", "tenure.dev/claim-containers": "main"}
    found = tenant.created(pod(container(), container("b"), annotations=annotations))
    assert found["spec"]["resourceClaims"] == [{"name": "tenure", "resourceClaimTemplateName": "npu"}]
    uses = {c["name"]: c["resources"].get("claims") for c in found["spec"]["containers"]}
    assert uses == {"main": [{"name": "tenure"}], "b": None}


def test_what_the_api_server_wrote_is_what_a_second_creation_keeps(tenant: Tenant) -> None:
    first = tenant.created(asking(limits=CARD | VGPU))
    copy = pod() | {"spec": first["spec"]}
    copy["metadata"] = {"name": "copy", "annotations": first["metadata"].get("annotations", {})}
    second = tenant.created(copy)
    assert second["spec"] == first["spec"]


def test_a_container_that_an_injector_adds_after_us_gets_what_it_needs(
    lab: Lab, webhook: Webhook, tenant: Tenant
) -> None:
    config = {
        "url": f"https://{HOST}:{webhook.port}/inject",
        "caBundle": base64.b64encode(webhook.ca_pem).decode(),
    }
    injector = manifests.webhook(config, NAME="zz-injector")
    hook = injector["webhooks"][0]
    hook |= {"name": "injector.example.com", "matchConditions": []}
    hook["namespaceSelector"] = {"matchLabels": {"kubernetes.io/metadata.name": tenant.namespace}}
    lab.apply(injector)

    def first() -> str:
        found = tenant.create(asking(limits=CARD | VGPU), "?dryRun=All").json()
        return str(found["spec"]["containers"][0]["name"])

    try:
        eventually(lambda: first() == LATE["name"])
        found = tenant.created(asking(limits=CARD | VGPU))
    finally:
        lab.api.ok(Call("DELETE", f"{_HOOKS}/zz-injector"))
    late, main = found["spec"]["containers"]
    assert (late["name"], main["name"]) == ("late", "main")
    assert {m["mountPath"] for m in late["volumeMounts"]} >= {"/tmp/.sm_node", "/tmp/.vmem_node"}
    assert "LUPINE_SERVER" not in env(found, "late")
    assert gates(found) == [GATE]


# Refusals


@pytest.mark.parametrize(
    ("obj", "said"),
    [
        (pod(container(limits={MEMORY: "1024"})), "without hami.io/remote-gpu"),
        (asking(nodeName="somewhere"), "remove it"),
        (asking(schedulerName="volcano"), "webhook.scheduler_names"),
        (asking(os={"name": "windows"}), "Linux"),
    ],
)
def test_a_refusal_reaches_the_user_as_a_sentence(tenant: Tenant, obj: Json, said: str) -> None:
    message = tenant.refused(obj)
    assert said in message
    assert message.startswith('admission webhook "pods.tenure.dev" denied the request: ')


def test_a_warning_reaches_the_user(lab: Lab, tenant: Tenant) -> None:
    manifest = asking(annotations={ENDPOINT: "x"})
    manifest["metadata"]["namespace"] = tenant.namespace
    done = subprocess.run(
        [str(lab._plane.binary), "kubectl", "create", "--dry-run=server", "-f", "-"],
        env=environment(lab._layout) | {"KUBECONFIG": str(lab.kubeconfig)},
        input=json.dumps(manifest),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "Warning: annotation hami.io/lupine-endpoint was removed: only Tenure writes it" in done.stderr


def test_a_pod_that_the_api_server_refuses_anyway_is_refused_by_it(tenant: Tenant) -> None:
    empty = pod()
    empty["spec"]["containers"] = []
    for obj in (empty, empty | {"spec": {}}, pod(container(limits={"hami.io/remote-gpu": "1"}), container())):
        answer = tenant.create(obj)
        assert answer.status == 422, answer.body
        assert "evaluation" not in answer.json()["message"]


# The bypass list, as a tenant with edit rights


def test_forged_keys_go_at_creation_for_every_scheduler(tenant: Tenant) -> None:
    labels = {CARDS: "x", DEVICES: "y"}
    for name, scheduler in (("a", "default-scheduler"), ("b", "volcano"), ("c", "tenure-scheduler")):
        obj = pod(annotations=dict(FORGED), labels=labels, schedulerName=scheduler)
        obj["metadata"]["name"] = name
        assert keys(tenant.created(obj)) == set()


def test_labels_of_object_and_namespace_do_not_opt_out(lab: Lab, tenant: Tenant) -> None:
    labels = {"hami.io/webhook": "ignore", "tenure.dev/webhook": "ignore", "control-plane": "true"}
    lab.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": tenant.namespace, "labels": labels}}
    )
    found = tenant.created(asking(annotations=dict(FORGED), labels=labels))
    assert (keys(found), gates(found)) == (set(), [GATE])


def test_no_later_write_brings_a_key_in(lab: Lab, tenant: Tenant) -> None:
    tenant.created(asking())
    metadata = {"metadata": {"annotations": {ENDPOINT: "x"}}}
    json_patch: Any = [{"op": "add", "path": "/metadata/annotations", "value": {CARDS: "x"}}]
    applied = {"apiVersion": "v1", "kind": "Pod"} | metadata
    ephemeral = metadata | {"spec": {"ephemeralContainers": [{"name": "e", "image": "i"}]}}
    binding = {"metadata": {"name": "p"} | metadata["metadata"], "target": {"kind": "Node", "name": "n"}}
    path = f"{tenant.pods}/p"
    strategic, apply = "application/strategic-merge-patch+json", "application/apply-patch+yaml"
    attempts = [
        Call("PATCH", path, metadata, MERGE),
        Call("PATCH", path, metadata, strategic),
        Call("PATCH", path, json_patch, "application/json-patch+json"),
        Call("PATCH", f"{path}?fieldManager=me&force=true", applied, apply),
        Call("PATCH", f"{path}/status", metadata, MERGE),
        Call("PATCH", f"{path}/ephemeralcontainers", ephemeral, strategic),
        Call("POST", f"{path}/binding", binding),
        Call("POST", f"/api/v1/namespaces/{tenant.namespace}/bindings", binding),
    ]
    # Also with every right that authorization can grant: then the guard stands alone.
    for api in (tenant.api, as_user(lab, "tenant-admin")):
        for call in attempts:
            answer = api.request(call)
            assert answer.status in {403, 409} or call.path.endswith("ephemeralcontainers"), (call, answer)
            assert keys(tenant.read()) == set()


def test_a_copied_pod_of_another_tenant_brings_no_key_along(lab: Lab, tenant: Tenant) -> None:
    tenant.created(asking())
    server = as_user(lab, SERVER)
    server.ok(Call("PATCH", f"{tenant.pods}/p", {"metadata": {"annotations": dict(FORGED)}}, MERGE))
    served = tenant.read()
    assert keys(served) == FORGED.keys()
    served["metadata"] = {"name": "copy", "annotations": served["metadata"]["annotations"]}
    assert keys(tenant.created(served)) == set()


def test_the_gate_is_not_opened_by_hand(lab: Lab, tenant: Tenant) -> None:
    tenant.created(asking())
    change: Json = {"spec": {"schedulingGates": []}}
    for api in (tenant.api, as_user(lab, "tenant-admin")):
        answer = api.request(Call("PATCH", f"{tenant.pods}/p", change, MERGE))
        assert answer.status == 403
        assert "only Tenure opens" in answer.json()["message"]
    as_user(lab, SERVER).ok(Call("PATCH", f"{tenant.pods}/p", change, MERGE))
    assert gates(tenant.read()) == []


def test_a_deployment_s_template_brings_no_key_in(lab: Lab, tenant: Tenant) -> None:
    labels = {"app": "d"}
    template = {"metadata": {"labels": labels, "annotations": FORGED}, "spec": asking()["spec"]}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "d"},
        "spec": {"selector": {"matchLabels": labels}, "template": template},
    }
    base = f"/apis/apps/v1/namespaces/{tenant.namespace}/deployments"
    tenant.api.ok(Call("POST", base, deployment))
    (found,) = lab.wait_for(tenant.pods, accept=lambda pods: bool(pods["items"]))["items"]
    assert (keys(found), gates(found)) == (set(), [GATE])
    tenant.api.ok(Call("DELETE", f"{base}/d", {"propagationPolicy": "Foreground"}))


def test_pods_of_the_cluster_s_own_namespaces_do_not_call_us(lab: Lab, webhook: Webhook) -> None:
    answer = lab.api.request(Call("POST", "/api/v1/namespaces/kube-system/pods?dryRun=All", asking()))
    assert gates(answer.json()) == []
    forged = asking(annotations=dict(FORGED))
    answer = lab.api.request(Call("POST", "/api/v1/namespaces/kube-system/pods?dryRun=All", forged))
    assert answer.status == 403


def test_pods_that_are_none_of_our_business_do_not_call_us(webhook: Webhook, tenant: Tenant) -> None:
    before = webhook.metric("tenure_admission_duration_seconds_count")
    tenant.created(pod(container(limits={"cpu": "1", "example.com/gpu": "1"}), labels={"app": "x"}))
    assert webhook.metric("tenure_admission_duration_seconds_count") == before


# Which failure is whose


def test_while_the_webhook_is_away_nothing_forged_comes_in_and_nothing_else_is_stopped(
    lab: Lab, webhook: Webhook, tenant: Tenant
) -> None:
    def gated() -> bool:
        probe = asking()
        probe["metadata"]["name"] = "probe"
        answer = tenant.create(probe, "?dryRun=All")
        return answer.status == 201 and gates(answer.json()) == [GATE]

    def called(other: Webhook) -> bool:
        gated()
        return other.metric("tenure_admission_duration_seconds_count") > 0

    with serving() as gone:
        configure(lab, gone)
        eventually(lambda: called(gone))
    try:
        assert "only Tenure sets" in tenant.refused(pod(annotations=dict(FORGED)))
        assert "only Tenure sets" in tenant.refused(asking(labels={CARDS: "x"}))
        assert gates(tenant.created(asking())) == []
        configure(lab, gone, FAILURE_POLICY="Fail")
        eventually(lambda: tenant.create(asking(), "?dryRun=All").status == 500)
        plain = pod()
        plain["metadata"]["name"] = "plain"
        assert tenant.create(plain).status == 201
    finally:
        configure(lab, webhook)
        eventually(gated)
