"""`POST /admission/pods` on the TLS listener: bytes in, bytes out, and nothing undefined between them.

The decision itself is synchronous; the only wait is for the body, and that has a deadline. There is no log line per
request: metrics tell how many, and the API server's audit log tells who.
"""

import asyncio
import re
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

import structlog
from aiohttp import StreamReader, web

from service.metrics import MetricSet
from service.settings import Settings
from webhook.admission import review
from webhook.admission.metrics import AdmissionMetrics, Outcome
from webhook.admission.mounts import NamespaceLabels
from webhook.admission.mutate import Policy, decide
from webhook.admission.pod import BadCallError
from webhook.admission.review import Answer

PATH: Final = "/admission/pods"
# controller-runtime's figure (webhook/admission/http.go): object and oldObject, each up to the 3 MiB of a request.
MAX_BODY_BYTES: Final = 7 * 1024 * 1024
# Kept back from the caller's deadline, so that our answer travels before the API server gives up.
MARGIN_S: Final = 0.2
_JSON: Final = "application/json"
_DURATION: Final = re.compile(r"(\d{1,6}(?:\.\d{1,9})?)(ms|s|m)")
_UNIT_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0}

Body = bytes | bytearray

log = structlog.get_logger()


def admission_routes(
    settings: Settings, metrics: MetricSet, namespace_labels: NamespaceLabels = lambda _: None
) -> list[web.RouteDef]:
    """The routes to mount on the TLS listener.

    `namespace_labels` answers from a cache, None for a namespace that it does not know; only the hostPath backend
    of regions asks.
    """
    handler = AdmissionHandler(
        Policy.of(settings),
        AdmissionMetrics(metrics),
        labels=namespace_labels,
        deadline_s=settings.webhook.deadline_s,
    )
    return [web.post(PATH, handler.handle)]


class NotJsonError(Exception):
    """The content type is another one."""


class TooLargeError(Exception):
    """The body is above MAX_BODY_BYTES."""


# Failed calls by cause; what is not listed is a fault of ours.
_FAILURES: Final[dict[type[Exception], tuple[Outcome, HTTPStatus, str]]] = {
    NotJsonError: (
        Outcome.BAD_CALL,
        HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
        "send Content-Type: application/json",
    ),
    TooLargeError: (
        Outcome.TOO_LARGE,
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        f"the body is larger than {MAX_BODY_BYTES} bytes",
    ),
    web.RequestPayloadError: (
        Outcome.BAD_CALL,
        HTTPStatus.BAD_REQUEST,
        "the body is not encoded as its headers say",
    ),
    ConnectionError: (Outcome.GONE, HTTPStatus.SERVICE_UNAVAILABLE, "the caller hung up"),
    TimeoutError: (
        Outcome.TIMED_OUT,
        HTTPStatus.SERVICE_UNAVAILABLE,
        "the review did not arrive before the deadline",
    ),
}


class AdmissionHandler:
    """Adapts aiohttp to the pure pipeline."""

    def __init__(
        self,
        policy: Policy,
        metrics: AdmissionMetrics,
        *,
        labels: NamespaceLabels,
        deadline_s: float,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._policy = policy
        self._labels = labels
        self._deadline_s = deadline_s
        self._metrics = metrics
        self._clock = clock
        self._reading = 0
        metrics.in_flight.set_function(lambda: self._reading)

    async def handle(self, request: web.Request) -> web.Response:
        """Answer one call; every way out is counted."""
        started = self._clock()
        answer, outcome = await self._answer(request)
        self._metrics.requests[outcome].inc()
        self._metrics.seconds.observe(self._clock() - started)
        kind = _JSON if answer.status == HTTPStatus.OK else "text/plain"
        return web.Response(body=answer.body, status=answer.status, content_type=kind)

    async def _answer(self, request: web.Request) -> tuple[Answer, Outcome]:
        try:
            return self.judge(await self._read(request))
        except Exception as error:  # noqa: BLE001 - the supervisor of calls: also a fault of ours is an answer
            return _failed(error)

    def judge(self, body: Body) -> tuple[Answer, Outcome]:
        """The answer to a body. Raises BadCallError."""
        request = review.read(body)
        decision = decide(request, self._policy, self._labels)
        if decision.stripped_keys:
            self._metrics.stripped.inc(decision.stripped_keys)
        if (refusal := decision.refusal) is not None:
            self._metrics.refusals[refusal.reason].inc()
            return review.deny(request.uid, refusal.sentence, decision.warnings), Outcome.DENIED
        if decision.patch:
            return review.patched(request.uid, decision.patch, decision.warnings), Outcome.PATCHED
        return review.allow(request.uid, decision.warnings), Outcome.ALLOWED

    async def _read(self, request: web.Request) -> Body:
        """The body. Raises one of _FAILURES."""
        if not _is_json(request):
            raise NotJsonError
        if (request.content_length or 0) > MAX_BODY_BYTES:
            raise TooLargeError
        if request.content.is_eof():  # The usual case: a small body came with its headers.
            return _bounded(request.content.read_nowait())
        self._reading += 1
        try:
            async with asyncio.timeout(self._seconds_left(request)):
                return await _read_all(request.content)
        finally:
            self._reading -= 1

    def _seconds_left(self, request: web.Request) -> float:
        caller = seconds(request.query.get("timeout", ""))
        return self._deadline_s if caller is None else max(0.0, min(self._deadline_s, caller - MARGIN_S))


def _failed(error: Exception) -> tuple[Answer, Outcome]:
    if isinstance(error, BadCallError):
        return review.bad_call(str(error)), Outcome.BAD_CALL
    for kind, (outcome, status, sentence) in _FAILURES.items():
        if isinstance(error, kind):
            return review.bad_call(sentence, status), outcome
    log.error("admission failed", exc_info=error)
    return review.internal("admission failed; the log of Tenure has the cause"), Outcome.FAILED


async def _read_all(content: StreamReader) -> bytearray:
    body = bytearray()
    while chunk := await content.readany():
        body += chunk
        _bounded(body)
    return body


def _bounded(body: Body) -> Body:
    if len(body) > MAX_BODY_BYTES:
        raise TooLargeError
    return body


def _is_json(request: web.Request) -> bool:
    kind = request.headers.get("Content-Type", "")
    return kind == _JSON or kind.partition(";")[0].strip().lower() == _JSON


def seconds(duration: str) -> float | None:
    """A Go duration such as `5s` or `1m30s` (time.ParseDuration) in seconds; None for anything else."""
    parts = _DURATION.findall(duration)
    if not parts or "".join(number + unit for number, unit in parts) != duration:
        return None
    return sum(float(number) * _UNIT_S[unit] for number, unit in parts)
