"""What the status page costs: 500 cards, 2,000 waiting pods, 500 cards on nodes, 30 claim templates.

Each request is answered afresh, over HTTP, and the stall is how much later than asked the loop runs something
meanwhile: an admission that comes then waits as long. Each figure is the median of several requests.
"""

import asyncio
import gc
import statistics
import time
from typing import Final

from aiohttp import ClientSession
from prometheus_client import CollectorRegistry

from controllers.claims.watch import Seen
from controllers.occupancy.holdings import Holdings
from service.http import Address, HttpMetrics, Listener, Name
from service.lifecycle import Lifecycle
from service.metrics import MetricSet
from service.page.gather import Sources
from service.page.routes import FRESH_S, page_routes
from tests.bench.figures import Reading, figure
from tests.unit.page import crowd
from tests.unit.pool import build

CARDS: Final = 500
PODS: Final = 2_000
TEMPLATES: Final = 30
REQUESTS: Final = 7
# Seconds between two looks at the loop: short beside the stall of 50 ms that would matter, and cheap.
TICK_S: Final = 0.005


@figure("status_page_ms", unit="ms")
@figure("status_page_stall_ms", unit="ms")
@figure("status_page_kib", unit="KiB")
async def status_page() -> dict[str, Reading]:
    """Ask for the page again and again, with somebody waiting on the loop."""
    gc.freeze()  # As the product does at its start.
    metrics = MetricSet(CollectorRegistry())
    lifecycle = Lifecycle(metrics, drain_s=0)
    address = Address("127.0.0.1", 0, "http.ops")
    listener = Listener(Name.OPS, address, lifecycle=lifecycle, metrics=HttpMetrics(metrics), max_body=1024)
    await listener.open(page_routes(_sources(lifecycle)))
    times_ms, stalls_ms, sizes = [], [], []
    try:
        async with ClientSession(f"http://127.0.0.1:{listener.port}") as session:
            for _ in range(REQUESTS):
                took, stall, size = await _request(session)
                times_ms.append(took * 1000)
                stalls_ms.append(stall * 1000)
                sizes.append(size / 1024)
    finally:
        await listener.close()
    return {
        "status_page_ms": Reading(statistics.median(times_ms), len(times_ms)),
        "status_page_stall_ms": Reading(statistics.median(stalls_ms), len(stalls_ms)),
        "status_page_kib": Reading(statistics.median(sizes), len(sizes)),
    }


def _sources(lifecycle: Lifecycle) -> Sources:
    held, seen = crowd.holdings(CARDS), Seen(crowd.reports(TEMPLATES))

    async def holdings() -> Holdings:
        return held

    return Sources(
        lifecycle=lifecycle,
        identity="bench",
        now=lambda: build.NOW,
        pool=crowd.Crowd(crowd.servers(CARDS), crowd.pods(PODS)).explainer,
        holdings=holdings,
        claims=lambda: seen,
    )


async def _request(session: ClientSession) -> tuple[float, float, int]:
    """Seconds to the last byte, the longest stall meanwhile, and the size in bytes."""
    await asyncio.sleep(FRESH_S + 0.05)
    worst = 0.0

    async def tick() -> None:
        nonlocal worst
        now = asyncio.get_running_loop().time
        while True:
            due = now() + TICK_S
            await asyncio.sleep(TICK_S)
            worst = max(worst, now() - due)

    ticking = asyncio.create_task(tick())
    began = time.perf_counter()
    async with session.get("/") as answer:
        body = await answer.read()
    took = time.perf_counter() - began
    ticking.cancel()
    if answer.status != 200 or b"GPU-0061-7" not in body:
        raise RuntimeError(f"this is not the whole page: {answer.status}, {len(body)} bytes")
    return took, worst, len(body)
