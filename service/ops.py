"""What the ops listener answers about the process itself: metrics and health."""

import asyncio
from collections.abc import Iterable
from http import HTTPStatus

from aiohttp import web
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from service.lifecycle import Lifecycle


def ops_routes(lifecycle: Lifecycle, registry: CollectorRegistry) -> list[web.RouteDef]:
    """`/metrics`, `/livez` and `/readyz`."""
    ops = _Ops(lifecycle, registry)
    return [
        web.get("/metrics", ops.metrics),
        web.get("/livez", ops.livez),
        web.get("/readyz", ops.readyz),
    ]


class _Ops:
    def __init__(self, lifecycle: Lifecycle, registry: CollectorRegistry) -> None:
        self._lifecycle = lifecycle
        self._registry = registry

    async def metrics(self, _: web.Request) -> web.Response:
        """One metric at a time, so that a pool of thousands of cards does not hold up an admission."""
        text = bytearray()
        for metric in self._registry.collect():
            text += generate_latest(_Only(metric))
            await asyncio.sleep(0)
        return web.Response(body=bytes(text), headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})

    async def livez(self, _: web.Request) -> web.Response:
        """Green also while draining; red when a task ended that must not."""
        return _health(dict.fromkeys(self._lifecycle.faults, "ended unexpectedly"), good="alive")

    async def readyz(self, _: web.Request) -> web.Response:
        """Each condition that fails, by name."""
        return _health(dict(self._lifecycle.failing()), good="ready")


class _Only(Collector):
    """A registry of one metric."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterable[Metric]:
        return (self._metric,)


def _health(trouble: dict[str, str], *, good: str) -> web.Response:
    if not trouble:
        return web.Response(text=f"{good}\n")
    lines = [f"not {good}", *(f"{name}: {why}" for name, why in trouble.items())]
    return web.Response(text="\n".join(lines) + "\n", status=HTTPStatus.SERVICE_UNAVAILABLE)
