"""Prometheus metrics with closed label sets.

Each area declares its own metrics in a small class that takes a `MetricSet`. A label's values are either
an Enum, and then every series exists from the start with zero (dashboards never show "no data"), or named identities
(`str`) whose series the owner removes when the thing is gone.
"""

import importlib.metadata
import itertools
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.registry import Collector

M = TypeVar("M", bound=MetricWrapperBase)
Labels = Mapping[str, type[Enum] | type[str]]


def _version() -> str:
    """The installed version; a source tree that nobody installed has none."""
    try:
        return importlib.metadata.version("tenure")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


VERSION: Final = _version()
# Seconds. The edges of the API server's own admission histograms are among them: both can be compared.
LATENCY_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class MetricSet:
    """A registry of one process, and the only way to add to it."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry(auto_describe=True)

    def counter(self, name: str, text: str, labels: Labels | None = None) -> Counter:
        """A counter; `name` without `_total`."""
        return _zeroed(Counter(name, text, list(labels or {}), registry=self.registry), labels)

    def gauge(self, name: str, text: str, labels: Labels | None = None) -> Gauge:
        """A gauge."""
        return _zeroed(Gauge(name, text, list(labels or {}), registry=self.registry), labels)

    def histogram(
        self,
        name: str,
        text: str,
        labels: Labels | None = None,
        *,
        buckets: Sequence[float] = LATENCY_BUCKETS,
    ) -> Histogram:
        """A histogram; `buckets` in the metric's unit."""
        metric = Histogram(name, text, list(labels or {}), registry=self.registry, buckets=buckets)
        return _zeroed(metric, labels)

    def collector(self, collector: Collector) -> None:
        """Register a collector that makes its samples at scrape time from memory, without any I/O."""
        self.registry.register(collector)


def tell_version(metrics: MetricSet) -> None:
    """Show which version this process is: replicas of two versions disagree."""
    metrics.gauge("tenure_build_info", "1, with the version of this process.", {"version": str}).labels(
        VERSION
    ).set(1)


def _zeroed(metric: M, labels: Labels | None) -> M:
    """Create every series of a metric whose labels are all enums."""
    kinds = (labels or {}).values()
    enums = [kind for kind in kinds if issubclass(kind, Enum)]
    if enums and len(enums) == len(kinds):
        for values in itertools.product(*([member.value for member in kind] for kind in enums)):
            metric.labels(*values)
    return metric
