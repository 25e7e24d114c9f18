from enum import Enum

from prometheus_client import CollectorRegistry

from service.metrics import MetricSet


class Verb(Enum):
    GET = "get"
    LIST = "list"


class Outcome(Enum):
    DONE = "done"
    FAILED = "failed"


def test_every_series_of_closed_labels_exists_from_the_start() -> None:
    metrics = MetricSet()
    metrics.counter("tenure_calls", "Calls.", {"verb": Verb, "outcome": Outcome})
    for verb in Verb:
        for outcome in Outcome:
            labels = {"verb": verb.value, "outcome": outcome.value}
            assert metrics.registry.get_sample_value("tenure_calls_total", labels) == 0


def test_a_metric_with_an_identity_has_no_series_until_its_owner_makes_one() -> None:
    metrics = MetricSet()
    gauge = metrics.gauge("tenure_cards", "Cards.", {"server": str})
    assert next(iter(gauge.collect())).samples == []


def test_two_sets_do_not_share_a_registry() -> None:
    one, other = MetricSet(), MetricSet(CollectorRegistry())
    one.counter("tenure_same", "Same.")
    other.counter("tenure_same", "Same.")
    assert one.registry is not other.registry
