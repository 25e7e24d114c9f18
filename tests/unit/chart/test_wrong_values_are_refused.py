"""A misspelt value, one out of range, or two that make no sense together end in one sentence, before anything is."""

import pytest

from tests.unit.chart import rendered

pytestmark = pytest.mark.cluster  # Helm is one of the lab's programs.

SCHEMA = {
    "pool.polcy=spread": "additional properties 'polcy' not allowed",
    "hostpid=true": "additional properties 'hostpid' not allowed",
    "server.resource.limits.cpu=1": "additional properties 'resource' not allowed",
    "pool.policy=most": "'/pool/policy': value must be one of",
    "pool.resources.count=gpu": "'/pool/resources/count'",
    "regions.backend=nfs": "'/regions/backend': value must be one of",
    "regions.root=relative": "'/regions/root'",
    "webhook.failurePolicy=ignore": "'/webhook/failurePolicy': value must be one of",
    "webhook.timeoutSeconds=31": "maximum: got 31, want 30",
    "server.replicas=0": "minimum: got 0, want 1",
    "hostPID=yes": "'/hostPID': got string, want boolean",
    "devices.npu.count=0": "'/devices/npu/count': minimum",
    "devices.rdma.mode=plugin": "'/devices/rdma/mode'",
    "certificates.mode=cert-manager": "'/certificates/mode'",
    "image.digest=latest": "'/image/digest'",
    "priorityClasses.value=2000000000": "maximum",
    "uninstall.blockers=ignore": "'/uninstall/blockers'",
    "settings.pool.polcy=spread": "'/settings/pool': additional properties 'polcy' not allowed",
    "settings.regions.sweep_s=0": "exclusiveMinimum: got 0, want 0",
    "settings.log.level=verbose": "'/settings/log/level'",
    "settings.nonsense.a=1": "'/settings': additional properties 'nonsense' not allowed",
}
SENSELESS = {
    "settings.kube.namespace=other": "choose it with --namespace",
    "pool.placement=dra": "not built yet",
    "pool.resources.memory=hami.io/remote-gpu": "must differ",
    "settings.pool.resource_memory_name=": "set both",
    "node.enabled=false": "regions.backend csi needs the agents",
    "hostPID=false,regions.backend=off": "the agents see nothing at all",
    "certificates.mode=files,certificates.secretName=": "needs certificates.secretName",
    "server.hostNetwork=true,certificates.clientSecretName=": "set certificates.clientSecretName",
    "server.hostNetwork=true,settings.http.extender_host=127.0.0.1": "whoever calls the extender binds pods",
    "settings.http.extender_host=0.0.0.0": "calls it on loopback",
    "scheduler.enabled=false,settings.http.extender_host=0.0.0.0": "set settings.certs.client_secret",
    "test.namespace=kube-system": "is never sent to the webhook",
    "webhook.timeoutSeconds=2": "must not be shorter",
}


@pytest.mark.parametrize("given", SCHEMA)
def test_the_schema_refuses_it_and_names_the_place(given: str) -> None:
    done = rendered.template(f"--set={given}")
    assert done.returncode != 0
    assert SCHEMA[given] in done.stderr


@pytest.mark.parametrize("given", SENSELESS)
def test_values_that_make_no_sense_together_are_refused_with_a_sentence(given: str) -> None:
    done = rendered.template(f"--set={given}")
    assert done.returncode != 0
    assert SENSELESS[given] in done.stderr


@pytest.mark.parametrize("namespace", ["default", "kube-system"])
def test_a_namespace_that_holds_other_pods_is_refused(namespace: str) -> None:
    done = rendered.template(namespace=namespace)
    assert done.returncode != 0
    assert "needs a namespace of its own" in done.stderr
