"""Regions on the real kubelet and container runtime."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import regions
from tests.cluster.regions import Agent, delete, eventually, logs, start
from tests.lab import Lab
from tests.lab.api import Call
from tests.native.worker import build

pytestmark = [pytest.mark.node, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def image(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> None:
    """An image with the C worker, and the driver's object."""
    if lab.node_missing:
        return
    folder = tmp_path_factory.mktemp("image")
    layer = folder / "rootfs.tar"
    layer.write_bytes(regions.worker_layer(build(folder)))
    lab.import_rootfs(regions.IMAGE, layer, command=["sleep", "1d"])
    lab.apply(regions.DRIVER)


@pytest.fixture
def agent(lab: Lab, image: None, namespace: str) -> Iterator[Agent]:
    """The node's agent; nothing of it is left when its test is over."""
    running = Agent(lab, lab.state / "regions" / namespace)
    running.start()
    yield running
    if "tenure-node" in lab.components.states():
        for pod in lab.api.ok(Call("GET", regions.path(namespace)))["items"]:
            delete(lab, namespace, pod["metadata"]["name"])
        eventually(running.clean, f"left: {running.folders()} {running.mounts()}")
        running.stop()


def test_a_pod_without_root_where_pod_security_is_restricted_writes_its_regions_and_leaves_nothing(
    lab: Lab, namespace: str, agent: Agent
) -> None:
    lab.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    pod = start(lab, regions.pod(namespace, "p", "map same 'charge 0 4096' forever"))
    eventually(lambda: "4096" in logs(lab, namespace, "p"), "the worker charges")
    assert logs(lab, namespace, "p").split("\n")[:4] == ["found lock", "ok", "same", "4096"]
    folder = agent.root / f"{pod['metadata']['uid']}_main"
    assert (folder / "vmem_node" / "vmem_node.config").stat().st_uid == 1000
    shown = lab.kubectl("exec", "p", "-n", namespace, "--", "cat", "/proc/self/mountinfo").splitlines()
    flags = {line.split(" ")[4]: set(line.split(" ")[5].split(",")) for line in shown}
    assert all({"nosuid", "nodev"} <= flags[f"/tmp/.{kind}"] for kind in ("sm_node", "vmem_node"))
    delete(lab, namespace, "p")
    eventually(agent.clean, "the folder and all mounts are gone", 10)


def test_the_node_says_that_it_has_the_driver_and_takes_it_back(lab: Lab, agent: Agent) -> None:
    def label() -> str | None:
        node = lab.api.ok(Call("GET", f"/api/v1/nodes/{lab.node_name}"))
        found: str | None = node["metadata"]["labels"].get("tenure.dev/regions")
        return found

    eventually(lambda: label() == "ready", "the node is labelled", 10)
    agent.stop()
    assert label() is None
    agent.again()
    eventually(lambda: label() == "ready", "the node is labelled again", 10)


def test_a_container_killed_by_signal_starts_again_with_fresh_regions(
    lab: Lab, namespace: str, agent: Agent
) -> None:
    pod = start(lab, regions.pod(namespace, "p", "map 'own 0' forever"))
    uid = pod["metadata"]["uid"]
    eventually(lambda: logs(lab, namespace, "p").endswith("ok\nok\n"), "the worker maps")
    lock = (agent.root / f"{uid}_main" / "sm_node" / "sm_node.lock").stat().st_ino
    (worker,) = regions.host_pids(uid)
    os.kill(worker, signal.SIGKILL)
    lab.wait_for(
        regions.path(namespace, "p"), accept=lambda p: regions.restarts(p) == 1 and regions.is_running(p)
    )
    eventually(lambda: "lock" in logs(lab, namespace, "p"), "the worker starts")
    assert logs(lab, namespace, "p").splitlines()[0] == f"found lock {lock}"
    assert Path(agent.root / f"{uid}_main" / "sm_node" / "sm_node.lock").stat().st_ino == lock
