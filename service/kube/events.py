"""Kubernetes Events (events.k8s.io/v1): said once, counted when repeated, never in anybody's way.

To emit is synchronous and cannot fail; a task writes. A repeated event becomes a series on the same object instead
of a new object, as client-go's recorder does it (tools/events, event_broadcaster.go). What the API server does not
take is counted and dropped: events are for people, the truth is elsewhere.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import structlog

from service.kube.client import KubeClient, PatchKind
from service.kube.errors import KubeError, NotFound
from service.kube.metrics import Emitted, KubeMetrics
from service.kube.resources import EVENTS

log = structlog.get_logger(__name__)

# Events that wait to be written; more means that the API server is away, and old news is no news.
MAX_WAITING = 1000
# Events remembered for their series.
MAX_REMEMBERED = 4096
# Seconds. The same event is told to the API server at most this often; client-go refreshes a series every 6 min.
REPEAT_AFTER_S = 360.0
# The API's own bound of an event's note (events.k8s.io/v1, Event.note).
NOTE_BYTES = 1024

Type = Literal["Normal", "Warning"]


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """The object that an event is about (core/v1 ObjectReference)."""

    api_version: str
    kind: str
    name: str
    namespace: str = ""
    uid: str = ""


@dataclass(frozen=True, slots=True)
class _Said:
    """What makes two events the same."""

    ref: ObjectRef
    reason: str
    message: str
    type_: Type


@dataclass(slots=True)
class _Series:
    """One event's object in the API server, and how often it was said."""

    name: str
    count: int
    told_at: float


class EventRecorder:
    """Records events of one component. `identity` names this replica; `clock` is monotonic, in seconds."""

    def __init__(
        self,
        client: KubeClient,
        *,
        component: str,
        identity: str,
        metrics: KubeMetrics,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client = client
        self._component = component
        self._identity = identity
        self._metrics = metrics
        self._clock = clock
        self._now = now
        self._waiting: asyncio.Queue[_Said] = asyncio.Queue(MAX_WAITING)
        self._series: OrderedDict[_Said, _Series] = OrderedDict()

    def emit(self, ref: ObjectRef, *, reason: str, message: str, type_: Type = "Normal") -> None:
        """Say something about an object. Never raises, never waits."""
        said = _Said(ref, reason, _cut(message), type_)
        series = self._series.get(said)
        if series is not None:
            series.count += 1
            if self._clock() - series.told_at < REPEAT_AFTER_S:
                return
        try:
            self._waiting.put_nowait(said)
        except asyncio.QueueFull:
            self._metrics.emitted.labels(Emitted.DROPPED.value).inc()

    async def run(self) -> None:
        """Write what is said, for ever."""
        while True:
            await self._write(await self._waiting.get())

    async def _write(self, said: _Said) -> None:
        series = self._series.get(said)
        try:
            if series is None or not await self._continue(said, series):
                await self._begin(said)
        except KubeError as error:
            self._metrics.emitted.labels(Emitted.FAILED.value).inc()
            log.info("event not written", reason=said.reason, object=said.ref.name, error=str(error))
            return
        self._metrics.emitted.labels(Emitted.WRITTEN.value).inc()

    async def _begin(self, said: _Said) -> None:
        now = self._now()
        # Nanoseconds make the name unique, as client-go's names do.
        name = f"{said.ref.name[:200]}.{time.time_ns():x}"
        self._remember(said, _Series(name, 1, self._clock()))
        await self._client.create(EVENTS.path(namespace=_namespace(said.ref)), self._body(said, name, now))

    async def _continue(self, said: _Said, series: _Series) -> bool:
        """Tell that it goes on; False when the API server has forgotten the event (they live for an hour)."""
        series.told_at = self._clock()
        body = {"series": {"count": max(2, series.count), "lastObservedTime": _micro(self._now())}}
        path = EVENTS.path(namespace=_namespace(said.ref), name=series.name)
        try:
            await self._client.patch(path, body, kind=PatchKind.MERGE)
        except NotFound:
            return False
        return True

    def _remember(self, said: _Said, series: _Series) -> None:
        self._series[said] = series
        self._series.move_to_end(said)
        if len(self._series) > MAX_REMEMBERED:
            self._series.popitem(last=False)

    def _body(self, said: _Said, name: str, now: datetime) -> dict[str, Any]:
        ref = said.ref
        regarding = {
            "apiVersion": ref.api_version,
            "kind": ref.kind,
            "name": ref.name,
            "namespace": ref.namespace,
            "uid": ref.uid,
        }
        return {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": _namespace(ref)},
            "eventTime": _micro(now),
            "reportingController": self._component,
            "reportingInstance": self._identity[:128],
            "action": said.reason,
            "reason": said.reason,
            "regarding": {key: value for key, value in regarding.items() if value},
            "note": said.message,
            "type": said.type_,
        }


def _namespace(ref: ObjectRef) -> str:
    """Events about cluster-scoped objects live in `default` (events.k8s.io/v1 validation)."""
    return ref.namespace or "default"


def _micro(moment: datetime) -> str:
    """meta/v1 MicroTime."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _cut(message: str) -> str:
    return message.encode()[:NOTE_BYTES].decode(errors="ignore")
