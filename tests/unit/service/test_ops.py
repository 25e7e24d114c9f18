from collections.abc import AsyncIterator

import pytest
from aiohttp import ClientSession
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from service.http import Address, HttpMetrics, Listener, Name
from service.lifecycle import Lifecycle, Phase
from service.metrics import MetricSet
from service.ops import ops_routes


@pytest.fixture
def metrics() -> MetricSet:
    return MetricSet()


@pytest.fixture
def lifecycle(metrics: MetricSet) -> Lifecycle:
    return Lifecycle(metrics, drain_s=12.0)


@pytest.fixture
async def client(lifecycle: Lifecycle, metrics: MetricSet) -> AsyncIterator[ClientSession]:
    address = Address("127.0.0.1", 0, "http.ops")
    listener = Listener(Name.OPS, address, lifecycle=lifecycle, metrics=HttpMetrics(metrics), max_body=1024)
    await listener.open(ops_routes(lifecycle, metrics.registry))
    async with ClientSession(f"http://127.0.0.1:{listener.port}") as session:
        yield session
    await listener.close()


async def ask(client: ClientSession, path: str) -> tuple[int, str]:
    async with client.get(path) as answer:
        return answer.status, await answer.text()


async def test_readyz_names_each_failing_condition(client: ClientSession, lifecycle: Lifecycle) -> None:
    pods = lifecycle.condition("pods synced")
    lifecycle.condition("certificate verified", check=lambda: "the bundle lacks our CA")
    assert await ask(client, "/readyz") == (
        503,
        "not ready\nprocess: is starting\npods synced: not yet\ncertificate verified: the bundle lacks our CA\n",
    )
    lifecycle.phase = Phase.READY
    pods.met()
    assert await ask(client, "/readyz") == (
        503,
        "not ready\ncertificate verified: the bundle lacks our CA\n",
    )


async def test_readyz_is_200_when_nothing_fails_and_503_while_draining(
    client: ClientSession, lifecycle: Lifecycle
) -> None:
    lifecycle.phase = Phase.READY
    assert await ask(client, "/readyz") == (200, "ready\n")
    lifecycle.request_stop("test")
    assert await ask(client, "/readyz") == (503, "not ready\nprocess: is draining\n")


async def test_livez_stays_green_while_draining(client: ClientSession, lifecycle: Lifecycle) -> None:
    lifecycle.phase = Phase.READY
    lifecycle.request_stop("test")
    assert await ask(client, "/livez") == (200, "alive\n")


async def test_livez_is_red_once_a_task_ended_that_must_not(
    client: ClientSession, lifecycle: Lifecycle
) -> None:
    lifecycle.phase = Phase.READY
    lifecycle.fault("pods reflector", owner="caches", error=None)
    assert await ask(client, "/livez") == (503, "not alive\npods reflector: ended unexpectedly\n")


async def test_metrics_is_the_whole_registry(client: ClientSession, metrics: MetricSet) -> None:
    odd = metrics.counter("tenure_test", "Odd text\nwith a line break.", {"name": str})
    odd.labels('a "quoted" \\ name').inc(3)
    async with client.get("/metrics") as answer:
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        text = await answer.text()
    names = {family.name for family in text_string_to_metric_families(text)}
    whole = {
        family.name for family in text_string_to_metric_families(generate_latest(metrics.registry).decode())
    }
    assert names == whole
    assert {"tenure_ready", "tenure_test", "tenure_http_requests"} <= names
    assert r'tenure_test_total{name="a \"quoted\" \\ name"} 3.0' in text
