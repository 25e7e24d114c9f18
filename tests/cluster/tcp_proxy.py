"""A TCP proxy before the API server that can cut, stall and refuse: the network's part in a test."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import yaml

CHUNK = 65_536


class Proxy:
    """TLS passes through unread."""

    def __init__(self, target: str) -> None:
        parts = urlsplit(target)
        self._target = (parts.hostname, parts.port)
        self._writers: set[asyncio.StreamWriter] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._refusing = False
        self.accepted = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        if self._refusing:
            writer.transport.abort()
            return
        try:
            up_reader, up_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, up_writer}
        await asyncio.gather(self._pump(reader, up_writer), self._pump(up_reader, writer))
        self._writers -= {writer, up_writer}

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while piece := await reader.read(CHUNK):
                await self._flowing.wait()
                writer.write(piece)
                await writer.drain()
        writer.close()

    @property
    def open(self) -> int:
        """Connections that are open now."""
        return len(self._writers) // 2

    def cut(self) -> None:
        """Reset every connection; new ones are welcome."""
        for writer in self._writers:
            writer.transport.abort()

    def refuse(self) -> None:
        """Reset every connection and every new one."""
        self._refusing = True
        self.cut()

    def stall(self) -> None:
        """Pass nothing on, with every connection open, as a dead peer does. Any thread may call it."""
        self._flowing.clear()

    def heal(self) -> None:
        self._refusing = False
        self._flowing.set()


@asynccontextmanager
async def proxied(target: str) -> AsyncIterator[tuple[Proxy, str]]:
    """The proxy and its URL."""
    proxy = Proxy(target)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield proxy, f"https://127.0.0.1:{port}"
    finally:
        proxy.heal()
        proxy.cut()
        server.close()
        while proxy.open:  # noqa: ASYNC110 - connections end on their own, each in its own task
            await asyncio.sleep(0.01)


@contextmanager
def proxied_in_a_thread(target: str) -> Iterator[tuple[Proxy, str]]:
    """The same for a test without a loop."""
    made, end = Future[tuple[Proxy, str]](), threading.Event()

    async def serve() -> None:
        async with proxied(target) as found:
            made.set_result(found)
            await asyncio.to_thread(end.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="tcp proxy")
    thread.start()
    try:
        yield made.result(10)
    finally:
        end.set()
        thread.join(30)


def kubeconfig_through(original: Path, url: str, folder: Path) -> Path:
    """A copy of a kubeconfig that leads through the proxy."""
    content = yaml.safe_load(original.read_text())
    for cluster in content["clusters"]:
        cluster["cluster"]["server"] = url
    copy = folder / "kubeconfig"
    copy.write_text(yaml.safe_dump(content))
    return copy
