"""Listeners: a port with its routes, its limits and its end.

Admission is the hottest path of the process, so no middleware stands on it. Each handler is wrapped once, when it is
mounted: while the process drains, every answer closes its connection, because API servers go on using kept-alive
connections to a pod that ends (kubernetes issue 127335). The wrapper is one attribute look-up per request.
"""

import asyncio
import errno
import os
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from http import HTTPStatus
from ssl import SSLContext
from typing import Any, Final

import msgspec
import structlog
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler

from service import api
from service.lifecycle import Lifecycle
from service.metrics import MetricSet

# Seconds that answers in flight may take when a listener stops: the longest is a webhook decision of 3 s.
FINISH_S: Final = 5.0

log = structlog.get_logger(__name__)


class ListenError(Exception):
    """A listener cannot open its port; the text is one sentence that names the port and the setting."""


class Name(Enum):
    """The listeners, also as a closed label."""

    WEBHOOK = "webhook"
    EXTENDER = "extender"
    OPS = "ops"


class StatusClass(Enum):
    """First digit of an answer's status, as a closed label."""

    SUCCESS = "2xx"
    REDIRECT = "3xx"
    CALLER = "4xx"
    OURS = "5xx"


class HttpMetrics:
    """What all listeners count. Admission counts its own calls: it has outcomes of its own, and no time to lose."""

    def __init__(self, metrics: MetricSet) -> None:
        kind = {"listener": Name, "status": StatusClass}
        requests = metrics.counter("tenure_http_requests", "Answers by listener, admission excepted.", kind)
        seconds = metrics.histogram(
            "tenure_http_request_seconds",
            "Time to answer by listener, admission excepted.",
            {"listener": Name},
        )
        malformed = metrics.counter(
            "tenure_http_malformed_requests", "What came to a listener and is not HTTP.", {"listener": Name}
        )
        self.requests = {
            (name, f"{status.value[0]}"): requests.labels(name.value, status.value)
            for name in Name
            for status in StatusClass
        }
        self.seconds = {name: seconds.labels(name.value) for name in Name}
        self.malformed = {name: malformed.labels(name.value) for name in Name}


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen. `setting` is the settings' prefix, for the sentence when it cannot be: `http.ops`."""

    host: str
    port: int
    setting: str


class Listener:
    """One port. Port 0 takes any free one; `port` tells which."""

    def __init__(
        self,
        name: Name,
        address: Address,
        *,
        lifecycle: Lifecycle,
        metrics: HttpMetrics,
        max_body: int,
        tls: SSLContext | None = None,
    ) -> None:
        self.name = name
        self.port = address.port
        self._address = address
        self._lifecycle = lifecycle
        self._metrics = metrics
        self._max_body = max_body
        self._tls = tls
        self._socket: socket.socket | None = None
        self._runner: web.AppRunner | None = None

    async def reserve(self) -> socket.socket:
        """Take the port without listening yet, so that a wrong one is known before anything else starts.

        Raises ListenError.
        """
        where = self._address
        try:
            (family, kind, _, _, target), *_ = await asyncio.get_running_loop().getaddrinfo(
                where.host, where.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            reserved = self._socket = socket.socket(family, kind)
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            reserved.bind(target)
        except OSError as error:
            raise ListenError(_sentence(where, error)) from error
        self.port = reserved.getsockname()[1]
        return reserved

    async def open(self, routes: Iterable[web.RouteDef]) -> None:
        """Serve `routes` from now on. Raises ListenError."""
        reserved = self._socket or await self.reserve()
        app = web.Application(client_max_size=self._max_body)
        app.add_routes([web.RouteDef(r.method, r.path, self._wrap(r.handler), r.kwargs) for r in routes])
        # So that an unknown path is answered by us too, and closes its connection while draining.
        app.router.add_route("*", "/{path:.*}", self._wrap(_not_found))
        self._runner = web.AppRunner(
            app,
            access_log=None,
            shutdown_timeout=FINISH_S,
            logger=_ServerLog(self.name, self._metrics),
        )
        await self._runner.setup()
        try:
            await web.SockSite(self._runner, reserved, ssl_context=self._tls).start()
        except OSError as error:
            raise ListenError(_sentence(self._address, error)) from error
        log.info("listening", listener=self.name.value, host=self._address.host, port=self.port)

    async def close(self) -> None:
        """Accept nothing more, finish what is in flight; safe to repeat."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()
        if self._socket is not None:
            self._socket.close()

    def _wrap(self, handler: Any) -> Handler:
        lifecycle = self._lifecycle
        inner: Handler = handler if self.name is Name.WEBHOOK else self._counted(handler)

        async def answer(request: web.Request) -> web.StreamResponse:
            try:
                response = await inner(request)
            except web.HTTPException as response_raised:
                if lifecycle.draining:
                    response_raised.force_close()
                raise
            if lifecycle.draining:
                response.force_close()
            return response

        return answer

    def _counted(self, handler: Handler) -> Handler:
        metrics, name = self._metrics, self.name

        async def answer(request: web.Request) -> web.StreamResponse:
            began, status = time.perf_counter(), 500
            try:
                response = await handler(request)
                status = response.status
            except web.HTTPException as raised:
                status = raised.status
                raise
            finally:
                metrics.requests[name, str(status)[0]].inc()
                metrics.seconds[name].observe(time.perf_counter() - began)
            return response

        return answer


async def _not_found(request: web.Request) -> web.StreamResponse:
    body = msgspec.json.encode(api.Failure(f"there is nothing at {request.path}"))
    return web.Response(body=body, content_type="application/json", status=HTTPStatus.NOT_FOUND)


class _ServerLog:
    """The logger that aiohttp's server writes to. What strangers send it is counted, not logged: they could flood."""

    def __init__(self, name: Name, metrics: HttpMetrics) -> None:
        self._name = name
        self._malformed = metrics.malformed[name]

    def debug(self, _: str, *__: Any, exc_info: BaseException | None = None) -> None:
        """Connections that end early are everyday life."""
        if isinstance(exc_info, HttpProcessingError):
            self._malformed.inc()

    def error(self, message: str, *_: Any, exc_info: BaseException | None = None) -> None:
        """What strangers sent, or a fault of ours."""
        if isinstance(exc_info, HttpProcessingError):
            self._malformed.inc()
        else:
            log.error("request failed", listener=self._name.value, cause=message, exc_info=exc_info)

    exception = error


def _sentence(address: Address, error: OSError) -> str:
    port = f"{address.setting}_port"
    host = f"{address.setting}_host"
    match error.errno:
        case errno.EADDRINUSE:
            return (
                f"port {address.port} is in use by another program: end it, or set {port} ({_variable(port)})"
            )
        case errno.EACCES:
            return f"port {address.port} may not be opened by this user: set {port} ({_variable(port)}) above 1023"
        case errno.EADDRNOTAVAIL:
            return f"{address.host} is not an address of this machine: set {host} ({_variable(host)})"
        case number:
            why = os.strerror(number) if number and number > 0 else str(error)
            return f"cannot listen on {address.host}, port {address.port} ({host}, {port}): {why}"


def _variable(setting: str) -> str:
    return "TENURE_" + setting.upper().replace(".", "__")
