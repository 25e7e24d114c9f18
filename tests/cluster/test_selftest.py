"""What `helm test` asks, on an API server whose webhook or guard is not as it should be."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from service import selftest
from service.kube.client import KubeClient
from service.kube.metrics import KubeMetrics
from service.metrics import MetricSet
from service.settings import KubeSettings, Settings
from tests.cluster import admission_manifests as manifests
from tests.lab import Lab
from tests.lab.ports import free_ports


@pytest.fixture
async def client(lab: Lab) -> AsyncIterator[KubeClient]:
    made = await KubeClient.connect(KubeSettings(kubeconfig=lab.kubeconfig), metrics=KubeMetrics(MetricSet()))
    yield made
    await made.close()


@pytest.fixture
def dead_webhook(lab: Lab, namespace: str) -> Iterator[None]:
    """Registered, but a proxy that nobody asked for hangs up: here, nobody listens at all. Failure policy Ignore."""
    (port,) = free_ports(1)
    made = manifests.webhook({"url": f"https://127.0.0.1:{port}/admission/pods"}, NAME=f"dead-{namespace}")
    made["webhooks"][0]["namespaceSelector"] = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    lab.apply(made)
    yield
    lab.kubectl("delete", "mutatingwebhookconfiguration", f"dead-{namespace}")


async def test_a_webhook_that_is_never_reached_is_told_although_pods_are_created(
    lab: Lab, client: KubeClient, namespace: str, dead_webhook: None
) -> None:
    await _without_guard(lab, client, namespace)
    fault = await selftest._webhook(client, Settings(), namespace)
    assert fault is not None
    assert "a proxy of a mesh" in fault


async def test_a_namespace_that_does_not_exist_is_told(client: KubeClient) -> None:
    fault = await selftest._webhook(client, Settings(), "no-such-namespace")
    assert fault is not None
    assert "a pod could not be created in no-such-namespace" in fault


async def test_a_missing_guard_is_told_and_a_present_one_is_seen(
    lab: Lab, client: KubeClient, namespace: str
) -> None:
    settings = Settings(kube=KubeSettings(namespace=namespace))
    guard = [one for one in manifests.guard(["nobody"]) if one["metadata"]["name"] == "tenure-decision-keys"]
    fault = await _without_guard(lab, client, namespace)
    assert "was admitted: is policy tenure-decision-keys there" in fault
    lab.apply(*guard)
    try:
        assert await _patiently(client, settings, present=True) is None
    finally:
        lab.kubectl("delete", "validatingadmissionpolicybinding", "tenure-decision-keys")


async def _without_guard(lab: Lab, client: KubeClient, namespace: str) -> str:
    """Take it away, also where an earlier test left it, and see that it is gone; what the self-test says then."""
    lab.kubectl("delete", "validatingadmissionpolicybinding", "tenure-decision-keys", "--ignore-not-found")
    settings = Settings(kube=KubeSettings(namespace=namespace))
    fault = await _patiently(client, settings, present=False)
    assert fault is not None
    return fault


async def _patiently(client: KubeClient, settings: Settings, *, present: bool) -> str | None:
    """Policies come into force, and go out of it, some time after their objects."""
    fault: str | None = None
    for _ in range(60):
        fault = await selftest._guard(client, settings)
        if (fault is None) == present:
            return fault
        await asyncio.sleep(0.5)
    return fault


async def test_a_server_without_a_service_is_told(lab: Lab, namespace: str) -> None:
    settings = Settings(kube=KubeSettings(kubeconfig=lab.kubeconfig, namespace=namespace))
    results = await selftest.selftest(settings, namespace=namespace, patience_s=0)
    assert results[-1].question == "the server answers behind its Service"
    assert results[-1].fault is not None
    assert f"there is no service tenure:ops in namespace {namespace}" in results[-1].fault
