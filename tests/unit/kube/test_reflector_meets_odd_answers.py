"""What only a broken server or a proxy answers; the rest is tested on the API server itself."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
import structlog
from prometheus_client import CollectorRegistry

from service.kube.metrics import KubeMetrics
from service.kube.reflector import Reflector, Timings
from service.kube.resources import PODS
from service.kube.store import Store
from service.metrics import MetricSet
from service.objects import Pod
from tests.unit.kube.peer import (
    CHUNKED,
    LAST_CHUNK,
    Peer,
    Reply,
    answer,
    chunk,
    client_of,
    kubeconfig,
    running,
    silence,
)

QUICK = Timings(first_pause=0.01, longest_pause=0.02)


@dataclass
class Reflected:
    store: Store[Pod]
    registry: CollectorRegistry
    peer: Peer

    def count(self, metric: str, **labels: str) -> float:
        value = self.registry.get_sample_value(metric, {"resource": "pods", **labels})
        assert value is not None, metric
        return value

    async def asked(self, times: int) -> None:
        async with asyncio.timeout(20):
            while len(self.peer.requests) < times:  # noqa: ASYNC110 - the peer's list grows by itself
                await asyncio.sleep(0.01)


@asynccontextmanager
async def reflecting(folder: Path, *replies: Reply) -> AsyncIterator[Reflected]:
    metrics = MetricSet()
    store = Store[Pod]()
    async with running(*replies) as peer, client_of(kubeconfig(folder, peer.url)) as client:
        reflector = Reflector(client, PODS, Pod, store, metrics=KubeMetrics(metrics), timings=QUICK)
        task = asyncio.create_task(reflector.run())
        try:
            yield Reflected(store, metrics.registry, peer)
            assert not task.done()
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


def meta(name: str, version: str) -> dict[str, object]:
    return {"name": name, "namespace": "a", "uid": f"uid-{name}", "resourceVersion": version}


def page(version: str, *items: object, token: str = "") -> Reply:
    return answer(200, {"metadata": {"resourceVersion": version, "continue": token}, "items": items})


def pod(name: str, version: str = "1") -> dict[str, object]:
    return {"metadata": meta(name, version)}


def _stream(lines: tuple[object, ...]) -> bytes:
    content = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
    return CHUNKED + (chunk(content) if content else b"")  # An empty chunk would be the last one.


def events(*lines: object) -> Reply:
    """A watch that goes on after its events."""
    return silence(_stream(lines))


def ended(*lines: object) -> Reply:
    """A watch that ends after its events."""
    return silence(_stream(lines) + LAST_CHUNK)


@pytest.mark.parametrize(
    "line",
    [
        "not an event",
        {"type": "MOVED", "object": {}},
        {"type": "ADDED", "object": {"spec": {}}},
        {"type": "ADDED", "object": {"metadata": {"name": "x", "uid": "u"}}},
        {"type": "ADDED", "object": {"metadata": {"uid": "u", "resourceVersion": "1"}}},
        {"type": "ADDED", "object": {"metadata": "x"}},
        {"type": "BOOKMARK", "object": {"metadata": {}}},
        {"type": "ERROR", "object": "x"},
    ],
)
async def test_an_event_that_is_none_is_counted_and_the_watch_begun_again(
    tmp_path: Path, line: object
) -> None:
    good = {"type": "ADDED", "object": pod("y", "11")}
    with structlog.testing.capture_logs() as logged:
        async with reflecting(tmp_path, page("10", pod("x")), events(good, line), events()) as found:
            await found.asked(3)
            assert {each.metadata.name for each in found.store.list()} == {"x", "y"}
            assert found.count("tenure_kube_stream_failures_total", failure="undecodable") == 1
            assert "resourceVersion=11" in found.peer.requests[2]
    assert [each["failure"] for each in logged] == ["undecodable"]


async def test_what_cannot_be_decoded_is_logged_in_a_few_bytes(tmp_path: Path) -> None:
    line = {"type": "ADDED", "object": {"metadata": {"name": 7}, "spec": {"secret": "s" * 5000}}}
    with structlog.testing.capture_logs() as logged:
        async with reflecting(tmp_path, page("10"), events(line), events()) as found:
            await found.asked(3)
    assert len(str(logged[0])) < 500


async def test_an_error_event_that_says_expired_leads_to_a_list(tmp_path: Path) -> None:
    error = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired"}}
    replies = (page("10", pod("x")), events(error), page("20", pod("y", "15")), events())
    async with reflecting(tmp_path, *replies) as found:
        await found.asked(4)
        assert {each.metadata.name for each in found.store.list()} == {"y"}
        assert found.count("tenure_kube_lists_total", reason="expired") == 1
        assert "resourceVersion=10&resourceVersionMatch=NotOlderThan" in found.peer.requests[2]


async def test_an_internal_error_event_begins_the_watch_again_without_a_list(tmp_path: Path) -> None:
    error = {"type": "ERROR", "object": {"kind": "Status", "code": 500, "reason": "InternalError"}}
    async with reflecting(tmp_path, page("10"), events(error), events()) as found:
        await found.asked(3)
        assert "watch=true" in found.peer.requests[2]
        assert found.count("tenure_kube_stream_failures_total", failure="unavailable") == 1


async def test_bookmarks_move_the_version(tmp_path: Path) -> None:
    bookmark = {"type": "BOOKMARK", "object": {"kind": "Pod", "metadata": {"resourceVersion": "77"}}}
    async with reflecting(tmp_path, page("10"), ended(bookmark), events()) as found:
        await found.asked(3)
        assert "resourceVersion=77" in found.peer.requests[2]
        assert found.count("tenure_kube_watch_events_total", type="BOOKMARK") == 1
        assert found.count("tenure_kube_last_event_timestamp_seconds") > 0


async def test_watches_that_end_at_once_are_counted(tmp_path: Path) -> None:
    async with reflecting(tmp_path, page("10"), ended(), ended(), ended(), events()) as found:
        await found.asked(5)
        assert found.count("tenure_kube_short_watches_total") == 3
        assert found.count("tenure_kube_lists_total", reason="start") == 1


async def test_a_list_that_is_none_leaves_the_store_unsynced(tmp_path: Path) -> None:
    async with reflecting(
        tmp_path, answer(200, {"items": 7}), answer(200, []), page("10"), events()
    ) as found:
        await found.asked(2)
        assert not found.store.synced
        await found.asked(4)
        assert found.store.synced
        assert found.count("tenure_kube_stream_failures_total", failure="undecodable") == 2


async def test_a_server_that_is_too_busy_is_not_listed_again(tmp_path: Path) -> None:
    busy = answer(429, {"kind": "Status", "code": 429, "reason": "TooManyRequests"})
    async with reflecting(tmp_path, page("10"), busy, busy, events()) as found:
        await found.asked(4)
        assert all("watch=true" in request for request in found.peer.requests[1:])
