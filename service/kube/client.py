"""Calls to the API server on paths and bytes, each with a deadline. What may act twice is never sent twice."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from enum import StrEnum
from http import HTTPStatus
from typing import Any, Self

import msgspec

from service.kube.credentials import Credentials
from service.kube.errors import (
    ApiError,
    DeadlineExceeded,
    KubeError,
    TooManyRequests,
    Unauthorized,
    Unreachable,
    from_response,
)
from service.kube.metrics import KubeMetrics, Verb
from service.kube.transport import Answer, Request, Times, Transport
from service.names import FIELD_MANAGER
from service.settings import KubeSettings

# A kept-alive connection may have died unnoticed, and another server may answer: a read is worth two more tries.
READ_RETRIES = 2
READ_PAUSE_S = 0.1

Params = Mapping[str, str]


class PatchKind(StrEnum):
    """How a patch body is meant: its media type."""

    MERGE = "application/merge-patch+json"
    JSON = "application/json-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"
    APPLY = "application/apply-patch+yaml"


class KubeClient:
    """One API server. Paths come from `resources.py`; bodies are anything that msgspec encodes; answers are bytes.

    Every call raises a KubeError when it fails, at the latest after its deadline (seconds; the settings' by
    default). Tried again are only reads whose connection broke, calls refused with 429 and a Retry-After that
    fits into the deadline, and once a call refused with 401, after the token was read again.
    """

    def __init__(
        self, transport: Transport, credentials: Credentials, *, settings: KubeSettings, metrics: KubeMetrics
    ) -> None:
        self._transport = transport
        self._credentials = credentials
        self._deadline = settings.deadline_s
        self._metrics = metrics

    @classmethod
    async def connect(cls, settings: KubeSettings, *, metrics: KubeMetrics) -> Self:
        """Find out where the server is and who we are; calls nothing. Raises ConfigError."""
        credentials = Credentials(settings)
        transport = Transport(await credentials.endpoint())
        return cls(transport, credentials, settings=settings, metrics=metrics)

    async def close(self) -> None:
        """Close every connection."""
        await self._transport.close()

    async def get(self, path: str, *, params: Params | None = None, deadline: float | None = None) -> bytes:
        """Read an object or a list."""
        return await self._call(Verb.GET, Request("GET", path, params or {}), deadline)

    async def create(
        self, path: str, body: Any, *, params: Params | None = None, deadline: float | None = None
    ) -> bytes:
        """POST to a collection or a subresource."""
        return await self._call(Verb.CREATE, _write("POST", path, body, params=params), deadline)

    async def replace(
        self, path: str, body: Any, *, params: Params | None = None, deadline: float | None = None
    ) -> bytes:
        """PUT; a resourceVersion in `body` makes it the compare-and-swap that decision 1 stands on."""
        return await self._call(Verb.REPLACE, _write("PUT", path, body, params=params), deadline)

    async def patch(
        self,
        path: str,
        body: Any,
        *,
        kind: PatchKind,
        field_manager: str | None = None,
        force: bool = False,
        deadline: float | None = None,
    ) -> bytes:
        """PATCH. With PatchKind.APPLY `force` takes fields over from other managers."""
        params = {"fieldManager": field_manager or FIELD_MANAGER, **({"force": "true"} if force else {})}
        request = _write("PATCH", path, body, params=params, media_type=kind)
        return await self._call(Verb.PATCH, request, deadline)

    async def delete(
        self,
        path: str,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
        grace_seconds: int | None = None,
        deadline: float | None = None,
    ) -> bytes:
        """DELETE; Conflict when the object no longer has this uid and resourceVersion."""
        preconditions = _given(uid=uid, resourceVersion=resource_version)
        options = _given(preconditions=preconditions or None, gracePeriodSeconds=grace_seconds)
        return await self._call(Verb.DELETE, _write("DELETE", path, options), deadline)

    @asynccontextmanager
    async def stream(
        self,
        path: str,
        params: Params,
        *,
        connect_deadline: float,
        idle_deadline: float,
        total_deadline: float,
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """A long answer (a watch) as lines; leaving the context closes it.

        Deadlines in seconds: until it begins, between two pieces of it, for all of it.
        """
        times = Times(connect=connect_deadline, idle=idle_deadline, total=total_deadline)
        async with AsyncExitStack() as stack:
            with self._observed(Verb.WATCH):
                lines = await self._open(stack, Request("GET", path, params), times)
            yield lines

    async def _open(self, stack: AsyncExitStack, request: Request, times: Times) -> AsyncIterator[bytes]:
        found = await self._enter(stack, request, times)
        if isinstance(found, Answer) and found.status == HTTPStatus.UNAUTHORIZED:
            await self._credentials.renew(anew=True)
            found = await self._enter(stack, request, times)
        if isinstance(found, Answer):
            raise _error(found, request)
        return found

    async def _enter(
        self, stack: AsyncExitStack, request: Request, times: Times
    ) -> Answer | AsyncIterator[bytes]:
        sent = await self._authorized(request)
        return await stack.enter_async_context(self._transport.stream(sent, times))

    async def _call(self, verb: Verb, request: Request, deadline: float | None) -> bytes:
        seconds = self._deadline if deadline is None else deadline
        with self._observed(verb):
            try:
                async with asyncio.timeout(seconds):
                    return await self._persist(request, seconds)
            except TimeoutError as error:
                text = f"{request.method} {request.path}: no answer within {seconds} s"
                raise DeadlineExceeded(text, outcome_unknown=request.is_write) from error

    async def _persist(self, request: Request, seconds: float) -> bytes:
        ends = time.monotonic() + seconds
        attempt = 0
        while True:
            try:
                return await self._once(request, seconds)
            except KubeError as error:
                pause = _pause(error, request, attempt)
                if pause is None or time.monotonic() + pause >= ends:
                    raise
                if isinstance(error, Unauthorized):
                    await self._credentials.renew(anew=True)
            attempt += 1
            await asyncio.sleep(pause)

    async def _once(self, request: Request, seconds: float) -> bytes:
        answer = await self._transport.send(await self._authorized(request), within=seconds)
        if HTTPStatus.OK <= answer.status < HTTPStatus.MULTIPLE_CHOICES:
            return answer.body
        raise _error(answer, request)

    async def _authorized(self, request: Request) -> Request:
        return replace(request, headers={**request.headers, **await self._credentials.headers()})

    @contextmanager
    def _observed(self, verb: Verb) -> Iterator[None]:
        self._metrics.requests.labels(verb).inc()
        began = time.perf_counter()
        try:
            yield
        except KubeError as error:
            self._metrics.failures.labels(verb, error.kind).inc()
            raise
        finally:
            self._metrics.request_seconds.labels(verb).observe(time.perf_counter() - began)


def _pause(error: KubeError, request: Request, attempt: int) -> float | None:
    """Seconds until the same request may be sent again; None when it may not."""
    match error:
        case TooManyRequests():
            return error.retry_after
        case Unauthorized() if attempt == 0:
            return 0.0
        case Unreachable() if not request.is_write and attempt < READ_RETRIES:
            return READ_PAUSE_S * attempt
        case _:
            return None


def _write(
    method: str, path: str, body: Any, *, params: Params | None = None, media_type: str = "application/json"
) -> Request:
    content = msgspec.json.encode(body)
    return Request(method, path, params or {}, headers={"Content-Type": media_type}, body=content)


def _error(answer: Answer, request: Request) -> ApiError:
    return from_response(answer.status, answer.body, retry_after=answer.retry_after, write=request.is_write)


def _given(**fields: object) -> dict[str, object]:
    return {name: value for name, value in fields.items() if value is not None}
