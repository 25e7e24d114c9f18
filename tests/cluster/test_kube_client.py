"""What the API server answers to the client: the meanings that writers rely on."""

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from service.kube import errors
from service.kube.client import KubeClient, PatchKind
from service.kube.metrics import KubeMetrics
from service.kube.resources import LEASES, NODES, PODS, Resource
from service.metrics import MetricSet
from service.settings import KubeSettings
from tests.lab import Lab

CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap", namespaced=True)


@pytest.fixture
async def client(lab: Lab) -> AsyncIterator[KubeClient]:
    settings = KubeSettings(kubeconfig=await asyncio.to_thread(lambda: lab.kubeconfig))
    client = await KubeClient.connect(settings, metrics=KubeMetrics(MetricSet()))
    yield client
    await client.close()


def config_map(name: str, **data: str) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


async def test_a_name_can_be_created_once(client: KubeClient, namespace: str) -> None:
    path = CONFIG_MAPS.path(namespace)
    await client.create(path, config_map("x"))
    with pytest.raises(errors.AlreadyExists):
        await client.create(path, config_map("x"))


async def test_of_two_writes_from_one_version_one_wins(client: KubeClient, namespace: str) -> None:
    made = msgspec.json.decode(await client.create(CONFIG_MAPS.path(namespace), config_map("x")))
    path = CONFIG_MAPS.path(namespace, "x")
    await client.replace(path, {**made, "data": {"by": "first"}})
    with pytest.raises(errors.Conflict) as caught:
        await client.replace(path, {**made, "data": {"by": "second"}})
    assert not caught.value.outcome_unknown
    assert msgspec.json.decode(await client.get(path))["data"] == {"by": "first"}


async def test_a_deletion_takes_only_the_object_that_was_meant(client: KubeClient, namespace: str) -> None:
    made = msgspec.json.decode(await client.create(CONFIG_MAPS.path(namespace), config_map("x")))
    path = CONFIG_MAPS.path(namespace, "x")
    with pytest.raises(errors.Conflict):
        await client.delete(path, uid="another")
    with pytest.raises(errors.Conflict):
        await client.delete(path, resource_version="1")
    meta = made["metadata"]
    await client.delete(path, uid=meta["uid"], resource_version=meta["resourceVersion"], grace_seconds=0)
    with pytest.raises(errors.NotFound):
        await client.get(path)


async def test_each_kind_of_patch_is_understood(client: KubeClient, namespace: str) -> None:
    await client.create(CONFIG_MAPS.path(namespace), config_map("x", a="1"))
    path = CONFIG_MAPS.path(namespace, "x")
    await client.patch(path, {"data": {"b": "2"}}, kind=PatchKind.MERGE)
    await client.patch(path, [{"op": "add", "path": "/data/c", "value": "3"}], kind=PatchKind.JSON)
    await client.patch(path, {"data": {"d": "4"}}, kind=PatchKind.STRATEGIC)
    applied = config_map("x", e="5")
    answer = await client.patch(path, applied, kind=PatchKind.APPLY, field_manager="tenure-test")
    assert msgspec.json.decode(answer)["data"] == {"a": "1", "b": "2", "c": "3", "d": "4", "e": "5"}


async def test_applying_over_another_manager_s_field_needs_force(client: KubeClient, namespace: str) -> None:
    path = CONFIG_MAPS.path(namespace, "x")
    await client.patch(path, config_map("x", a="1"), kind=PatchKind.APPLY, field_manager="one")
    with pytest.raises(errors.Conflict):
        await client.patch(path, config_map("x", a="2"), kind=PatchKind.APPLY, field_manager="two")
    await client.patch(path, config_map("x", a="2"), kind=PatchKind.APPLY, field_manager="two", force=True)
    assert msgspec.json.decode(await client.get(path))["data"] == {"a": "2"}


async def test_an_object_that_is_wrong_in_itself_is_invalid(client: KubeClient, namespace: str) -> None:
    with pytest.raises(errors.Invalid) as caught:
        await client.create(CONFIG_MAPS.path(namespace), config_map("Not A Name"))
    assert "Not A Name" in caught.value.message


async def test_what_rbac_does_not_allow_is_forbidden(lab: Lab, namespace: str) -> None:
    file = await asyncio.to_thread(lab.kubeconfig_for, "nobody-special")
    client = await KubeClient.connect(KubeSettings(kubeconfig=file), metrics=KubeMetrics(MetricSet()))
    try:
        with pytest.raises(errors.Forbidden) as caught:
            await client.get(PODS.path(namespace))
    finally:
        await client.close()
    assert "nobody-special" in caught.value.message


async def test_a_kind_that_is_not_installed_is_not_found(client: KubeClient) -> None:
    with pytest.raises(errors.NotFound):
        await client.get(Resource("tenure.dev", "v1", "unicorns", "Unicorn", namespaced=False).path())


async def test_a_list_that_must_not_be_older_than_a_version_from_the_future_says_so(
    client: KubeClient,
) -> None:
    params = {"resourceVersion": str(2**50), "resourceVersionMatch": "NotOlderThan", "limit": "1"}
    with pytest.raises(errors.VersionTooLarge):
        await client.get(NODES.path(), params=params)


async def test_a_watch_streams_events_until_it_is_left(client: KubeClient, namespace: str) -> None:
    path = LEASES.path(namespace)
    version = msgspec.json.decode(await client.get(path))["metadata"]["resourceVersion"]
    params = {"watch": "true", "resourceVersion": version}
    async with client.stream(path, params, connect_deadline=10, idle_deadline=30, total_deadline=60) as lines:
        await client.create(path, {"metadata": {"name": "x"}, "spec": {}})
        event = msgspec.json.decode(await anext(lines))
    assert (event["type"], event["object"]["metadata"]["name"]) == ("ADDED", "x")
