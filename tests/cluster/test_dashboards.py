"""Dashboards and alerts against the real thing: Debian's Prometheus scrapes Tenure and the API server of a cluster to
which what the alerts are about is done, one after the other. Every alert has then fired, without its `for`, and every
panel has data. With their times the alerts fire in tests/unit/chart/alerts_test.yaml."""

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest
import yaml

from tests.cluster import bad_replica, troubles
from tests.cluster.scene import ALERTS, Scene
from tests.lab import Lab
from tests.lab.plugin import require_program
from tests.lab.product import Product
from tests.lab.prometheus import Prometheus
from tests.unit.occupancy.ground import Programs, devices_to_oneself

# A cluster of its own starts, and fifteen things are broken in it.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

BOARDS = ALERTS.parent / "dashboards"
# The whole scene: what somebody sees who opens the dashboards after it.
RATE_INTERVAL = "5m"


@pytest.fixture(scope="module")
def scene(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    program = require_program("prometheus")
    folder = tmp_path_factory.mktemp("dashboards")
    # Within the session's, so that it goes with a session that was killed.
    own = Lab(lab.state / "dashboards")
    with ExitStack() as stack:
        stack.callback(own.down)
        own.up()
        stack.enter_context(devices_to_oneself())
        made = Scene(own, Product(own), Prometheus(own, program, folder / "prometheus"), folder)
        _play(made, stack)
        yield made


def _play(scene: Scene, stack: ExitStack) -> None:
    programs = stack.enter_context(closing(Programs()))
    troubles.nobody_is_there(scene)
    troubles.servers_come(scene)
    troubles.pods_come(scene)
    troubles.an_agent_comes(scene, stack)
    client = bad_replica.a_served_card_has_a_client(scene, programs)
    bad_replica.a_bad_replica_comes(scene)
    bad_replica.the_client_stays(scene, programs, client)
    troubles.guard_goes(scene)
    troubles.rights_go(scene)
    troubles.webhook_goes(scene)
    time.sleep(3)  # Three scrapes of everything as it is now.


def panels() -> list[Any]:
    found = []
    for path in sorted(BOARDS.glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel.get("targets", ()):
                name = f"{path.stem}: {panel['title']} {target['refId']}"
                found.append(pytest.param(target["expr"], id=name))
    return found


def alerts() -> dict[str, str]:
    """Expressions by alert."""
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    return {rule["alert"]: rule["expr"] for group in groups for rule in group["rules"]}


def test_every_alert_has_fired(scene: Scene) -> None:
    assert scene.fired == alerts().keys()


def test_every_query_of_every_panel_returns_data(scene: Scene) -> None:
    assert len(panels()) > 70
    empty = {}
    for case in panels():
        (expression,) = case.values
        found = scene.prometheus.query(expression.replace("$__rate_interval", RATE_INTERVAL))
        if all(series["value"][1] == "NaN" for series in found):
            empty[case.id] = expression
    assert empty == {}


def test_every_alert_is_a_query_that_prometheus_answers(scene: Scene) -> None:
    for expression in alerts().values():
        scene.prometheus.query(expression)


def test_the_status_page_shows_what_was_done(scene: Scene) -> None:
    leader, other = (scene.page(scene.replicas[name].ops) for name in ("tenure-0", "tenure-1"))
    for fact in (
        "not ready",
        "certificate trusted",
        "claim template default/not-there fails a check",
        "1 card is held by processes outside Kubernetes",
        "default/waits",
        "default/runs",
        "sleep",
    ):
        assert fact in leader, fact
    assert "guard policy tenure-gate is not in force: its binding is missing" in other
    agent = scene.page(scene.agent_port)
    assert "client: acme0" in agent
    assert "held by the host sleep" in agent
    assert "Waiting pods" not in agent
    assert "checks them; its page shows what it found." in other
