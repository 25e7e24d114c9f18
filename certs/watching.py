"""Hears when a single object changes. What it then looks like is read from the API server, not from here."""

from collections.abc import Callable

from service.kube.client import KubeClient
from service.kube.metrics import KubeMetrics
from service.kube.reflector import Reflector
from service.kube.resources import Resource
from service.kube.store import Store
from service.objects import ObjectMeta, Projection


class Watched(Projection, frozen=True):
    """Any object without its content: a key in a Secret is not kept in a store."""

    metadata: ObjectMeta = ObjectMeta()


def watching(
    client: KubeClient,
    resource: Resource,
    *,
    namespace: str | None,
    name: str,
    changed: Callable[[], None],
    metrics: KubeMetrics,
) -> Reflector[Watched]:
    """A reflector of one object, by a field selector, so that rights on this name alone are enough."""
    store: Store[Watched] = Store()
    store.subscribe(lambda _: changed())
    return Reflector(
        client,
        resource,
        Watched,
        store,
        metrics=metrics,
        namespace=namespace,
        field_selector=f"metadata.name={name}",
    )
