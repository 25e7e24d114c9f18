"""Keeps a store equal to what the API server holds of one kind: the I/O around `listwatch.py`."""

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec
import structlog

from service.kube import errors
from service.kube.backoff import CAP_S, START_S, Backoff, Clock
from service.kube.client import KubeClient
from service.kube.errors import DeadlineExceeded, KubeError, Undecodable
from service.kube.listwatch import ListRequest, ListWatch, Recovery, WatchRequest
from service.kube.metrics import EventType, KubeMetrics
from service.kube.resources import Resource
from service.kube.store import Store, T

log = structlog.get_logger(__name__)

S = TypeVar("S")

# Events or objects handled before others may run, however quick they were.
SLICE_ITEMS = 64
# Bytes of something undecodable: kind and name, not the object.
EXCERPT = 120


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds."""

    list_deadline: float = 60.0
    """Of one page: what the API server itself allows a request."""
    connect: float = 10.0
    """Until a watch begins."""
    idle: float = 80.0
    """Without a sign from a watch. Bookmarks come about each minute, but nobody promises them."""
    grace: float = 15.0
    """That a watch may outlive the time after which the server should have ended it."""
    slice: float = 0.005
    """Of work on the loop before others may run."""
    report: float = 60.0
    """Between two log lines about trouble that lasts."""
    first_pause: float = START_S
    longest_pause: float = CAP_S
    """After failures, before jitter."""


class Pace:
    """Divides work on the loop into slices."""

    def __init__(self, seconds: float, clock: Clock) -> None:
        self._seconds = seconds
        self._clock = clock
        self._began = clock()
        self._items = 0

    def over(self) -> bool:
        """Count one item; True when the slice is over and `rest` is due."""
        self._items += 1
        return self._items >= SLICE_ITEMS or self._clock() - self._began > self._seconds

    async def rest(self) -> None:
        """Let others run, and begin a new slice."""
        await asyncio.sleep(0)
        self._began, self._items = self._clock(), 0


class _Meta(msgspec.Struct, rename="camel"):
    resource_version: str
    token: str = msgspec.field(default="", name="continue")


class _Page(msgspec.Struct):
    metadata: _Meta
    items: list[msgspec.Raw] = []


class _Event(msgspec.Struct):
    type: EventType
    object: msgspec.Raw


class _Bookmark(msgspec.Struct):
    metadata: _Meta


_PAGE = msgspec.json.Decoder(_Page)
_EVENT = msgspec.json.Decoder(_Event)
_BOOKMARK = msgspec.json.Decoder(_Bookmark)
_STATUS = msgspec.json.Decoder(errors.Status)


class Reflector(Generic[T]):
    """One kind, one task, one store. `run` goes on for ever, whatever the API server does."""

    def __init__(  # noqa: PLR0913 - four parts, and options that have defaults
        self,
        client: KubeClient,
        resource: Resource,
        type_: type[T],
        store: Store[T],
        *,
        metrics: KubeMetrics,
        namespace: str | None = None,
        label_selector: str | None = None,
        field_selector: str | None = None,
        project: Callable[[T], T] | None = None,
        page_size: int = 250,
        clock: Clock = time.monotonic,
        rng: random.Random | None = None,
        timings: Timings | None = None,
    ) -> None:
        """`type_` is decoded from the bytes; `project` may reduce it further before it is kept."""
        rng = rng or random.SystemRandom()
        timings = timings or Timings()
        selectors = {"labelSelector": label_selector, "fieldSelector": field_selector}
        self._client = client
        self._resource = resource
        self._path = resource.path(namespace)
        self._decoder = msgspec.json.Decoder(type_)
        self._project = project
        self._store = store
        self._clock = clock
        self._timings = timings
        self._pace = Pace(timings.slice, clock)
        self._core: ListWatch[T] = ListWatch(
            clock=clock,
            rng=rng,
            backoff=Backoff(clock, rng, start=timings.first_pause, cap=timings.longest_pause),
            page_size=page_size,
            selectors={name: value for name, value in selectors.items() if value},
        )
        self._synced = asyncio.Event()
        self._list_began = 0.0
        self._reported = float("-inf")
        self._meters = metrics.reflector(resource.plural, store)

    async def wait_synced(self, deadline: float) -> None:
        """Return when the first list has reached every handler. Raises DeadlineExceeded after `deadline` seconds."""
        try:
            async with asyncio.timeout(deadline):
                await self._synced.wait()
        except TimeoutError as error:
            raise DeadlineExceeded(f"{self._resource.plural}: not listed within {deadline} s") from error

    async def run(self) -> None:
        """List and watch until cancelled."""
        while True:
            try:
                recovery = await self._step()
            except KubeError as error:
                recovery = self._core.failed(error)
                self._report(error, recovery)
            self._meters.blocked.set(recovery.blocked)
            self._meters.short_watches.inc(recovery.short)
            await asyncio.sleep(recovery.pause)

    async def _step(self) -> Recovery:
        match self._core.next():
            case ListRequest() as request:
                await self._list(request)
                return Recovery(0.0)
            case WatchRequest() as request:
                return await self._watch(request)

    async def _list(self, request: ListRequest) -> None:
        if request.first:
            self._list_began = self._clock()
            self._meters.lists[request.reason].inc()
        body = await self._client.get(self._path, params=request.params, deadline=self._timings.list_deadline)
        page = self._decoded(_PAGE, body)
        for raw in page.items:
            self._core.stage(self._object(raw))
            await self._breathe()
        complete = self._core.page(page.metadata.resource_version, page.metadata.token)
        if complete is not None:
            await self._replace(complete)

    async def _replace(self, complete: Mapping[str, T]) -> None:
        for change in self._store.differences(complete):
            self._meters.handler_failures.inc(self._store.commit(change))
            await self._breathe()
        self._store.mark_synced()
        self._synced.set()
        self._meters.synced.set(1)
        self._meters.list_seconds.observe(self._clock() - self._list_began)

    async def _watch(self, request: WatchRequest) -> Recovery:
        began = self._clock()
        events = 0
        opened = False
        self._meters.watches.inc()
        try:
            async with self._client.stream(
                self._path,
                request.params,
                connect_deadline=self._timings.connect,
                idle_deadline=self._timings.idle,
                total_deadline=request.seconds + self._timings.grace,
            ) as lines:
                opened = True
                async for line in lines:
                    self._take(line)
                    events += 1
                    await self._breathe()
        except DeadlineExceeded:
            if not opened:
                raise
            # A silent watch is connected again, no error: bookmarks are a best effort.
        return self._core.ended(seconds=self._clock() - began, events=events)

    def _take(self, line: bytes) -> None:
        """One watch event: store, handlers and cursor move together."""
        event = self._decoded(_EVENT, line)
        self._meters.event(event.type)
        match event.type:
            case EventType.ERROR:
                raise errors.from_status(self._decoded(_STATUS, event.object))
            case EventType.BOOKMARK:
                self._core.event(self._decoded(_BOOKMARK, event.object).metadata.resource_version)
            case EventType.ADDED | EventType.MODIFIED | EventType.DELETED:
                found = self._object(event.object)
                deleted = event.type is EventType.DELETED
                self._meters.handler_failures.inc(self._store.apply(found, deleted=deleted))
                self._core.event(found.metadata.resource_version)

    def _object(self, raw: msgspec.Raw) -> T:
        found = self._decoded(self._decoder, raw)
        meta = found.metadata
        if not (meta.name and meta.uid and meta.resource_version):
            raise self._undecodable("its metadata lacks name, uid or resourceVersion", raw)
        return found if self._project is None else self._project(found)

    def _decoded(self, decoder: msgspec.json.Decoder[S], raw: bytes | msgspec.Raw) -> S:
        try:
            return decoder.decode(raw)
        except msgspec.MsgspecError as error:
            raise self._undecodable(str(error), raw) from error

    def _undecodable(self, why: str, raw: bytes | msgspec.Raw) -> Undecodable:
        return Undecodable(f"{self._resource.plural}: {why}: {bytes(raw)[:EXCERPT]!r}")

    async def _breathe(self) -> None:
        if self._pace.over():
            await self._pace.rest()

    def _report(self, error: KubeError, recovery: Recovery) -> None:
        self._meters.failures[error.kind].inc()
        now = self._clock()
        if now - self._reported >= self._timings.report:
            self._reported = now
            log.warning(
                "list or watch failed",
                resource=self._resource.plural,
                failure=error.kind,
                error=str(error),
                pause_seconds=round(recovery.pause, 1),
            )
