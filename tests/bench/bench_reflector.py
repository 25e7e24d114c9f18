"""What following pods costs the one loop: 5,000 of them listed in pages, then 20,000 events.

Times are CPU time of the loop's thread, so that a busy machine does not change them. The server sends bytes that were
made before, from a thread of its own.
"""

from __future__ import annotations

import asyncio
import gc
import tempfile
import threading
import time
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from service.kube.metrics import KubeMetrics
from service.kube.reflector import Reflector
from service.kube.resources import PODS
from service.kube.store import Store
from service.metrics import MetricSet
from service.objects import Pod
from tests.bench.figures import Reading, figure
from tests.unit.kube.peer import CHUNKED, chunk, client_of, kubeconfig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

OBJECTS: Final = 5_000
PAGE: Final = 250
EVENTS: Final = 20_000
EVENTS_A_PIECE: Final = 50


def pod(number: int, version: int) -> dict[str, object]:
    """A pod of about 4 KB, as a Deployment makes it."""
    name = f"web-6b7f8c9d4-{number:05}"
    container = {
        "name": "app",
        "image": "registry.example/team/app:1.2.3",
        "env": [{"name": f"SETTING_{n}", "value": "x" * 40} for n in range(20)],
        "resources": {"limits": {"cpu": "1", "memory": "1Gi", "hami.io/remote-gpu": "1"}},
    }
    return {
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": f"00000000-0000-0000-0000-{number:012}",
            "resourceVersion": str(version),
            "labels": {"app": "web", "pod-template-hash": "6b7f8c9d4"},
            "annotations": {f"example.com/note-{n}": "y" * 40 for n in range(8)},
            "managedFields": [{"manager": "kubelet", "fieldsV1": {f"f:field-{n}": {} for n in range(30)}}],
        },
        "spec": {"containers": [container], "nodeName": f"node-{number % 100}", "schedulerName": "default"},
        "status": {"phase": "Running", "conditions": [{"type": f"C{n}", "status": "True"} for n in range(5)]},
    }


def pages() -> list[bytes]:
    """Complete HTTP answers, one for each page."""
    made = []
    for start in range(0, OBJECTS, PAGE):
        token = "more" if start + PAGE < OBJECTS else ""
        items = [pod(number, number) for number in range(start, start + PAGE)]
        body = msgspec.json.encode({"metadata": {"resourceVersion": "1", "continue": token}, "items": items})
        made.append(f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    return made


def events() -> Iterator[bytes]:
    """Pieces of a watch."""
    for start in range(0, EVENTS, EVENTS_A_PIECE):
        lines = (
            msgspec.json.encode({"type": "MODIFIED", "object": pod(number % OBJECTS, OBJECTS + number)})
            + b"\n"
            for number in range(start, start + EVENTS_A_PIECE)
        )
        yield chunk(b"".join(lines))


class Server(threading.Thread):
    """Answers lists in turn; the watch begins when `go` is set."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._pages = pages()
        self._events = list(events())
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self.go = threading.Event()
        self.url = ""

    def run(self) -> None:
        self._loop.run_until_complete(self._listen())
        self._loop.run_forever()

    async def _listen(self) -> None:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()[:2]
        self.url = f"http://{host}:{port}"
        self._ready.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answered = 0
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while b"watch=true" not in await reader.readuntil(b"\r\n\r\n"):
                writer.write(self._pages[answered])
                answered += 1
            writer.write(CHUNKED)
            await asyncio.to_thread(self.go.wait)
            for piece in self._events:
                writer.write(piece)
                await writer.drain()
            await reader.read()
        writer.close()

    def begin(self) -> str:
        self.start()
        self._ready.wait()
        return self.url

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self.join()


class Busy:
    """The longest CPU time between two turns that the loop gave to somebody else."""

    def __init__(self) -> None:
        self.longest = 0.0

    async def watch(self) -> None:
        last = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            self.longest = max(self.longest, now - last)
            last = now


@asynccontextmanager
async def _running(url: str) -> AsyncIterator[tuple[Store[Pod], Reflector[Pod]]]:
    store = Store[Pod]()
    with tempfile.TemporaryDirectory() as folder:
        async with client_of(kubeconfig(Path(folder), url)) as client:
            reflector = Reflector(client, PODS, Pod, store, metrics=KubeMetrics(MetricSet()))
            task = asyncio.create_task(reflector.run())
            yield store, reflector
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


@figure("reflector_list_cpu_per_object", unit="us")
@figure("reflector_event_cpu", unit="us")
@figure("reflector_longest_slice", unit="ms")
async def follow_pods() -> dict[str, Reading]:
    """List, then watch; then list once more beside a task that looks at how long the loop keeps it waiting."""
    server = Server()
    url = await asyncio.to_thread(server.begin)
    told = 0
    finished = asyncio.Event()

    def count(_: object) -> None:
        nonlocal told
        told += 1
        if told == OBJECTS + EVENTS:
            finished.set()

    try:
        async with _running(url) as (store, reflector):
            store.subscribe(count)
            began = time.thread_time()
            await reflector.wait_synced(120.0)
            listed = time.thread_time()
            server.go.set()
            await finished.wait()
            followed = time.thread_time()
    finally:
        await asyncio.to_thread(server.end)
    return {
        "reflector_list_cpu_per_object": Reading((listed - began) / OBJECTS * 1e6, OBJECTS),
        "reflector_event_cpu": Reading((followed - listed) / EVENTS * 1e6, EVENTS),
        "reflector_longest_slice": Reading(await _longest_slice(), OBJECTS),
    }


async def _longest_slice() -> float:
    """Milliseconds. Apart from the figures above, to which the onlooker's own turns would add."""
    server = Server()
    url = await asyncio.to_thread(server.begin)
    busy = Busy()
    gc.collect()
    gc.freeze()  # A full collection walks through all that was ever imported: 100 ms that are not the reflector's.
    try:
        async with _running(url) as (_, reflector):
            onlooker = asyncio.create_task(busy.watch())
            await reflector.wait_synced(120.0)
            onlooker.cancel()
    finally:
        gc.unfreeze()
        server.go.set()
        await asyncio.to_thread(server.end)
    return busy.longest * 1e3
