# ruff: noqa: SLF001 - the library tells what a registry holds nowhere else
"""`python -m docs.metrics_reference`: write docs/metrics.md anew, from the metrics that the two programs have."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.metrics import MetricWrapperBase

from service.app import declared
from service.settings import Settings

FILE: Final = Path(__file__).with_name("metrics.md")
# Values of a label that are written out; of more, the code's enumeration is named by its first ones.
MOST_VALUES: Final = 12

HEAD: Final = """# Metrics

Written by `make generate` from the code. Both programs answer at `/metrics` on the ops port (8080).

- Labels with listed values are closed: every series is there from the start, with zero.
- The other labels name things (a server, a pod, a card); their series go with the thing.
- A gauge of something that is not known is `NaN` or absent, never zero.
- `rm_accel_*` and `hami_*` keep the names and labels of rm-accel and HAMi, so that dashboards made for those go on
  working.
- Histograms have `_bucket`, `_sum` and `_count`. Prometheus adds `instance` and `job`.

The dashboards of the chart (`charts/tenure/files/dashboards`) show all of it; [runbook.md](runbook.md) says what to do
when an alert fires.
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """One metric."""

    name: str
    kind: str
    text: str
    labels: tuple[tuple[str, tuple[str, ...]], ...]


def written() -> str:
    """The file's content."""
    serve = {entry.name: entry for entry in _entries(declared(Settings(), "serve"))}
    node = {entry.name: entry for entry in _entries(declared(Settings(), "node"))}
    both = serve.keys() & node.keys()
    parts = (
        ("Server (`tenure serve`)", [serve[name] for name in serve if name not in both]),
        ("Node agent (`tenure node`)", [node[name] for name in node if name not in both]),
        ("Both", [serve[name] for name in serve if name in both]),
    )
    return "\n".join([HEAD, *(line for title, found in parts for line in _section(title, found))])


def _entries(registry: CollectorRegistry) -> Iterator[Entry]:
    for collector in list(registry._collector_to_names):
        if isinstance(collector, MetricWrapperBase):
            yield _of_wrapper(collector)
        else:
            yield from (_of_family(family) for family in collector.collect())


def _of_wrapper(metric: MetricWrapperBase) -> Entry:
    names: tuple[str, ...] = metric._labelnames
    series = list(metric._metrics) if names else []
    suffix = "_total" if metric._type == "counter" else ""
    values = [tuple(sorted({one[at] for one in series})) for at in range(len(names))]
    labels = tuple(zip(names, values, strict=True))
    return Entry(metric._name + suffix, str(metric._type), metric._documentation, labels)


def _of_family(family: Metric) -> Entry:
    suffix = "_total" if family.type == "counter" else ""
    names: tuple[str, ...] = getattr(family, "_labelnames", ())
    values = [tuple(sorted({sample.labels[name] for sample in family.samples})) for name in names]
    return Entry(
        family.name + suffix, family.type, family.documentation, tuple(zip(names, values, strict=True))
    )


def _section(title: str, entries: Iterable[Entry]) -> Iterator[str]:
    yield f"## {title}\n"
    yield "| metric | type | labels | what it says |"
    yield "|---|---|---|---|"
    for entry in sorted(entries, key=lambda entry: entry.name):
        yield f"| `{entry.name}` | {entry.kind} | {_labels(entry)} | {entry.text} |"
    yield ""


def _labels(entry: Entry) -> str:
    return "; ".join(
        f"`{name}`: {', '.join(values[:MOST_VALUES])}{', ...' if len(values) > MOST_VALUES else ''}"
        if len(values) > 1  # One value is how this process happens to be.
        else f"`{name}`"
        for name, values in entry.labels
    )


if __name__ == "__main__":
    FILE.write_text(written())
