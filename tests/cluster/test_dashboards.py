"""Dashboards and alerts against the real thing: Debian's Prometheus scrapes Tenure and the API server of a cluster to
which what the alerts are about is done, one after the other. Every panel then has data, and every alert that can be
brought about in seconds has fired; those that take longer fire in tests/unit/chart/alerts_test.yaml."""

import html
import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from service import names
from tests.lab import Lab
from tests.lab.api import Call
from tests.lab.errors import LabError
from tests.lab.layout import REPOSITORY
from tests.lab.plugin import require_program
from tests.lab.ports import free_ports
from tests.lab.process import Health, Program
from tests.lab.product import Product, Replica
from tests.lab.prometheus import Prometheus
from tests.lab.simulated import SimulatedNode
from tests.unit.occupancy.ground import FULL, ZERO, Ground, devices_to_oneself
from webhook.guard import Policy

# A cluster of its own starts, and eleven things are broken in it.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

FILES = REPOSITORY / "charts" / "tenure" / "files"
ALERTS = FILES / "alerts.yaml"
BOARDS = FILES / "dashboards"
REGISTERS = json.loads((REPOSITORY / "tests/fixtures/hami/node-nvidia-register.json").read_text())
LEDGER = REPOSITORY / "tests/fixtures/vmem_node.v1.config"
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/tenure"
BINDINGS = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
ROLE = "/apis/rbac.authorization.k8s.io/v1/clusterroles/tenure-server"
PODS = "/api/v1/namespaces/default/pods"
MERGE = "application/merge-patch+json"
# The whole scene: what somebody sees who opens the dashboards after it.
RATE_INTERVAL = "5m"

# Without their `for`, these fire within seconds. The others need ten minutes, or a fault that Tenure does not have.
LIVE = {
    "TenureAbsent",
    "TenureNoLeader",
    "TenureNotReady",
    "TenureCertificateEndsSoon",
    "TenureCertificateNotTrusted",
    "TenureGuardPolicyMissing",
    "TenureGuardPolicyUnknown",
    "TenureAllocationNotBelieved",
    "TenureWebhookFailsOpen",
    "TenureWebhookErrors",
    "TenurePodsWaitBesideFreeCards",
    "TenureOccupancyUnknown",
}


@dataclass
class Scene:
    """The cluster with Tenure and Prometheus in it, and which alerts have fired so far."""

    lab: Lab
    product: Product
    prometheus: Prometheus
    folder: Path
    targets: dict[str, str] = field(default_factory=dict)
    """Where each job of Prometheus is scraped."""
    fired: set[str] = field(default_factory=set)

    def fires(self, alert: str) -> None:
        self.prometheus.until(lambda: alert in self.prometheus.firing(), f"{alert} fires")
        self.fired.add(alert)

    def quiet(self, *alerts: str) -> None:
        """None of these fires, or not any more after a restart: so what follows is what makes it fire."""
        self.prometheus.until(lambda: not self.prometheus.firing() & set(alerts), f"{alerts} are quiet")

    def pod(self, name: str, *, cards: int = 0, **more: Any) -> dict[str, Any]:
        resources = {"limits": {names.REMOTE_GPU: str(cards)}} if cards else {}
        container = {"name": "main", "image": "lab.local/busybox:1", "resources": resources}
        annotations = more.pop("annotations", {})
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "default", "annotations": annotations},
            "spec": {"containers": [container], "terminationGracePeriodSeconds": 0, **more},
        }

    def page(self, job: str) -> str:
        """Text of a server's status page."""
        with urllib.request.urlopen(f"http://{self.targets[job]}/", timeout=10) as answer:
            return " ".join(re.sub(r"<[^>]*>", " ", html.unescape(answer.read().decode())).split())

    def create(self, pod: dict[str, Any]) -> int:
        return self.lab.api.request(Call("POST", PODS, pod)).status

    def patch(self, path: str, body: dict[str, Any], kind: str = MERGE) -> Any:
        return self.lab.api.ok(Call("PATCH", path, body, kind))


