"""Metrics of the pool: closed labels, or identities whose series vanish with the thing."""

from enum import StrEnum

from service.metrics import MetricSet


class Write(StrEnum):
    """How a compare-and-swap of a RemoteServer ended."""

    DONE = "done"
    CONFLICT = "conflict"
    UNKNOWN = "unknown"


class Bind(StrEnum):
    """How a bind call ended."""

    BOUND = "bound"
    NO_PROMISE = "no_promise"
    NOT_INJECTED = "not_injected"
    POD_GONE = "pod_gone"
    REFUSED = "refused"
    UNKNOWN = "unknown"
    UNREADABLE = "unreadable"


class Filter(StrEnum):
    """How a filter call ended."""

    PROMISED = "promised"
    NO_CARDS_ASKED = "no_cards_asked"
    NO_PROMISE = "no_promise"
    NOT_INJECTED = "not_injected"
    REFUSED_DEMAND = "refused_demand"
    UNKNOWN = "unknown"
    UNREADABLE = "unreadable"


class PoolMetrics:
    """What the pool counts. Gauges of cards and queues are collected at scrape time, see `collect.py`."""

    def __init__(self, metrics: MetricSet) -> None:
        self._writes = metrics.counter(
            "tenure_pool_writes", "Compare-and-swaps of RemoteServer status.", {"outcome": Write}
        )
        self._binds = metrics.counter("tenure_extender_binds", "Bind calls.", {"outcome": Bind})
        self._filters = metrics.counter("tenure_extender_filters", "Filter calls.", {"outcome": Filter})
        self.bind_seconds = metrics.histogram("tenure_extender_bind_seconds", "Duration of bind calls.")
        self.filter_seconds = metrics.histogram("tenure_extender_filter_seconds", "Duration of filter calls.")
        self.promises = metrics.counter("tenure_pool_promises", "Promises made.")
        self.bad_registers = metrics.counter(
            "tenure_pool_bad_registers", "Server nodes whose cards could not be read, each time that changed."
        )

    def write(self, outcome: Write) -> None:
        """Count a compare-and-swap."""
        self._writes.labels(outcome.value).inc()

    def bind(self, outcome: Bind) -> None:
        """Count a bind call."""
        self._binds.labels(outcome.value).inc()

    def filter(self, outcome: Filter) -> None:
        """Count a filter call."""
        self._filters.labels(outcome.value).inc()
