"""A cluster with Tenure and Debian's Prometheus, which troubles (in `troubles` and `bad_replica`) are brought to."""

import html
import json
import os
import re
import sys
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from service import names
from tests.lab import Lab
from tests.lab.api import Call
from tests.lab.layout import REPOSITORY
from tests.lab.ports import free_ports
from tests.lab.process import Health, Program
from tests.lab.product import Product, Replica
from tests.lab.prometheus import Prometheus
from tests.unit.occupancy.ground import Ground

ALERTS = REPOSITORY / "charts" / "tenure" / "files" / "alerts.yaml"
PODS = "/api/v1/namespaces/default/pods"
MERGE = "application/merge-patch+json"
REPLICAS = ("tenure-0", "tenure-1", "tenure-2")
AGENT = "tenure-node"


@dataclass
class Scene:
    """The cluster with Tenure and Prometheus in it, and which alerts have fired so far."""

    lab: Lab
    product: Product
    prometheus: Prometheus
    folder: Path
    replicas: dict[str, Replica] = field(default_factory=dict)
    agent_port: int = 0
    fired: set[str] = field(default_factory=set)

    def watch(self) -> None:
        """Start Prometheus, with the ports of all that will come: nothing of it runs yet."""
        self.replicas = {name: self.product.prepare(name) for name in REPLICAS}
        (self.agent_port,) = free_ports(1)
        targets = {name: f"127.0.0.1:{replica.ops}" for name, replica in self.replicas.items()}
        self.prometheus.start(targets | {AGENT: f"127.0.0.1:{self.agent_port}"}, impatient_rules())

    def fires(self, *alerts: str) -> None:
        for alert in alerts:
            self.prometheus.until(lambda: alert in self.prometheus.firing(), f"{alert} fires")  # noqa: B023
        self.fired.update(alerts)

    def quiet(self, *alerts: str) -> None:
        """None of these fires, or not any more after a restart: so what follows is what makes it fire."""
        self.prometheus.until(lambda: not self.prometheus.firing() & set(alerts), f"{alerts} are quiet")

    def pod(self, name: str, *, cards: int = 0, memory: int = 0, **more: Any) -> dict[str, Any]:
        """`memory` in MiB, of each card."""
        asked = {names.REMOTE_GPU: cards, names.REMOTE_GPU_MEMORY: memory}
        limits = {resource: str(amount) for resource, amount in asked.items() if amount}
        container = {"name": "main", "image": "lab.local/busybox:1", "resources": {"limits": limits}}
        annotations = more.pop("annotations", {})
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "default", "annotations": annotations},
            "spec": {"containers": [container], "terminationGracePeriodSeconds": 0, **more},
        }

    def create(self, pod: dict[str, Any]) -> int:
        return self.lab.api.request(Call("POST", PODS, pod)).status

    def patch(self, path: str, body: dict[str, Any], kind: str = MERGE) -> Any:
        return self.lab.api.ok(Call("PATCH", path, body, kind))

    def page(self, port: int) -> str:
        """Text of the status page of whoever has this ops port."""
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10) as answer:
            return " ".join(re.sub(r"<[^>]*>", " ", html.unescape(answer.read().decode())).split())

    def start_agent(self, name: str, *, node: str, port: int, ground: Ground, **settings: str) -> None:
        """Run the agent of a node that has the cards of this ground. Settings as `section__field="value"`."""
        env = {
            "TENURE_KUBE__KUBECONFIG": str(self.lab.kubeconfig),
            "TENURE_NODE__NAME": node,
            "TENURE_HTTP__OPS_HOST": "127.0.0.1",
            "TENURE_HTTP__OPS_PORT": str(port),
            "TENURE_HTTP__DRAIN_S": "0",
            "TENURE_OCCUPANCY": json.dumps(ground.settings),
            "TENURE_OCCUPANCY__INTERVAL_S": "1",
            "PYTHONPATH": str(REPOSITORY),
            "PATH": os.environ["PATH"],
        }
        env |= {f"TENURE_{key.upper()}": value for key, value in settings.items()}
        argv = [sys.executable, "-m", "service", "node"]
        health = Health(port=port, path="/livez", tls=False)
        self.lab.components.run(Program(name, argv, env, health=health))


def impatient_rules() -> dict[str, Any]:
    """The chart's rules without the time for which something must be so, and with ten seconds for ten minutes."""
    rules: dict[str, Any] = yaml.safe_load(ALERTS.read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            rule.pop("for", None)
            rule["expr"] = re.sub(r"\b10m\b", "10s", rule["expr"])
    return rules
