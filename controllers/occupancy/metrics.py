"""Metrics of occupancy. The `rm_accel_*` names and their labels are rm-accel's."""

from collections import Counter
from collections.abc import Iterable
from enum import StrEnum

from controllers.occupancy.damping import Standing
from controllers.occupancy.evidence import Why
from controllers.occupancy.holders import State
from controllers.occupancy.scanner import Scan
from service.metrics import MetricSet

_COMPONENT = "tenure-node"
# Seconds. A quiet node takes about 0.1; the deadlines of tools and processes end a scan before 20.
_SCAN_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0)


class Sink(StrEnum):
    """Where results are written."""

    PROFILES = "profiles"
    NODE = "node"
    SERVER = "server"


class OccupancyMetrics:
    """What the agent counts and shows."""

    def __init__(self, metrics: MetricSet) -> None:
        of: dict[str, type[str]] = {"component": str, "vendor": str, "model": str}
        self._in_use = metrics.gauge("rm_accel_accelerators_in_use", "Cards that somebody holds.", of)
        self._host_held = metrics.gauge(
            "rm_accel_accelerators_host_held", "Cards held by a process outside Kubernetes.", of
        )
        self._unknown = metrics.gauge(
            "tenure_occupancy_unknown_cards", "Cards of which it is not known whether they are free.", of
        )
        self._scans = metrics.histogram(
            "tenure_occupancy_scan_seconds", "Duration of a scan.", buckets=_SCAN_BUCKETS
        )
        self._errors = metrics.counter(
            "tenure_occupancy_source_errors",
            "What a source could not see, once for each scan.",
            {"source": str, "reason": Why},
        )
        self._failures = metrics.counter(
            "tenure_occupancy_write_failures", "Results that could not be written.", {"sink": Sink}
        )
        self._shown: set[tuple[str, str]] = set()

    def scanned(self, scan: Scan) -> None:
        """Count a scan and its gaps."""
        self._scans.observe(scan.seconds)
        for source, why in {(gap.source, gap.why) for gap in scan.gaps}:
            self._errors.labels(source, why.value).inc()

    def failed(self, sink: Sink) -> None:
        """Count a result that could not be written."""
        self._failures.labels(sink.value).inc()

    def show(self, standings: Iterable[Standing]) -> None:
        """Set the gauges. A count that is zero only because a card could not be seen has no sample."""
        kinds = Counter[tuple[str, str, str]]()
        for standing in standings:
            card = standing.verdict.card
            for what in _counted(standing):
                kinds[what, card.vendor, card.model] += 1
        groups = {(vendor, model) for _, vendor, model in kinds}
        for vendor, model in groups:
            unknown = kinds["unknown", vendor, model]
            self._unknown.labels(_COMPONENT, vendor, model).set(unknown)
            for gauge, what in ((self._in_use, "in use"), (self._host_held, "host")):
                count = kinds[what, vendor, model]
                if count or not unknown:
                    gauge.labels(_COMPONENT, vendor, model).set(count)
                else:
                    gauge.remove(_COMPONENT, vendor, model)
        self._withdraw(self._shown - groups)
        self._shown = groups

    def _withdraw(self, groups: Iterable[tuple[str, str]]) -> None:
        for vendor, model in groups:
            for gauge in (self._in_use, self._host_held, self._unknown):
                gauge.remove(_COMPONENT, vendor, model)


def _counted(standing: Standing) -> Iterable[str]:
    yield "card"
    if standing.verdict.in_use:
        yield "in use"
    if standing.state is State.HOST:
        yield "host"
    if standing.state is State.UNKNOWN or standing.verdict.gaps:
        yield "unknown"
