"""Leader election over a Lease (coordination.k8s.io/v1), as client-go's tools/leaderelection does it.

It saves work; it does not fence. A leader that was stopped for a while (a suspended machine, a blocked loop) may go
on writing for a moment after another one took over. What must not happen twice is kept from it by the
resourceVersion of the object that is written (design decision 1), never by leadership.

Nobody's wall clock is trusted: a lease has expired when the same record was seen for as long as it says it lasts,
on a clock of our own that only goes forward. The times in the record are for people.
"""

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec
import structlog

from service.kube.backoff import Clock
from service.kube.client import KubeClient, PatchKind
from service.kube.errors import KubeError, NotFound, Undecodable
from service.kube.metrics import KubeMetrics
from service.kube.resources import LEASES
from service.settings import LeaseSettings

log = structlog.get_logger(__name__)

# Candidates spread their tries over up to so many retry times more (client-go: JitterFactor).
JITTER = 1.2
# Seconds for giving the lease back at the end; without that the others wait until it expires.
RELEASE_S = 2.0
# Seconds between two log lines about an election that the API server does not let happen.
REPORT_S = 60.0


class Spec(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True):
    """coordination.k8s.io/v1 LeaseSpec; times are meta/v1 MicroTime."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class _Meta(msgspec.Struct, rename="camel", frozen=True):
    resource_version: str


class _Record(msgspec.Struct, frozen=True):
    metadata: _Meta
    spec: Spec = Spec()


@dataclass(slots=True)
class Sight:
    """How long the same record has been in sight."""

    clock: Clock
    _version: str | None = None
    _since: float = 0.0

    def expired(self, version: str, spec: Spec) -> bool:
        """True when nobody wrote the record for as long as it says that it lasts."""
        if version != self._version:
            self._version, self._since = version, self.clock()
        return self.clock() - self._since > (spec.lease_duration_seconds or 0)


class Lease:
    """One candidate. `held` is True from the moment it wins until it can no longer be sure.

    `identity` must differ between processes, also between two lives of one.
    """

    def __init__(
        self,
        client: KubeClient,
        *,
        namespace: str,
        identity: str,
        settings: LeaseSettings,
        metrics: KubeMetrics,
        clock: Clock = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._identity = identity
        self._settings = settings
        self._clock = clock
        self._rng = rng or random.SystemRandom()
        self._sight = Sight(clock)
        self._version = ""
        self._sure_until = float("-inf")
        self._holder = ""
        self._leading = False
        self._won = asyncio.Event()
        self._lost = asyncio.Event()
        self._callbacks: list[Callable[[bool], None]] = []
        self._reported = float("-inf")
        self._gauge = metrics.lease_held.labels(settings.name)
        self._changes = metrics.lease_changes.labels(settings.name)

    @property
    def held(self) -> bool:
        """True while no other candidate can have taken over; false at once when a renewal is overdue."""
        return self._leading and self._clock() < self._sure_until

    @property
    def leader(self) -> str:
        """Identity of who leads, as far as this candidate knows; empty when nobody does."""
        return self._identity if self.held else self._holder

    def on_change(self, callback: Callable[[bool], None]) -> None:
        """Call `callback` with True when we begin to lead and False when we cease to."""
        self._callbacks.append(callback)

    async def wait_held(self) -> None:
        """Return when we lead."""
        await self._won.wait()

    async def lead(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run `work` whenever we lead, and cancel it when we cease to. Ends, or raises, only when `work` does."""
        while True:
            await self._won.wait()
            working = asyncio.ensure_future(work())
            lost = asyncio.create_task(self._lost.wait(), name="lease lost")
            try:
                await asyncio.wait({working, lost}, return_when=asyncio.FIRST_COMPLETED)
                if working.done():
                    return await working
            finally:
                working.cancel()
                lost.cancel()
                await asyncio.gather(working, lost, return_exceptions=True)

    async def run(self) -> None:
        """Compete, and renew what was won, until cancelled; then give it back."""
        try:
            while True:
                await self._try()
                await asyncio.sleep(self._pause())
        finally:
            await self._release()

    async def _try(self) -> None:
        began = self._clock()
        try:
            # A leader that gets no answer must cease to lead in time, not when the call ends.
            async with asyncio.timeout(self._sure_until - began if self._leading else None):
                won = await self._acquire()
        except (KubeError, TimeoutError) as error:
            self._report(error)
            won = self.held  # nothing is known to have changed, until time runs out
        else:
            self._sure_until = began + self._settings.renew_s if won else began
        self._lead(won)

    async def _acquire(self) -> bool:
        """One round: read, and write if the lease is free or ours."""
        path = LEASES.path(self._namespace, self._settings.name)
        try:
            record = _decoded(await self._client.get(path, deadline=self._call_s))
        except NotFound:
            return await self._create()
        self._holder = record.spec.holder_identity or ""
        if not self._free(record):
            return False
        meta = {"resourceVersion": record.metadata.resource_version}
        body = {"metadata": meta, "spec": self._spec(record.spec)}
        answer = await self._client.patch(path, body, kind=PatchKind.MERGE, deadline=self._call_s)
        self._version = _decoded(answer).metadata.resource_version
        return True

    async def _create(self) -> bool:
        body = {"metadata": {"name": self._settings.name}, "spec": self._spec(None)}
        answer = await self._client.create(LEASES.path(self._namespace), body, deadline=self._call_s)
        self._version = _decoded(answer).metadata.resource_version
        return True

    def _free(self, record: _Record) -> bool:
        expired = self._sight.expired(record.metadata.resource_version, record.spec)
        return record.spec.holder_identity in {None, "", self._identity} or expired

    def _spec(self, old: Spec | None) -> Spec:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        ours = old is not None and old.holder_identity == self._identity
        changes = 0 if old is None else (old.lease_transitions or 0) + (not ours)
        return Spec(
            holder_identity=self._identity,
            lease_duration_seconds=math.ceil(self._settings.duration_s),
            acquire_time=old.acquire_time if old is not None and ours else now,
            renew_time=now,
            lease_transitions=changes,
        )

    @property
    def _call_s(self) -> float:
        """Two tries must fit into the time for a renewal."""
        return self._settings.renew_s / 2

    def _pause(self) -> float:
        retry = self._settings.retry_s
        if self._leading:
            return max(0.0, min(retry, self._sure_until - self._clock()))
        return retry * (1.0 + JITTER * self._rng.random())

    def _lead(self, leading: bool) -> None:  # noqa: FBT001 - a state, not an option
        if leading == self._leading:
            return
        self._leading = leading
        begun, ended = (self._won, self._lost) if leading else (self._lost, self._won)
        begun.set()
        ended.clear()
        self._gauge.set(leading)
        self._changes.inc()
        log.info("leadership changed", lease=self._settings.name, identity=self._identity, leading=leading)
        for callback in self._callbacks:
            callback(leading)

    async def _release(self) -> None:
        if not self._leading:
            return
        self._lead(False)  # noqa: FBT003 - as above
        body = {
            "metadata": {"resourceVersion": self._version},
            "spec": {"holderIdentity": None, "leaseDurationSeconds": 1},
        }
        path = LEASES.path(self._namespace, self._settings.name)
        try:
            await self._client.patch(path, body, kind=PatchKind.MERGE, deadline=RELEASE_S)
        except KubeError as error:
            log.info("lease not given back", lease=self._settings.name, error=str(error))

    def _report(self, error: Exception) -> None:
        now = self._clock()
        if now - self._reported >= REPORT_S:
            self._reported = now
            log.warning("election failed", lease=self._settings.name, error=str(error))


def _decoded(answer: bytes) -> _Record:
    try:
        return msgspec.json.decode(answer, type=_Record)
    except msgspec.MsgspecError as error:
        raise Undecodable(f"the lease is not one: {error}") from error
