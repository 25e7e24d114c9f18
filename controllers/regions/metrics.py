"""What the regions of a node tell Prometheus. Series of a container vanish with it."""

from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from controllers.regions.layout import Kind
from controllers.regions.safefs import Reason
from controllers.regions.sweep import Finding
from controllers.regions.view import Trouble
from service.metrics import MetricSet

_IDENTITY = ("namespace", "pod", "container", "pod_uid")


class Method(StrEnum):
    """Calls of kubelet."""

    PUBLISH = "NodePublishVolume"
    UNPUBLISH = "NodeUnpublishVolume"


class Code(StrEnum):
    """How they ended: gRPC codes as this driver uses them."""

    OK = "OK"
    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    ALREADY_EXISTS = "ALREADY_EXISTS"
    FAILED_PRECONDITION = "FAILED_PRECONDITION"
    RESOURCE_EXHAUSTED = "RESOURCE_EXHAUSTED"
    UNAVAILABLE = "UNAVAILABLE"
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
    INTERNAL = "INTERNAL"


class Cleaned(StrEnum):
    """What made the agent look for files to remove."""

    DEATH = "death"
    SWEEP = "sweep"


class RegionMetrics:
    """Counters of the agent, and gauges collected from `findings`, the outcome of the last sweep."""

    def __init__(self, metrics: MetricSet, findings: Callable[[], Sequence[Finding]]) -> None:
        self.pruned = metrics.counter(
            "tenure_region_pruned_records", "Ledger records removed because their process is gone."
        )
        self.removed = metrics.counter(
            "tenure_region_removed_files",
            "Region files removed so that the next start is fresh.",
            {"kind": Kind, "cause": Cleaned},
        )
        self.refusals = metrics.counter(
            "tenure_region_refusals",
            "Files or folders left alone, each time they were met.",
            {"reason": Reason},
        )
        self.lock_waits = metrics.counter(
            "tenure_region_lock_waits", "Tries to lock a region that found the lock taken."
        )
        self.corrupt = metrics.counter(
            "tenure_region_corrupt_records", "Ledger records with an impossible amount, once each."
        )
        self.leftovers = metrics.counter(
            "tenure_region_leftovers_removed", "Folders of pods that no longer exist, removed."
        )
        self.clean_seconds = metrics.histogram(
            "tenure_region_clean_seconds", "From the end of a container's last process to clean folders."
        )
        self.sweep_seconds = metrics.histogram("tenure_region_sweep_seconds", "Duration of a sweep.")
        self.calls = metrics.counter(
            "tenure_csi_calls", "Calls of kubelet.", {"method": Method, "code": Code}
        )
        self.call_seconds = metrics.histogram(
            "tenure_csi_call_seconds", "Duration of calls of kubelet.", {"method": Method}
        )
        metrics.collector(_Regions(findings))


class _Regions(Collector):
    """Gauges made at scrape time from what the last sweep kept in memory."""

    def __init__(self, findings: Callable[[], Sequence[Finding]]) -> None:
        self._findings = findings

    def describe(self) -> Iterator[Metric]:
        """Names only: nothing has to be collected when the collector is registered."""
        return iter(_families())

    def collect(self) -> Iterator[Metric]:
        """Samples of the last sweep."""
        regions, charged, records = _families()
        by_layout: dict[tuple[str, str], int] = {}
        for finding in self._findings():
            for key in _layouts(finding):
                by_layout[key] = by_layout.get(key, 0) + 1
            identity = [
                finding.owner.namespace,
                finding.owner.pod,
                finding.owner.id.container,
                finding.owner.id.uid,
            ]
            if finding.charged is not None:
                charged.add_metric(identity, finding.charged)
                records.add_metric(identity, finding.records)
        for key, number in by_layout.items():
            regions.add_metric(key, number)
        return iter((regions, charged, records))


def _families() -> tuple[GaugeMetricFamily, GaugeMetricFamily, GaugeMetricFamily]:
    return (
        GaugeMetricFamily("tenure_regions", "Region files on this node.", labels=("kind", "layout")),
        GaugeMetricFamily(
            "tenure_region_ledger_bytes",
            "What the living processes of a container charged; at least, where a record is corrupt.",
            labels=_IDENTITY,
        ),
        GaugeMetricFamily(
            "tenure_region_ledger_records", "Records of a container's ledger.", labels=_IDENTITY
        ),
    )


def _layouts(finding: Finding) -> Iterator[tuple[str, str]]:
    for kind, region in ((Kind.VMEM, finding.view.ledger), (Kind.SM, finding.view.budget)):
        if isinstance(region, Trouble):
            yield kind, region.word
        elif region is not None:
            yield kind, f"v{region.version}"
