"""The chart's dashboards, alerts and their runbook fit the code and each other. The queries themselves run against a
real Prometheus in tests/cluster."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from charts.tenure.dashboards.write import FOLDER, written
from tests.lab.layout import REPOSITORY
from tests.lab.plugin import require_program
from tests.unit.chart.rendered import one, render

ALERTS = REPOSITORY / "charts" / "tenure" / "files" / "alerts.yaml"
RUNBOOK = REPOSITORY / "docs" / "runbook.md"
METRICS = REPOSITORY / "docs" / "metrics.md"
SCENARIOS = Path(__file__).with_name("alerts_test.yaml")
# What Prometheus, the API server and histograms add to the labels of docs/metrics.md.
ADDED = {"instance", "job", "le", "name", "error_type"}


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def panels() -> Iterator[tuple[str, dict[str, Any]]]:
    for name, text in written().items():
        for panel in json.loads(text)["panels"]:
            if panel["type"] != "row":
                yield name, panel


def queries() -> Iterator[tuple[str, str]]:
    for rule in rules():
        yield rule["alert"], rule["expr"]
    for board, panel in panels():
        for target in panel["targets"]:
            yield f"{board}: {panel['title']}", target["expr"]


def known() -> dict[str, set[str]]:
    """Metrics of docs/metrics.md with their labels."""
    found = re.findall(r"^\| `(\w+)` \| \w+ \| (.*?) \| ", METRICS.read_text(), re.MULTILINE)
    return {name: set(re.findall(r"`(\w+)`", labels)) for name, labels in found}


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=REPOSITORY)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_dashboards_are_what_their_code_makes() -> None:
    committed = {path.name: path.read_text() for path in FOLDER.glob("*.json")}
    assert committed == dict(written()), "run `make generate`"


def test_the_list_of_metrics_is_what_the_code_has() -> None:
    made = run(sys.executable, "-c", "from docs.metrics_reference import written; print(written(), end='')")
    assert METRICS.read_text() == made, "run `make generate`"


def test_every_panel_says_what_it_shows_and_asks_the_chosen_prometheus() -> None:
    seen: set[tuple[str, int]] = set()
    for board, panel in panels():
        assert panel["description"], panel["title"]
        assert panel["targets"], panel["title"]
        assert (board, panel["id"]) not in seen
        seen.add((board, panel["id"]))
        assert panel["datasource"]["uid"] == "${datasource}"
        width, left = panel["gridPos"]["w"], panel["gridPos"].get("x", 0)
        assert left + width <= 24


def test_queries_only_use_metrics_and_labels_that_exist() -> None:
    metrics = known()
    assert len(metrics) > 60
    for where, query in queries():
        names = re.findall(r"\b((?:tenure|hami|rm_accel|process)_\w+)", query)
        assert names or "apiserver_" in query, where
        labels = set[str]()
        for name in names:
            base = name if name in metrics else re.sub(r"_(bucket|sum|count)$", "", name)
            assert base in metrics, (where, name)
            labels |= metrics[base]
        asked = {
            label.strip()
            for group in re.findall(r"\b(?:by|on) \(([^)]*)\)", query)
            for label in group.split(",")
        }
        asked |= set(re.findall(r"(\w+)(?:=~|!=|=)\"", query))
        assert asked <= labels | ADDED, (where, asked - labels - ADDED)


def test_every_alert_has_a_severity_a_sentence_and_a_section_of_the_runbook() -> None:
    anchors = {
        title.strip().lower() for title in re.findall(r"^## (Tenure\w+)$", RUNBOOK.read_text(), re.MULTILINE)
    }
    for rule in rules():
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert rule["annotations"]["summary"].endswith(".")
        page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert page == "docs/runbook.md"
        assert anchor == rule["alert"].lower()
        assert anchor in anchors
    assert len(anchors) == len(rules()), "the runbook has a section for an alert that does not exist"


def test_the_charts_rule_leads_to_where_the_runbook_is_read() -> None:
    objects = render(
        "--set=metrics.prometheusRule.enabled=true",
        "--set=metrics.prometheusRule.runbook=https://wiki/tenure",
    )
    rule = one(objects, "PrometheusRule", "tenure")
    links = [
        each["annotations"]["runbook_url"] for group in rule["spec"]["groups"] for each in group["rules"]
    ]
    assert len(links) == len(rules())
    assert all(link.startswith("https://wiki/tenure#tenure") for link in links)


def test_every_alert_has_a_scenario_in_which_it_fires() -> None:
    cases = yaml.safe_load(SCENARIOS.read_text())["tests"]
    fired = {
        case["alertname"] for test in cases for case in test.get("alert_rule_test", ()) if case["exp_alerts"]
    }
    assert fired == {rule["alert"] for rule in rules()}


@pytest.mark.parametrize("command", ["check", "test"])
def test_prometheus_accepts_the_rules_and_fires_them_as_meant(command: str) -> None:
    run(require_program("promtool"), command, "rules", str(ALERTS if command == "check" else SCENARIOS))