@pytest.fixture(scope="module")
def scene(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    program = require_program("prometheus")
    folder = tmp_path_factory.mktemp("dashboards")
    own = Lab(
        lab.state / "dashboards"
    )  # Within the session's, so that it goes with a session that was killed.
    with ExitStack() as stack:
        stack.callback(own.down)
        own.up()
        stack.enter_context(devices_to_oneself())
        made = Scene(own, Product(own), Prometheus(own, program, folder / "prometheus"), folder)
        _play(made, stack)
        yield made


def _play(scene: Scene, stack: ExitStack) -> None:
    replicas = _nobody_is_there(scene)
    _servers_come(scene, replicas)
    _pods_come(scene)
    _an_agent_comes(scene, stack)
    _guard_goes(scene)
    _rights_go(scene)
    _webhook_goes(scene, replicas[0])
    time.sleep(3)  # Three scrapes of everything as it is now.


def _rules() -> dict[str, Any]:
    """The chart's rules without the time for which something must be so."""
    rules: dict[str, Any] = yaml.safe_load(ALERTS.read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            rule.pop("for", None)
    return rules


def _nobody_is_there(scene: Scene) -> tuple[Replica, Replica]:
    product = scene.product
    product.install()
    first, second = product.prepare("tenure-0"), product.prepare("tenure-1")
    (agent,) = free_ports(1)
    scene.targets |= {
        "tenure-0": f"127.0.0.1:{first.ops}",
        "tenure-1": f"127.0.0.1:{second.ops}",
        "tenure-node": f"127.0.0.1:{agent}",
    }
    scene.prometheus.start(scene.targets, _rules())
    scene.fires("TenureAbsent")
    return first, second


def _servers_come(scene: Scene, replicas: tuple[Replica, Replica]) -> None:
    """One leads; the other competes for a lease that it may not have, with a leaf that is short of life."""
    first, second = replicas
    scene.product.register_webhook(first)
    nodes = [
        ("gpu-0", "198.19.2.1", "json-remote-h200"),
        ("gpu-1", "198.19.2.2", "json-remote-a100-four-cards"),
    ]
    scene.lab.simulate_nodes(
        [
            *(
                SimulatedNode(
                    name=name,
                    address=address,
                    labels={names.LUPINE_SERVER_LABEL: ""},
                    annotations={names.NODE_REGISTER: REGISTERS[register]},
                )
                for name, address, register in nodes
            ),
            SimulatedNode(name="client"),
        ]
    )
    scene.product.run(first, claims__interval_s="5")
    scene.prometheus.until(
        lambda: not scene.prometheus.firing() - {"TenureNotReady"}, "a healthy server is quiet"
    )
    scene.product.start_scheduler(first)
    scene.product.run(second, lease__name="other", certs__leaf_lifetime_s="3600")
    scene.fires("TenureNoLeader")
    scene.fires("TenureCertificateEndsSoon")


def _pods_come(scene: Scene) -> None:
    """One runs with a card, one waits for more than there are, one brings forged keys, one asks for nonsense."""
    assert scene.create(scene.pod("runs", cards=1)) == 201
    scene.lab.wait_for(f"{PODS}/runs", accept=lambda pod: bool(pod["spec"].get("nodeName")))
    assert scene.create(scene.pod("waits", cards=5)) == 201
    assert scene.create(scene.pod("forges", annotations={names.LUPINE_ENDPOINT: "203.0.113.9:1"})) == 201
    assert scene.create(scene.pod("asks-nonsense", cards=5000)) == 403
    claims = [{"name": "npu", "resourceClaimTemplateName": "not-there"}]
    assert scene.create(scene.pod("claims", resourceClaims=claims)) == 201


def _an_agent_comes(scene: Scene, stack: ExitStack) -> None:
    """A node agent with a card that a process holds, one that is not known, and a container with a ledger."""
    ground = Ground(scene.folder / "host")
    held = ground.node("acme0", FULL)
    ground.rngd(0, "0000:03:00.0", ZERO)  # Its vendor's tool is missing.
    stack.enter_context(_holding(held))
    regions = scene.folder / "regions"
    stack.enter_context(_region(scene, regions))
    cards = [{"vendor": "acme", "nodes": "acme[0-9]+"}]
    port = scene.targets["tenure-node"].rpartition(":")[2]
    env = {
        "TENURE_KUBE__KUBECONFIG": str(scene.lab.kubeconfig),
        "TENURE_NODE__NAME": "client",
        "TENURE_HTTP__OPS_HOST": "127.0.0.1",
        "TENURE_HTTP__OPS_PORT": port,
        "TENURE_HTTP__DRAIN_S": "0",
        "TENURE_OCCUPANCY__CARDS": json.dumps(cards),
        "TENURE_OCCUPANCY__DEV": str(ground.dev),
        "TENURE_OCCUPANCY__SYS": str(ground.sys),
        "TENURE_OCCUPANCY__TOOL_FOLDERS": json.dumps([str(ground.bin)]),
        "TENURE_OCCUPANCY__INTERVAL_S": "1",
        "TENURE_REGIONS__BACKEND": "hostPath",
        "TENURE_REGIONS__ROOT": str(regions),
        "TENURE_REGIONS__SWEEP_S": "1",
        "PYTHONPATH": str(REPOSITORY),
        "PATH": os.environ["PATH"],
    }
    health = Health(port=int(port), path="/livez", tls=False)
    scene.lab.components.run(
        Program("tenure-node", [sys.executable, "-m", "service", "node"], env, health=health)
    )
    scene.fires("TenureOccupancyUnknown")


@contextmanager
def _holding(card: Path) -> Iterator[None]:
    with card.open("rb") as opened:
        holder = subprocess.Popen(["sleep", "600"], stdin=opened)
    try:
        yield
    finally:
        holder.kill()
        holder.wait()


@contextmanager
def _region(scene: Scene, root: Path) -> Iterator[None]:
    """A region folder of a pod's container, and a process that has it mounted, as the container would."""
    uid = scene.lab.wait_for(f"{PODS}/runs")["metadata"]["uid"]
    leaf = root / f"{uid}_main" / "vmem_node"
    leaf.mkdir(parents=True)
    (leaf / LEDGER.name.replace(".v1", "")).write_bytes(LEDGER.read_bytes())
    command = ["unshare", "--mount", "sh", "-c", f"mount --bind {leaf} /mnt && exec sleep 600"]
    container = subprocess.Popen(command)
    try:
        yield
    finally:
        container.kill()
        container.wait()


def _guard_goes(scene: Scene) -> None:
    """Its bindings are deleted; whoever may write pods then writes an allocation."""
    scene.quiet("TenureGuardPolicyMissing", "TenureAllocationNotBelieved")
    for name in ("tenure-gate", "tenure-decision-keys"):
        scene.lab.api.ok(Call("DELETE", f"{BINDINGS}/{name}"))
    scene.lab.components.restart("tenure-1")  # It looks at its start, and then once a minute.
    scene.fires("TenureGuardPolicyMissing")
    forged = "gpu-0/GPU-forged,NVIDIA,143771,100:;"
    with_retries(
        lambda: scene.patch(f"{PODS}/runs", {"metadata": {"annotations": {names.DEVICES_ALLOCATED: forged}}})
    )
    scene.fires("TenureAllocationNotBelieved")


def with_retries(act: Any, seconds: float = 30.0) -> None:
    """Policies are taken away in the API server some moments after their object."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            act()
        except LabError:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        else:
            return


def _rights_go(scene: Scene) -> None:
    """The server may write no RemoteServer and look at no policy any more: cards are free and stay so."""
    scene.quiet("TenurePodsWaitBesideFreeCards", "TenureGuardPolicyUnknown")
    role = scene.lab.api.ok(Call("GET", ROLE))
    kept = [
        rule
        for rule in role["rules"]
        if "remoteservers/status" not in rule["resources"]
        and "validatingadmissionpolicies" not in rule["resources"]
    ]
    scene.patch(ROLE, {"rules": kept})
    assert scene.create(scene.pod("beside", cards=1)) == 201
    scene.fires("TenurePodsWaitBesideFreeCards")
    scene.lab.components.restart("tenure-1")
    scene.fires("TenureGuardPolicyUnknown")
    scene.patch(ROLE, {"rules": role["rules"]})
    scene.lab.components.restart("tenure-1")
    sees = 'tenure_guard_policy_in_force{job="tenure-1"} == 0'
    scene.prometheus.until(lambda: len(scene.prometheus.query(sees)) == len(Policy), "it may look again")


def _webhook_goes(scene: Scene, replica: Replica) -> None:
    """Calls fail, first with one failure policy and then with the other; then the configuration itself is gone."""
    scene.quiet("TenureWebhookFailsOpen", "TenureWebhookErrors", "TenureCertificateNotTrusted")
    found = scene.lab.api.ok(Call("GET", WEBHOOKS))
    nowhere = {
        "url": "https://127.0.0.1:1/admission/pods",
        "caBundle": found["webhooks"][0]["clientConfig"]["caBundle"],
    }
    for policy, status, alert in (
        ("Ignore", 201, "TenureWebhookFailsOpen"),
        ("Fail", 500, "TenureWebhookErrors"),
    ):
        hook = found["webhooks"][0] | {"clientConfig": nowhere, "failurePolicy": policy}
        scene.patch(WEBHOOKS, {"webhooks": [hook]})
        _until_created(scene, f"to-{policy.lower()}", status, alert)
    scene.lab.api.ok(Call("DELETE", WEBHOOKS))
    scene.fires("TenureCertificateNotTrusted")
    scene.fires("TenureNotReady")


def _until_created(scene: Scene, name: str, status: int, alert: str) -> None:
    """Ask for cards until the API server knows the changed configuration."""
    for number in range(100):
        if (
            scene.create(scene.pod(f"{name}-{number}", cards=1)) == status
            and alert in scene.prometheus.firing()
        ):
            break
        time.sleep(0.2)
    scene.fires(alert)


def panels() -> list[Any]:
    found = []
    for path in sorted(BOARDS.glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel.get("targets", ()):
                name = f"{path.stem}: {panel['title']} {target['refId']}"
                found.append(pytest.param(target["expr"], id=name))
    return found


def test_every_alert_that_can_be_brought_about_in_seconds_fires(scene: Scene) -> None:
    assert scene.fired == LIVE


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
    for group in yaml.safe_load(ALERTS.read_text())["groups"]:
        for rule in group["rules"]:
            scene.prometheus.query(rule["expr"])


def test_the_status_page_shows_what_was_done(scene: Scene) -> None:
    leader, other = scene.page("tenure-0"), scene.page("tenure-1")
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
    agent = scene.page("tenure-node")
    assert "client: acme0" in agent
    assert "held by the host sleep" in agent
    assert "Waiting pods" not in agent
    assert "checks them; its page shows what it found." in other
