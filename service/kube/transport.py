"""HTTP to one API server: aiohttp with the faults of the network named, and nothing about Kubernetes objects."""

import asyncio
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus

import aiohttp
from yarl import URL

from service.kube.errors import DeadlineExceeded, Undecodable, Unreachable

# Connections at once. Every reflector keeps one for its watch; calls beyond the rest wait within their deadline.
POOL_SIZE = 64
# Longest time to get a connection, TLS included. In a cluster it takes milliseconds.
CONNECT_S = 5.0
# A dead peer is noticed after 30 + 3 x 15 s, as Go clients do with HTTP/2 pings (apimachinery, util/net).
KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 75_000}
# etcd refuses objects above 1.5 MiB; JSON escapes may make them larger on the wire.
MAX_LINE_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the API server is: base URL, TLS, and the names a kubeconfig may add to them."""

    url: str
    tls: ssl.SSLContext
    server_name: str | None = None
    proxy: str | None = None


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds until a long answer begins, between two pieces of it, and for all of it."""

    connect: float
    idle: float
    total: float


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request; `path` is percent-encoded already."""

    method: str
    path: str
    params: Mapping[str, str]
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None

    @property
    def is_write(self) -> bool:
        """True when a repetition could do something twice."""
        return self.method != "GET"


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete HTTP answer, whatever its status; `retry_after` is that header."""

    status: int
    body: bytes
    retry_after: str | None


class _Broken(aiohttp.ClientError):
    """A connection that broke under a request, in a class that aiohttp does not repeat by itself."""


async def _never_repeat(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Left alone, aiohttp repeats PUT and DELETE on a broken kept-alive connection: a write that took effect
    would then be answered with a conflict.
    """
    try:
        return await handler(request)
    except aiohttp.ClientConnectorError:
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise _Broken(str(error) or type(error).__name__) from error


def _keepalive_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        if option := getattr(socket, name, None):  # other systems than Linux lack some of them
            made.setsockopt(socket.IPPROTO_TCP, option, value)
    return made


class Transport:
    """A bounded pool of connections. Close it."""

    def __init__(self, endpoint: Endpoint, *, pool_size: int = POOL_SIZE) -> None:
        self._endpoint = endpoint
        self._base = URL(endpoint.url.rstrip("/"), encoded=True)
        connector = aiohttp.TCPConnector(limit=pool_size, ssl=endpoint.tls, socket_factory=_keepalive_socket)
        self._session = aiohttp.ClientSession(
            connector=connector,
            middlewares=(_never_repeat,),
            # The API server is near: packing would cost both sides more than the bytes.
            headers={"Accept-Encoding": "identity", "User-Agent": "tenure"},
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def close(self) -> None:
        """Close every connection."""
        await self._session.close()

    async def send(self, request: Request, *, within: float) -> Answer:
        """Send and read the whole answer; the caller sets the deadline and tells how many seconds it allows.

        Raises Unreachable, which says what may have happened.
        """
        timeout = aiohttp.ClientTimeout(total=None, connect=min(CONNECT_S, within / 2))
        try:
            async with self._request(request, timeout) as response:
                return await _answer(response)
        except aiohttp.ClientError as error:
            raise _named(error, write=request.is_write) from error

    @asynccontextmanager
    async def stream(self, request: Request, times: Times) -> AsyncIterator["Answer | AsyncIterator[bytes]"]:
        """A long answer as lines, or the complete answer when it is not 200.

        Raises Unreachable or DeadlineExceeded, here and from the iterator.
        """
        timeout = aiohttp.ClientTimeout(
            total=times.total, connect=min(CONNECT_S, times.connect / 2), sock_read=times.idle
        )
        try:
            async with asyncio.timeout(times.connect):
                response = await self._request(request, timeout)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise _named(error, write=False) from error
        try:
            if response.status != HTTPStatus.OK:
                yield await _answer(response)
                return
            async with aclosing(_lines(response)) as lines:
                yield lines
        finally:
            response.close()

    def _request(
        self, request: Request, timeout: aiohttp.ClientTimeout
    ) -> "aiohttp.client._RequestContextManager":
        return self._session.request(
            request.method,
            URL(f"{self._base}{request.path}", encoded=True),
            params=dict(request.params),
            headers=request.headers,
            data=request.body,
            timeout=timeout,
            proxy=self._endpoint.proxy,
            server_hostname=self._endpoint.server_name,
            allow_redirects=False,
        )


async def _answer(response: aiohttp.ClientResponse) -> Answer:
    return Answer(response.status, await response.read(), response.headers.get("Retry-After"))


def _named(error: aiohttp.ClientError | TimeoutError, *, write: bool) -> Unreachable | DeadlineExceeded:
    text = str(error) or type(error).__name__
    if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
        return Unreachable(text)
    if isinstance(error, TimeoutError):
        return DeadlineExceeded(text, outcome_unknown=write)
    return Unreachable(text, outcome_unknown=write)


async def _lines(response: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
    splitter = LineSplitter()
    try:
        async for piece in response.content.iter_any():
            for line in splitter.feed(piece):
                yield line
    except (aiohttp.ClientError, TimeoutError) as error:
        raise _named(error, write=False) from error


class LineSplitter:
    """Cuts a stream into lines, whatever the borders of its pieces."""

    def __init__(self, limit: int = MAX_LINE_BYTES) -> None:
        self._limit = limit
        self._held: list[bytes] = []
        self._size = 0

    def feed(self, piece: bytes) -> list[bytes]:
        """The lines that `piece` completes, without their ends. Raises Undecodable when one grows too long."""
        head, *rest = piece.split(b"\n")
        if not rest:
            self._hold(head)
            return []
        lines = [b"".join([*self._held, head]), *rest[:-1]]
        self._held, self._size = [], 0
        self._hold(rest[-1])
        return [line for line in lines if line]

    def _hold(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > self._limit:
            raise Undecodable(f"a line of the stream is longer than {self._limit} bytes")
        if part:
            self._held.append(part)
