"""A reflector of ConfigMaps in one namespace, and what a test wants to know about it."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from service.kube.client import KubeClient
from service.kube.metrics import KubeMetrics
from service.kube.reflector import Reflector, Timings
from service.kube.resources import Resource
from service.kube.store import Change, Store
from service.metrics import MetricSet
from service.objects import ObjectMeta, Projection
from service.settings import KubeSettings
from tests.cluster.waiting import until
from tests.lab import Lab
from tests.lab.api import Call
from tests.lab.etcd import delete_prefix, put

CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap", namespaced=True)
QUICK = Timings(first_pause=0.05, longest_pause=0.2)


class ConfigMap(Projection, frozen=True):
    metadata: ObjectMeta
    data: dict[str, str] | None = None


@dataclass
class Reflected:
    """What runs, what it told, and what it counted."""

    client: KubeClient
    store: Store[ConfigMap]
    reflector: Reflector[ConfigMap]
    task: asyncio.Task[None]
    registry: CollectorRegistry
    changes: list[Change[ConfigMap]] = field(default_factory=list)

    def names(self) -> set[str]:
        return {found.metadata.name for found in self.store.list()}

    def counted(self, metric: str, **labels: str) -> float:
        value = self.registry.get_sample_value(metric, {"resource": "configmaps", **labels})
        assert value is not None, metric
        return value

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for `condition`, or for the reflector's end, which must not come."""
        await until(lambda: condition() or self.task.done(), 60.0)
        assert not self.task.done()


@asynccontextmanager
async def reflecting(
    kubeconfig: Path, namespace: str, *, timings: Timings = QUICK, page_size: int = 250, selector: str = ""
) -> AsyncIterator[Reflected]:
    metrics = MetricSet()
    settings = KubeSettings(kubeconfig=kubeconfig)
    client = await KubeClient.connect(settings, metrics=KubeMetrics(metrics))
    store = Store[ConfigMap]()
    reflector = Reflector(
        client,
        CONFIG_MAPS,
        ConfigMap,
        store,
        metrics=KubeMetrics(metrics := MetricSet()),
        namespace=namespace,
        label_selector=selector or None,
        timings=timings,
        page_size=page_size,
    )
    changes: list[Change[ConfigMap]] = []
    store.subscribe(changes.append)
    task = asyncio.create_task(reflector.run())
    try:
        yield Reflected(client, store, reflector, task, metrics.registry, changes)
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await client.close()


def body(name: str, **data: str) -> dict[str, object]:
    return {"metadata": {"name": name, "labels": {"kind": data.get("kind", "plain")}}, "data": data}


def create_sync(lab: Lab, namespace: str, *names: str) -> None:
    lab.api.all_ok([Call("POST", CONFIG_MAPS.path(namespace), body(name)) for name in names])


async def create(lab: Lab, namespace: str, *names: str) -> None:
    await asyncio.to_thread(create_sync, lab, namespace, *names)


async def change(lab: Lab, namespace: str, name: str, **data: str) -> None:
    call = Call("PUT", CONFIG_MAPS.path(namespace, name), body(name, **data))
    await asyncio.to_thread(lab.api.ok, call)


async def delete(lab: Lab, namespace: str, *names: str) -> None:
    calls = [Call("DELETE", CONFIG_MAPS.path(namespace, name)) for name in names]
    await asyncio.to_thread(lab.api.all_ok, calls)


@contextmanager
def stored(lab: Lab, namespace: str, count: int) -> Iterator[None]:
    """So many ConfigMaps, put into etcd: the API server would take a minute to create 10,000."""
    prefix = f"/registry/configmaps/{namespace}/n"
    put(lab, ((f"{prefix}{number}", _stored(namespace, f"n{number}")) for number in range(count)))
    yield
    delete_prefix(lab, prefix)


def _stored(namespace: str, name: str) -> dict[str, Any]:
    meta = {"name": name, "namespace": namespace, "uid": str(uuid.uuid4())}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"filler": "x" * 1000}}
