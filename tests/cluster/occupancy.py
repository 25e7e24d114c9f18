"""What tests of occupancy share: a node object, its agent in this process, and what the agent wrote."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from prometheus_client import CollectorRegistry

from controllers.occupancy.agent import OccupancyAgent
from service.kube.client import KubeClient
from service.kube.metrics import KubeMetrics
from service.metrics import MetricSet
from service.settings import KubeSettings, OccupancySettings
from tests.lab.api import Call
from tests.lab.layout import REPOSITORY

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from controllers.occupancy.scanner import Scanner
    from tests.lab import Lab
    from tests.unit.occupancy.ground import Ground

CHART = REPOSITORY / "charts/tenure/files"
PROFILES = "/apis/airm.ai-computing.io/v1alpha1/acceleratorprofiles"
SERVERS = "/apis/tenure.dev/v1alpha1/remoteservers"
HOST_HELD = "airm.ai-computing.io/host-held"
CORDON = "hami.io/device-cordon"
MERGE = "application/merge-patch+json"

Json = dict[str, Any]
# Keys of the profile of a card that a process of the host holds.
HELD = {"health": "busy", "healthy": "false", "inUse": "true"}


def kinds() -> list[Json]:
    """The two custom resources of the chart."""
    names = ("acceleratorprofiles", "remoteservers")
    return [yaml.safe_load((CHART / f"crds/{name}.yaml").read_text("utf-8")) for name in names]


def install_kinds(lab: Lab) -> None:
    """Install them and wait until they are served."""
    lab.apply(*kinds())
    for path in (PROFILES, SERVERS):
        lab.wait_for(path)


def node(lab: Lab, name: str, **metadata: Any) -> Json:
    """A node object without a kubelet."""
    manifest = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, **metadata}}
    made: Json = lab.api.ok(Call("POST", "/api/v1/nodes", manifest))
    return made


def settings(ground: Ground, **more: object) -> OccupancySettings:
    """Of an agent on that host which is quick."""
    quick: dict[str, object] = {"interval_s": 0.5, "resync_s": 1.0}
    return OccupancySettings.model_validate(ground.settings | quick | more)


class Seen:
    """What the cluster says about one node."""

    def __init__(self, lab: Lab, node: str) -> None:
        self._lab = lab
        self.node = node

    def object(self) -> Json:
        found: Json = self._lab.api.ok(Call("GET", f"/api/v1/nodes/{self.node}"))
        return found

    def label(self) -> str | None:
        found: str | None = self.object()["metadata"].get("labels", {}).get(HOST_HELD)
        return found

    def cordon(self) -> str | None:
        found: str | None = self.object()["metadata"].get("annotations", {}).get(CORDON)
        return found

    def profiles(self) -> dict[str, Json]:
        listed = self._lab.api.ok(Call("GET", f"{PROFILES}?fieldSelector=spec.nodeName%3D{self.node}"))
        return {item["metadata"]["name"]: item for item in listed["items"]}

    def keys(self, card: str) -> dict[str, str]:
        found = self.profiles().get(f"{self.node}-{card}")
        extra: dict[str, str] = found["spec"].get("extra", {}) if found else {}
        return extra

    def holders(self, card: str) -> list[Json]:
        found: list[Json] = json.loads(self.keys(card).get("holders", "[]"))
        return found

    def observed(self) -> dict[str, Json]:
        server = self._lab.api.ok(Call("GET", f"{SERVERS}/{self.node}"))
        return {entry["card"]: entry for entry in server.get("spec", {}).get("observed", [])}

    def state(self, card: str) -> str | None:
        found: str | None = self.observed().get(card, {}).get("state")
        return found

    def events(self) -> list[str]:
        listed = self._lab.api.ok(Call("GET", "/apis/events.k8s.io/v1/namespaces/default/events"))
        mine = [e for e in listed["items"] if e.get("regarding", {}).get("name") == self.node]
        return [event["note"] for event in mine if event["reason"] == "CardHostHeld"]


class Running:
    """An agent and its metrics."""

    def __init__(self, agent: OccupancyAgent, registry: CollectorRegistry) -> None:
        self.agent = agent
        self.registry = registry

    def sample(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)


@asynccontextmanager
async def running(
    lab: Lab,
    node: str,
    settings: OccupancySettings,
    *,
    scanner: Scanner | None = None,
    kubeconfig: Path | None = None,
) -> AsyncIterator[Running]:
    """The agent of one node, as the node's process runs it."""
    metrics = MetricSet(CollectorRegistry())
    kube_metrics = KubeMetrics(metrics)
    client = await KubeClient.connect(
        KubeSettings(kubeconfig=kubeconfig or lab.kubeconfig), metrics=kube_metrics
    )
    agent = OccupancyAgent(settings, client, metrics, node=node, kube_metrics=kube_metrics, scanner=scanner)
    tasks = [asyncio.create_task(run(), name=name) for name, run in agent.tasks()]
    try:
        yield Running(agent, metrics.registry)
        for task in tasks:
            assert not task.done(), f"{task.get_name()} ended: {task}"
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task
        await client.close()


async def eventually(check: Callable[[], Any], *, seconds: float = 30.0) -> Any:
    """What `check` answers, as soon as it is true; it may block."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while True:
        found = await asyncio.to_thread(check)
        if found:
            return found
        assert loop.time() < end, "not seen in time"
        await asyncio.sleep(0.1)
