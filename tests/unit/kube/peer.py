"""A peer on a real socket that answers with the faults of a network: what no API server does on request."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from service.kube.client import KubeClient
from service.kube.metrics import KubeMetrics
from service.metrics import MetricSet
from service.settings import KubeSettings

Writer = asyncio.StreamWriter
Reply = Callable[[Writer], Awaitable[None]]


@dataclass
class Peer:
    """Answers the n-th request with the n-th reply; the last one for all that follow."""

    replies: list[Reply]
    requests: list[str] = field(default_factory=list)
    heads: list[str] = field(default_factory=list)
    connections: int = 0
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    url: str = ""

    async def serve(self, reader: asyncio.StreamReader, writer: Writer) -> None:
        self.connections += 1
        try:
            while head := await _head(reader):
                self.heads.append(head)
                self.requests.append(head.split(" HTTP/")[0])
                reply = self.replies[min(len(self.requests), len(self.replies)) - 1]
                await reply(writer)
        except ConnectionError:
            pass
        finally:
            self.ended.set()
            writer.close()


async def _head(reader: asyncio.StreamReader) -> str:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
    except asyncio.IncompleteReadError:
        return ""
    for line in head.lower().split("\r\n"):
        if line.startswith("content-length:"):
            await reader.readexactly(int(line.split(":")[1]))
    return head


def answer(status: int, body: object = None, *, headers: str = "") -> Reply:
    async def reply(writer: Writer) -> None:
        content = msgspec.json.encode(body)
        writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(content)}\r\n{headers}\r\n".encode())
        writer.write(content)
        await writer.drain()

    return reply


def cut(before: bytes = b"") -> Reply:
    """Send `before`, then reset the connection."""

    async def reply(writer: Writer) -> None:
        writer.write(before)
        await writer.drain()
        writer.transport.abort()

    return reply


def silence(before: bytes = b"") -> Reply:
    """Send `before`, then nothing, with the connection open."""

    async def reply(writer: Writer) -> None:
        writer.write(before)
        await writer.drain()

    return reply


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"


def chunk(content: bytes) -> bytes:
    return f"{len(content):x}\r\n".encode() + content + b"\r\n"


@asynccontextmanager
async def running(*replies: Reply) -> AsyncIterator[Peer]:
    peer = Peer(list(replies))
    server = await asyncio.start_server(peer.serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    peer.url = f"http://{host}:{port}"
    try:
        yield peer
    finally:
        server.close()


def kubeconfig(folder: Path, url: str, user: Mapping[str, object] | None = None) -> Path:
    file = folder / "kubeconfig"
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": user or {"token": "secret"}}],
    }
    file.write_bytes(msgspec.json.encode(content))
    return file


@asynccontextmanager
async def client_of(file: Path, **settings: float) -> AsyncIterator[KubeClient]:
    found = KubeSettings.model_validate({"kubeconfig": file, **settings})
    client = await KubeClient.connect(found, metrics=KubeMetrics(MetricSet()))
    try:
        yield client
    finally:
        await client.close()
