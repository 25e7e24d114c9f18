"""A caller of the webhook that costs little: one kept-alive TLS connection, as the API server has them."""

import asyncio
import ssl
from typing import Self

from tests.cluster.admission_server import HOST

_LENGTH = b"content-length: "
_PATH = "/admission/pods?timeout=5s"


class Caller:
    """One connection; it is opened again when the webhook closed it."""

    def __init__(self, port: int, context: ssl.SSLContext, path: str = _PATH) -> None:
        self._port = port
        self._path = path
        self._context = context
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def __aenter__(self) -> Self:
        await self._connected()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._close()

    async def call(self, body: bytes, *, kind: str = "application/json") -> tuple[int, bytes]:
        """Status and body of one answer. Raises OSError or EOFError when there is none."""
        head = (
            f"POST {self._path} HTTP/1.1\r\nHost: {HOST}:{self._port}\r\nContent-Type: {kind}\r\n"
            f"Accept: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        reader, writer = await self._connected()
        try:
            writer.write(head.encode() + body)
            answer = await reader.readuntil(b"\r\n\r\n")
            lower = answer.lower()
            start = lower.index(_LENGTH) + len(_LENGTH)
            content = await reader.readexactly(int(lower[start : lower.index(b"\r\n", start)]))
        except BaseException:
            self._close()
            raise
        if b"connection: close" in lower:
            self._close()
        return int(answer[9:12]), content

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._streams is None:
            self._streams = await asyncio.open_connection(HOST, self._port, ssl=self._context)
        return self._streams

    def _close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None
