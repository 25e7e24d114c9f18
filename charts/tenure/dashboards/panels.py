"""What the dashboards are made of: a panel is a title, a sentence, a unit and its queries."""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, table, timeseries
from grafana_foundation_sdk.models.common import BigValueColorMode, BigValueGraphMode, StackingMode
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    DataSourceRef,
    DataTransformerConfig,
    DynamicConfigValue,
    Threshold,
    ThresholdsMode,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
# Grafana's grid has 24 columns.
FULL, HALF, THIRD, SIXTH = 24, 12, 8, 4
TAG = "tenure"


@dataclass(frozen=True, slots=True)
class Query:
    """A PromQL expression, and how its series are called."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """One value now. From `warn` on it is orange, from `bad` on red; with `low` below them.

    `empty` is shown when there is no series: what nobody tells is not zero, unless the query leaves zeros out.
    """

    title: str
    text: str
    query: Query
    unit: str = "short"
    warn: float | None = None
    bad: float | None = None
    low: bool = False
    empty: str = "no data"


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """Values over time."""

    title: str
    text: str
    queries: tuple[Query, ...]
    unit: str = "short"
    stacked: bool = False
    span: int = HALF


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """A table of the series as they are now; their value is in the column `value`."""

    title: str
    text: str
    query: Query
    value: str
    unit: str = "short"
    span: int = HALF


Panel = Number | Graph | Rows


@dataclass(frozen=True, slots=True)
class Section:
    """A row of the dashboard."""

    title: str
    panels: tuple[Panel, ...] = field(default=())


def build(*, uid: str, title: str, text: str, sections: Iterable[Section]) -> dashboard.Dashboard:
    """A dashboard for any Prometheus that the reader chooses."""
    made = (
        dashboard.Dashboard(title)
        .uid(uid)
        .description(text)
        .tags([TAG])
        .readonly()
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .timezone("browser")
        .refresh("30s")
        .time("now-3h", "now")
        .with_variable(dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
        .link(
            dashboard.DashboardLink("Tenure")
            .type(DashboardLinkType.DASHBOARDS)
            .tags([TAG])
            .as_dropdown(as_dropdown=True)
            .include_vars(include_vars=True)
            .keep_time(keep_time=True)
        )
    )
    ids = itertools.count(1)
    for section in sections:
        made = made.with_row(dashboard.Row(section.title).id(next(ids)))
        for panel in section.panels:
            made = made.with_panel(_panel(panel).id(next(ids)))
    return made


def _panel(panel: Panel) -> stat.Panel | timeseries.Panel | table.Panel:
    match panel:
        case Number():
            return _number(panel)
        case Graph():
            return _graph(panel)
        case Rows():
            return _rows(panel)


def _number(panel: Number) -> stat.Panel:
    return (
        stat.Panel()
        .title(panel.title)
        .description(panel.text)
        .datasource(SOURCE)
        .with_target(_target(panel.query, 0).instant())
        .unit(panel.unit)
        .no_value(panel.empty)
        .graph_mode(BigValueGraphMode.NONE)
        .color_mode(BigValueColorMode.VALUE)
        .thresholds(_thresholds(panel))
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .span(SIXTH)
        .height(4)
    )


def _thresholds(panel: Number) -> dashboard.ThresholdsConfig:
    """The first step has no value: it is what holds below all others."""
    if panel.low:
        steps = [(None, "red"), (panel.bad, "orange"), (panel.warn, "green")]
    else:
        steps = [(None, "text"), (panel.warn, "orange"), (panel.bad, "red")]
    kept = [
        Threshold(value=value, color=color)
        for number, (value, color) in enumerate(steps)
        if number == 0 or value is not None
    ]
    return dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(kept)


def _graph(panel: Graph) -> timeseries.Panel:
    made = (
        timeseries.Panel()
        .title(panel.title)
        .description(panel.text)
        .datasource(SOURCE)
        .unit(panel.unit)
        .min(0)
        .fill_opacity(20 if panel.stacked else 5)
        .span(panel.span)
        .height(8)
    )
    if panel.stacked:
        made = made.stacking(common.StackingConfig().mode(StackingMode.NORMAL).group("A"))
    for number, query in enumerate(panel.queries):
        made = made.with_target(_target(query, number))
    return made


def _rows(panel: Rows) -> table.Panel:
    return (
        table.Panel()
        .title(panel.title)
        .description(panel.text)
        .datasource(SOURCE)
        .with_target(_target(panel.query, 0).instant().format(PromQueryFormat.TABLE))
        .with_transformation(_organized(panel))
        .override_by_name(panel.value, [DynamicConfigValue(id_val="unit", value=panel.unit)])
        .span(panel.span)
        .height(8)
    )


def _organized(panel: Rows) -> DataTransformerConfig:
    return DataTransformerConfig(
        id_val="organize", options={"excludeByName": {"Time": True}, "renameByName": {"Value": panel.value}}
    )


def _target(query: Query, number: int) -> prometheus.Dataquery:
    return (
        prometheus.Dataquery()
        .datasource(SOURCE)
        .expr(query.expr)
        .legend_format(query.legend)
        .ref_id(chr(ord("A") + number))
    )
