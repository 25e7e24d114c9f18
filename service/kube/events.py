"""Kubernetes Events (events.k8s.io/v1): said once, counted when repeated, never in anybody's way.

To emit is synchronous and cannot fail; a task writes. A repeated event becomes a series of the same object instead of
a new object, as client-go's recorder does it (tools/events, event_broadcaster.go). What the API server does not take
is counted and dropped: events are for people, the truth is elsewhere.
"""

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Generic, Literal, TypeVar

import structlog

from service.kube.backoff import Clock
from service.kube.client import KubeClient, PatchKind
from service.kube.errors import AlreadyExists, KubeError, NotFound
from service.kube.metrics import Emitted, KubeMetrics
from service.kube.resources import EVENTS

log = structlog.get_logger(__name__)

# Events that wait to be written; more means that the API server is away, and old news is no news.
MAX_WAITING = 1000
# Events and objects that are remembered, for series and for budgets.
MAX_REMEMBERED = 4096
# Seconds. The same event is told to the API server at most this often; client-go refreshes a series every 6 min.
REPEAT_AFTER_S = 360.0
# Events about one object that may come at once, and seconds for one more (client-go: tools/record, spam filter).
BURST = 25
REFILL_S = 300.0
# Seconds between two writes: events must not eat the API calls that place pods.
PACE_S = 0.05
# Bounds of the API (events.k8s.io/v1): bytes of a note, characters of an instance.
NOTE_BYTES = 1024
INSTANCE_LENGTH = 128

Type = Literal["Normal", "Warning"]
K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """The object that an event is about (core/v1 ObjectReference)."""

    api_version: str
    kind: str
    name: str
    namespace: str = ""
    uid: str = ""

    @property
    def event_namespace(self) -> str:
        """Events about cluster-scoped objects live in `default` (events.k8s.io/v1, validation)."""
        return self.namespace or "default"


@dataclass(frozen=True, slots=True)
class _Said:
    """What makes two events the same."""

    ref: ObjectRef
    reason: str
    message: str
    type_: Type
    once: bool


@dataclass(slots=True)
class _Series:
    """How often an event was said, and under which name the API server knows it, since when."""

    count: int = 0
    name: str | None = None
    told_at: float = float("-inf")
    waiting: bool = False


@dataclass(slots=True)
class _Budget:
    """Tokens of one object."""

    tokens: float
    at: float

    def take(self, now: float) -> bool:
        self.tokens = min(BURST, self.tokens + (now - self.at) / REFILL_S)
        self.at = now
        if self.tokens < 1.0:
            return False
        self.tokens -= 1.0
        return True


class _Recent(Generic[K, V]):
    """A mapping that forgets what was not asked for in the longest time."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._found: OrderedDict[K, V] = OrderedDict()

    def get(self, key: K, make: Callable[[], V]) -> V:
        value = self._found.get(key)
        if value is None:
            value = self._found[key] = make()
            if len(self._found) > self._size:
                self._found.popitem(last=False)
        self._found.move_to_end(key)
        return value


class EventRecorder:
    """Records events of one component. `identity` names this replica; `clock` is monotonic, in seconds."""

    def __init__(
        self,
        client: KubeClient,
        *,
        component: str,
        identity: str,
        metrics: KubeMetrics,
        clock: Clock = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client = client
        self._component = component
        self._identity = identity
        self._emitted = metrics.emitted
        self._clock = clock
        self._now = now
        self._waiting: asyncio.Queue[tuple[_Said, _Series]] = asyncio.Queue(MAX_WAITING)
        self._series: _Recent[_Said, _Series] = _Recent(MAX_REMEMBERED)
        self._budgets: _Recent[ObjectRef, _Budget] = _Recent(MAX_REMEMBERED)

    def emit(
        self, ref: ObjectRef, *, reason: str, message: str, type_: Type = "Normal", once: bool = False
    ) -> None:
        """Say something about an object. Never raises, never waits; `reason` is one word, such as `CardLost`.

        `once`: not again for this object and reason, not even by another replica, as long as the API server
        remembers events.
        """
        said = _Said(ref, reason, _cut(message), type_, once)
        series = self._series.get(said, _Series)
        series.count += 1
        now = self._clock()
        if series.waiting or now - series.told_at < REPEAT_AFTER_S:
            return
        budget = self._budgets.get(ref, lambda: _Budget(BURST, now))
        if self._waiting.full() or not budget.take(now):
            self._emitted.labels(Emitted.DROPPED).inc()
            return
        series.waiting = True
        self._waiting.put_nowait((said, series))

    async def run(self) -> None:
        """Write what is said, for ever."""
        while True:
            said, series = await self._waiting.get()
            series.waiting, series.told_at = False, self._clock()
            try:
                await self._write(said, series)
            except KubeError as error:
                self._emitted.labels(Emitted.FAILED).inc()
                log.info("event not written", reason=said.reason, object=said.ref.name, error=str(error))
            else:
                self._emitted.labels(Emitted.WRITTEN).inc()
            await asyncio.sleep(PACE_S)

    async def _write(self, said: _Said, series: _Series) -> None:
        if said.once:
            with suppress(AlreadyExists):
                await self._create(said, _only_name(said))
        elif series.name is None or not await self._continue(said, series.name, series.count):
            # Nanoseconds make the name unique, as client-go's names do.
            series.name = f"{said.ref.name[:200].rstrip('-.')}.{time.time_ns():x}"
            await self._create(said, series.name)

    async def _create(self, said: _Said, name: str) -> None:
        await self._client.create(EVENTS.path(said.ref.event_namespace), self._body(said, name))

    async def _continue(self, said: _Said, name: str, count: int) -> bool:
        """Tell that it goes on; False when the API server does not have the event (they live for an hour)."""
        body = {"series": {"count": max(2, count), "lastObservedTime": self._micro_time()}}
        path = EVENTS.path(said.ref.event_namespace, name)
        try:
            await self._client.patch(path, body, kind=PatchKind.MERGE)
        except NotFound:
            return False
        return True

    def _body(self, said: _Said, name: str) -> dict[str, Any]:
        ref = said.ref
        regarding = {
            "apiVersion": ref.api_version,
            "kind": ref.kind,
            "name": ref.name,
            "namespace": ref.namespace,
            "uid": ref.uid,
        }
        return {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            "metadata": {"name": name, "namespace": ref.event_namespace},
            "eventTime": self._micro_time(),
            "reportingController": self._component,
            "reportingInstance": self._identity[:INSTANCE_LENGTH],
            "action": said.reason,
            "reason": said.reason,
            "regarding": {key: value for key, value in regarding.items() if value},
            "note": said.message,
            "type": said.type_,
        }

    def _micro_time(self) -> str:
        """meta/v1 MicroTime."""
        return self._now().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _only_name(said: _Said) -> str:
    """The same in every replica, so that the second one finds the event there."""
    mark = hashlib.sha256(f"{said.ref.uid}/{said.reason}".encode()).hexdigest()[:16]
    return f"{said.ref.name[:200].rstrip('-.')}.{mark}"


def _cut(message: str) -> str:
    """At most the bytes that the API takes. Messages may carry names of files, which need not be text."""
    return message.encode(errors="replace")[:NOTE_BYTES].decode(errors="ignore")
