"""Keeps checking: a driver's update that drops an attribute is an event before the next pod stays Pending.

One replica does it, the leader; a round reads the cluster once and checks each template that some pod names. The
search runs in a thread, so that a large cluster does not hold up admission.
"""

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
import structlog

from controllers.claims import reading
from controllers.claims.check import Subject, World, run
from controllers.claims.metrics import ClaimMetrics
from controllers.claims.report import Check, Finding, Report, Verdict
from controllers.claims.taintrules import TaintRules
from service.kube.client import KubeClient
from service.kube.errors import KubeError
from service.kube.events import ObjectRef, Type

log = structlog.get_logger(__name__)

# Templates of one round; a cluster with more checks the first of them by name, and says so.
MAX_TEMPLATES = 200
REASON = "ClaimCheckFailed"


class Events(Protocol):
    """What says something to people (service/kube/events.py)."""

    def emit(self, ref: ObjectRef, *, reason: str, message: str, type_: Type) -> None:
        """Say it; never fails."""


@dataclass(slots=True)
class Memory:
    """The last report of each template."""

    reports: dict[str, Report] = field(default_factory=dict)

    def turned(self, report: Report) -> Iterator[tuple[Check, Finding]]:
        """Checks that fail now and passed before, each with its first failure; then the report is remembered.

        A template that fails from the start is no news: whoever made it checks it. Unknown is no failure, and what was
        unknown in between still turned from its last pass.
        """
        before = self.reports.get(report.template)
        passed = {check.name for check in before.checks if check.verdict is Verdict.PASS} if before else set()
        kept = []
        for check in report.checks:
            if check.verdict is Verdict.FAIL and check.name in passed:
                yield check, next(one for one in check.findings if one.verdict is Verdict.FAIL)
            unclear = check.verdict is Verdict.UNKNOWN and check.name in passed
            kept.append(Check(check.name, Verdict.PASS) if unclear else check)
        self.reports[report.template] = msgspec.structs.replace(report, checks=tuple(kept))

    def gone(self, templates: Iterable[str]) -> dict[str, list[str]]:
        """Forget all but these; the names of the checks of each that went."""
        kept = set(templates)
        names = [name for name in self.reports if name not in kept]
        return {name: [check.name for check in self.reports.pop(name).checks] for name in names}


@dataclass(frozen=True, slots=True)
class Seen:
    """What the rounds found: the last report of each template, and why the last round could not look, or nothing."""

    reports: tuple[Report, ...] = ()
    trouble: str = ""


class Watcher:
    """Rounds of checks, `interval_s` seconds apart."""

    def __init__(
        self,
        client: KubeClient,
        *,
        events: Events,
        metrics: ClaimMetrics,
        interval_s: float,
    ) -> None:
        self._client = client
        self._events = events
        self._metrics = metrics
        self._interval_s = interval_s
        self._rules = TaintRules(client)
        self._trouble = ""
        self._reports: tuple[Report, ...] | None = None
        self.memory = Memory()

    @property
    def seen(self) -> Seen | None:
        """For the status page; None when no round has ended since this process leads."""
        if self._reports is None and not self._trouble:
            return None
        return Seen(self._reports or (), self._trouble)

    async def run(self) -> None:
        """Until cancelled."""
        try:
            while True:
                await self._guarded()
                await asyncio.sleep(self._interval_s)
        finally:
            self._reports, self._trouble = None, ""

    async def _guarded(self) -> None:
        try:
            await self.round()
        except (KubeError, reading.NoDraError, msgspec.MsgspecError) as error:
            self._metrics.failures.inc()
            if str(error) != self._trouble:  # a cluster without DRA is no news every minute
                log.warning("claim templates were not checked", reason=str(error))
            self._trouble = str(error)
        except Exception:
            # The supervisor of rounds: a fault of ours here must not end the process that places pods.
            self._metrics.failures.inc()
            self._trouble = "a fault of Tenure's own, see the log"
            log.exception("checking claim templates failed: this is a bug")
        else:
            self._trouble = ""

    async def round(self) -> None:
        """Check every template that a pod names. Raises KubeError, NoDraError."""
        named = await reading.referenced(self._client)
        world = await reading.world(self._client)
        await self._keep_off(world)
        reports = []
        for key in sorted(named)[:MAX_TEMPLATES]:
            subject = await reading.template(self._client, *key)
            reports.append(await asyncio.to_thread(run, subject, world))
            self._told(reports[-1], subject)
        self._reports = tuple(reports)
        if len(named) > MAX_TEMPLATES:
            log.warning("too many claim templates to check all", templates=len(named), checked=MAX_TEMPLATES)
        for template, checks in self.memory.gone("/".join(key) for key in named).items():
            self._metrics.forget(template, checks)
        self._metrics.rounds.inc()

    async def _keep_off(self, world: World) -> None:
        before = self._rules.available
        await self._rules.settle(world.held)
        if self._rules.available is not before:
            log.info("device taint rules", available=self._rules.available)

    def _told(self, report: Report, subject: Subject) -> None:
        self._metrics.show(report)
        for check, finding in self.memory.turned(report):
            namespace, _, name = report.template.partition("/")
            uid = subject.template.metadata.uid if subject.template else ""
            ref = ObjectRef("resource.k8s.io/v1", "ResourceClaimTemplate", name, namespace, uid)
            message = f"check {check.name}: {finding.subject}: {finding.sentence}"
            self._events.emit(ref, reason=REASON, message=message, type_="Warning")
