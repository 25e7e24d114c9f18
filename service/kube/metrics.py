"""Metrics of the Kubernetes layer. `resource` is a kind's plural name, one of those in `resources.py`."""

from collections.abc import Sized
from enum import StrEnum

from service.kube.errors import Failure
from service.kube.listwatch import ListReason
from service.metrics import MetricSet

# Seconds. A list of 10,000 pods takes a few.
LIST_BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Verb(StrEnum):
    """What was asked of the API server."""

    GET = "get"
    CREATE = "create"
    REPLACE = "replace"
    PATCH = "patch"
    DELETE = "delete"
    WATCH = "watch"


class EventType(StrEnum):
    """meta/v1 WatchEvent: its types."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"
    ERROR = "ERROR"


class Emitted(StrEnum):
    """What became of an Event."""

    WRITTEN = "written"
    FAILED = "failed"
    DROPPED = "dropped"


class KubeMetrics:
    """Every metric of this layer, made once for a process."""

    def __init__(self, metrics: MetricSet) -> None:
        of = {"resource": str}
        self.requests = metrics.counter("tenure_kube_requests", "Calls to the API server.", {"verb": Verb})
        self.failures = metrics.counter(
            "tenure_kube_failures", "Calls that failed.", {"verb": Verb, "failure": Failure}
        )
        self.request_seconds = metrics.histogram(
            "tenure_kube_request_seconds", "Duration of calls; of a watch, until it began.", {"verb": Verb}
        )
        self.lists = metrics.counter(
            "tenure_kube_lists", "Lists begun, by reason.", {**of, "reason": ListReason}
        )
        self.list_seconds = metrics.histogram(
            "tenure_kube_list_seconds", "Duration of complete lists.", of, buckets=LIST_BUCKETS
        )
        self.watches = metrics.counter("tenure_kube_watches", "Watches begun.", of)
        self.short_watches = metrics.counter(
            "tenure_kube_short_watches", "Watches that ended at once without an event.", of
        )
        self.events = metrics.counter(
            "tenure_kube_watch_events", "Watch events received.", {**of, "type": EventType}
        )
        self.last_event = metrics.gauge(
            "tenure_kube_last_event_timestamp_seconds", "When the last watch event came, Unix time.", of
        )
        self.stream_failures = metrics.counter(
            "tenure_kube_stream_failures", "Lists and watches that failed.", {**of, "failure": Failure}
        )
        self.blocked = metrics.gauge(
            "tenure_kube_blocked", "1 while the kind is absent or may not be read.", of
        )
        self.objects = metrics.gauge("tenure_kube_objects", "Objects in the store.", of)
        self.synced = metrics.gauge("tenure_kube_synced", "1 once the first list reached every handler.", of)
        self.handler_failures = metrics.counter(
            "tenure_kube_handler_failures", "Store handlers that raised: each one is a bug.", of
        )
        self.emitted = metrics.counter(
            "tenure_kube_events_emitted", "Kubernetes Events, by what became of them.", {"result": Emitted}
        )
        self.lease_held = metrics.gauge("tenure_lease_held", "1 while this process leads.", {"lease": str})
        self.lease_changes = metrics.counter(
            "tenure_lease_changes", "Times this process began or ceased to lead.", {"lease": str}
        )

    def reflector(self, resource: str, store: Sized) -> "ReflectorMeters":
        """The meters of one kind; all series exist from now on, so that a dashboard never shows "no data"."""
        self.objects.labels(resource).set_function(lambda: len(store))
        return ReflectorMeters(self, resource)


class ReflectorMeters:
    """The metrics of one kind, looked up once instead of for each event."""

    def __init__(self, metrics: KubeMetrics, resource: str) -> None:
        self.lists = {reason: metrics.lists.labels(resource, reason) for reason in ListReason}
        self.failures = {kind: metrics.stream_failures.labels(resource, kind) for kind in Failure}
        self.list_seconds = metrics.list_seconds.labels(resource)
        self.watches = metrics.watches.labels(resource)
        self.short_watches = metrics.short_watches.labels(resource)
        self.blocked = metrics.blocked.labels(resource)
        self.synced = metrics.synced.labels(resource)
        self.handler_failures = metrics.handler_failures.labels(resource)
        self._events = {kind: metrics.events.labels(resource, kind) for kind in EventType}
        self._last_event = metrics.last_event.labels(resource)

    def event(self, kind: EventType) -> None:
        """A watch event came, now."""
        self._events[kind].inc()
        self._last_event.set_to_current_time()
