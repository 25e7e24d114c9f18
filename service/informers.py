"""Stores that follow the API server: one reflector and one guarded task for each kind."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import structlog

from service.kube.client import KubeClient
from service.kube.errors import DeadlineExceeded
from service.kube.metrics import KubeMetrics
from service.kube.reflector import Reflector, Timings
from service.kube.resources import Resource
from service.kube.store import Store
from service.lifecycle import Lifecycle, Part
from service.objects import KubeObject
from service.settings import KubeSettings

# Seconds between two log lines about kinds that are not listed yet.
REPORT_S: Final = 30.0

T = TypeVar("T", bound=KubeObject)

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Informer:
    name: str
    store: Store[Any]
    reflector: Reflector[Any]

    @property
    def missing(self) -> str | None:
        return None if self.store.synced else f"{self.name} are not listed yet"


class Informers:
    """All caches of a process. Each is a readiness condition until its first list is complete.

    A cache that falls behind later is a metric and an alert: if it ended readiness, one pause of the API server
    would take all replicas out at once.
    """

    def __init__(
        self, client: KubeClient, *, settings: KubeSettings, metrics: KubeMetrics, lifecycle: Lifecycle
    ) -> None:
        self._client = client
        self._settings = settings
        self._metrics = metrics
        self._lifecycle = lifecycle
        self._informers: list[_Informer] = []

    def follow(
        self, resource: Resource, type_: type[T], *, project: Callable[[T], T] | None = None
    ) -> Store[T]:
        """A store that is kept equal to all objects of `resource`, each reduced by `project`."""
        store: Store[T] = Store()
        reflector = Reflector(
            self._client,
            resource,
            type_,
            store,
            metrics=self._metrics,
            project=project,
            page_size=self._settings.page_size,
            timings=Timings(idle=self._settings.watch_idle_s),
        )
        informer = _Informer(resource.plural, store, reflector)
        self._lifecycle.condition(f"{informer.name} synced", lambda: informer.missing)
        self._informers.append(informer)
        return store

    def parts(self) -> Iterator[Part]:
        """The tasks, then a part that lasts until everything is listed."""
        for informer in self._informers:
            yield self._lifecycle.task(f"{informer.name} reflector", informer.reflector.run, owner="caches")
        yield Part("caches", self._synced)

    def missing(self) -> str | None:
        """Why the stores are not complete; None when they are."""
        return next((why for informer in self._informers if (why := informer.missing)), None)

    async def _synced(self) -> None:
        for informer in self._informers:
            while not informer.store.synced:
                with suppress(DeadlineExceeded):
                    await informer.reflector.wait_synced(REPORT_S)
                    break
                log.warning("still waiting for the API server", resource=informer.name)
