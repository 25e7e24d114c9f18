"""What `filter` costs, by the number of nodes, beside a handler that only reads and writes the same names.

CPU of the whole handler, from the bytes of the call to the bytes of the answer; the HTTP around it is the same for
every extender. 8 servers, and a pod that has its promise, so that no call to the API server is made.
"""

import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import cast

import msgspec

from controllers.pool import ledger
from controllers.pool.bind import Binder
from controllers.pool.book import Book
from controllers.pool.fresh import OwnWrites
from controllers.pool.lookup import Lookup
from controllers.pool.metrics import PoolMetrics
from controllers.pool.pods import Resources
from controllers.pool.servers import Card, RemoteServer, RemoteServerStatus, status_of
from service import names
from service.kube.client import KubeClient
from service.metrics import MetricSet
from service.objects import ObjectMeta
from tests.bench.figures import Reading, figure
from webhook.extender import wire
from webhook.extender.handlers import Extender

SERVERS = 8
CARDS = 8
NODES = (50, 1_000, 5_000)
CALLS = 200
UID = "the-pod"


@figure("filter_wall_ms_5000", unit="ms")
@figure("filter_wall_ms_1000", unit="ms")
@figure("filter_wall_ms_50", unit="ms")
@figure("filter_cpu_ms_5000", unit="ms")
@figure("filter_cpu_ms_1000", unit="ms")
@figure("filter_cpu_ms_50", unit="ms")
@figure("filter_echo_cpu_ms_5000", unit="ms")
@figure("filter_echo_cpu_ms_1000", unit="ms")
@figure("filter_echo_cpu_ms_50", unit="ms")
async def filter_ms() -> dict[str, Reading]:
    """One filter call for a pod with a promise, and the echo, in the same run."""
    extender = _extender()

    async def answer(body: bytes) -> bytes:
        _, result = await extender.filter(body)
        return msgspec.json.encode(result)

    readings: dict[str, Reading] = {}
    for nodes in NODES:
        body = _call(nodes)
        cpu, wall = await _timed(answer, body)
        echo, _ = await _timed(_echo, body)
        readings[f"filter_cpu_ms_{nodes}"] = Reading(cpu, CALLS)
        readings[f"filter_wall_ms_{nodes}"] = Reading(wall, CALLS)
        readings[f"filter_echo_cpu_ms_{nodes}"] = Reading(echo, CALLS)
    return readings


async def _echo(body: bytes) -> bytes:
    """Decodes and encodes the names, as a handler that must look at each of them would."""
    _, nodes = wire.decode_filter(body)
    return msgspec.json.encode({"NodeNames": nodes.decoded(), "FailedNodes": {}, "Error": ""})


async def _timed(handler: Callable[[bytes], Awaitable[bytes]], body: bytes) -> tuple[float, float]:
    """CPU and wall milliseconds of one call."""
    await handler(body)
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(CALLS):
        await handler(body)
    spent = time.process_time() - cpu, time.perf_counter() - wall
    return round(spent[0] / CALLS * 1000, 4), round(spent[1] / CALLS * 1000, 4)


def _call(nodes: int) -> bytes:
    container = {"name": "main", "image": "example/app", "resources": {"limits": {names.REMOTE_GPU: "1"}}}
    meta = {"name": "pod", "namespace": "ns", "uid": UID, "labels": {"app": "bench"}}
    pod = {"metadata": meta, "spec": {"containers": [container]}, "status": {"phase": "Pending"}}
    return msgspec.json.encode(
        {
            "Pod": pod,
            "Nodes": None,
            "NodeNames": [
                *(f"worker-{number:05}.example.internal" for number in range(nodes)),
                *(f"gpu-{number}" for number in range(SERVERS)),
            ],
        }
    )


def _extender() -> Extender:
    def frozen() -> float:
        return 0.0

    book = Book(lambda _: [], OwnWrites(frozen))
    for number in range(SERVERS):
        book.learn(_server(f"gpu-{number}"))
    metrics = PoolMetrics(MetricSet())
    nobody = cast("KubeClient", None)  # A pod with a promise asks nobody.
    return Extender(
        lookup=Lookup(nobody, book, deadline=1.0, clock=frozen),
        book=book,
        binder=cast("Binder", None),
        resources=Resources(),
        metrics=metrics,
    )


def _server(name: str) -> RemoteServer:
    cards = [
        Card(f"{name}-{i}", i, "X", 80_000, 100, 0, "10.0.0.1:14833", offered=True) for i in range(CARDS)
    ]
    empty: RemoteServerStatus = status_of("10.0.0.1:14833", cards, ())
    server = RemoteServer(ObjectMeta(name=name, uid=name, resource_version="1"), status=empty)
    if name != "gpu-0":
        return server
    pod = ledger.Witness(UID, "ns", "pod", (f"{name}-0",))
    promised = ledger.reserve(server, pod=pod, now=datetime(2026, 1, 1, tzinfo=UTC))
    return msgspec.structs.replace(server, status=promised or empty)
