"""Regions on the real kubelet and container runtime."""

import os
import random
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.cluster import device_plugin, regions
from tests.cluster.device_plugin import DevicePlugin
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
    running = Agent(lab, lab.state / "regions" / namespace, namespace)
    running.start()
    try:
        yield running
        for pod in lab.api.ok(Call("GET", regions.path(namespace)))["items"]:
            delete(lab, namespace, pod["metadata"]["name"])
        eventually(running.clean, "nothing is left", 150)
    finally:
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


@pytest.mark.stress
def test_fifty_containers_killed_at_once_all_start_again_with_fresh_regions(
    lab: Lab, namespace: str, agent: Agent
) -> None:
    names = [f"p{number}" for number in range(50)]
    lab.apply(*(regions.pod(namespace, name, "map 'own 0' forever") for name in names))
    uids = running(lab, namespace, len(names))
    eventually(lambda: all(logs(lab, namespace, name).endswith("ok\nok\n") for name in names), "all map", 120)
    lock = {
        name: (agent.root / f"{uids[name]}_main" / "sm_node" / "sm_node.lock").stat().st_ino for name in names
    }
    for name in random.Random(50).sample(names, len(names)):
        (worker,) = regions.host_pids(uids[name])
        os.kill(worker, signal.SIGKILL)
    lab.wait_for(
        regions.path(namespace),
        accept=lambda found: all(regions.restarts(p) == 1 and regions.is_running(p) for p in found["items"]),
        seconds=240,
    )
    eventually(lambda: all("lock" in logs(lab, namespace, name) for name in names), "all start again", 120)
    said = {name: logs(lab, namespace, name).splitlines()[0] for name in names}
    assert said == {name: f"found lock {lock[name]}" for name in names}


def test_processes_that_come_and_go_in_a_living_container_are_never_on_two_inodes(
    lab: Lab, namespace: str, agent: Agent
) -> None:
    agent.stop()
    agent.start(sweep_s="0.2")
    start(lab, regions.pod(namespace, "p", "'supervise 400' forever"))
    eventually(lambda: "orphans" in logs(lab, namespace, "p"), "400 children came and went", 240)
    assert "orphans 0" in logs(lab, namespace, "p")


def test_kubelet_restarts_leave_one_mount_and_every_file(lab: Lab, namespace: str, agent: Agent) -> None:
    pod = start(lab, regions.pod(namespace, "p", "map 'charge 0 4096' forever"))
    folder = agent.root / f"{pod['metadata']['uid']}_main"
    eventually(lambda: "4096" in logs(lab, namespace, "p"), "the worker charges")
    mounts = agent.mounts()
    file = (folder / "vmem_node" / "vmem_node.config").stat()
    for restart in (1, 2):
        lab.components.restart("kubelet")
        eventually(partial(was_published, agent, restart + 1), "published again", 120)
        assert agent.mounts() == mounts
        after = (folder / "vmem_node" / "vmem_node.config").stat()
        assert (after.st_ino, after.st_mtime_ns) == (file.st_ino, file.st_mtime_ns)
    delete(lab, namespace, "p")
    eventually(agent.clean, "nothing is left")


def test_an_agent_that_is_killed_while_pods_come_and_go_leaves_nothing(
    lab: Lab, namespace: str, agent: Agent
) -> None:
    for round_ in range(5):
        names = [f"p{round_}-{number}" for number in range(4)]
        kill_at_change(agent, partial(create, lab, namespace, names))
        running(lab, namespace, len(names))
        kill_at_change(agent, partial(lab.kubectl, "delete", "pod", "-n", namespace, "--wait=false", *names))
        # Kubelet tries a failed call again after up to two minutes.
        eventually(
            lambda: not lab.api.ok(Call("GET", regions.path(namespace)))["items"], "all pods ended", 150
        )
    eventually(agent.clean, "nothing is left")


def test_an_agent_that_leaves_names_the_pods_that_need_it_and_lets_them_end(
    lab: Lab, namespace: str, agent: Agent
) -> None:
    start(lab, regions.pod(namespace, "here"))
    agent.stop()
    assert f"{namespace}/here" in next(line for line in agent.log().splitlines() if "leaving while" in line)
    agent.start(unpublish_only="true")
    lab.apply(regions.pod(namespace, "late"))
    eventually(
        lambda: "it makes no new region volumes here" in events(lab, namespace), "the late pod is told why"
    )
    node = lab.api.ok(Call("GET", f"/api/v1/nodes/{lab.node_name}"))
    assert "tenure.dev/regions" not in node["metadata"]["labels"]
    delete(lab, namespace, "here")
    delete(lab, namespace, "late")
    eventually(agent.clean, "nothing is left")


def test_folders_of_pods_that_are_gone_go_and_all_others_stay(lab: Lab, namespace: str, agent: Agent) -> None:
    gone = agent.root / "11111111-0000-4000-8000-000000000001_main"
    (gone / "config").mkdir(parents=True)
    (gone / "config" / "vgpu.config").touch()
    stay = [agent.root / "watcher", agent.root / "checkpoints", agent.root / "my_folder"]
    pod = start(lab, regions.pod(namespace, "p"))
    for folder in stay:
        folder.mkdir()
    eventually(lambda: not gone.exists(), "the folder of a pod that is gone is removed", 30)
    assert set(agent.folders()) == {f"{pod['metadata']['uid']}_main", *(folder.name for folder in stay)}
    for folder in stay:
        folder.rmdir()


def test_an_api_server_that_is_away_removes_nothing(lab: Lab, namespace: str, agent: Agent) -> None:
    lab.components.kill("kube-apiserver")
    try:
        gone = agent.root / "11111111-0000-4000-8000-000000000002_main"
        gone.mkdir(parents=True)
        eventually(lambda: "sweep ended early" in agent.log(), "the agent asks", 60)
        assert gone.exists()
    finally:
        lab.components.start("kube-apiserver")
    eventually(lambda: not gone.exists(), "the folder goes when the API server is back", 60)


def test_beside_a_device_plugin_that_mounts_the_same_folders_both_see_the_same_files(
    lab: Lab, namespace: str, agent: Agent, tmp_path: Path
) -> None:
    def folder() -> str:
        (pod,) = lab.api.ok(Call("GET", regions.path(namespace)))["items"]
        return f"{pod['metadata']['uid']}_main"

    plugin = DevicePlugin(agent.root, tmp_path, folder)
    plugin.start()
    node = f"/api/v1/nodes/{lab.node_name}"
    lab.wait_for(node, accept=lambda found: found["status"]["allocatable"].get(device_plugin.RESOURCE) == "1")
    made = regions.pod(namespace, "p", "map same 'charge 0 4096' forever")
    made["spec"]["containers"][0]["resources"] = {"limits": {device_plugin.RESOURCE: "1"}}
    start(lab, made)
    eventually(lambda: "4096" in logs(lab, namespace, "p"), "the worker charges")
    host = agent.root / folder()
    inside = lab.kubectl(
        "exec", "p", "-n", namespace, "--", "stat", "-c", "%i", "/tmp/.vmem_node/vmem_node.config"
    )
    assert int(inside) == (host / "vmem_node" / "vmem_node.config").stat().st_ino
    shown = lab.kubectl("exec", "p", "-n", namespace, "--", "cat", "/proc/self/mountinfo").splitlines()
    assert sum(" /tmp/.vmem_node " in line for line in shown) == 2  # the plugin's, and ours on top of it
    (worker,) = regions.host_pids(host.name.removesuffix("_main"))
    os.kill(worker, signal.SIGKILL)
    lab.wait_for(
        regions.path(namespace, "p"), accept=lambda p: regions.restarts(p) == 1 and regions.is_running(p)
    )
    eventually(lambda: "4096" in logs(lab, namespace, "p"), "the worker charges again")
    assert logs(lab, namespace, "p").startswith("found lock")
    assert plugin.calls == ["Allocate", "PreStartContainer", "PreStartContainer"]
    assert (host / "config" / "vgpu.config").exists()
    delete(lab, namespace, "p")
    eventually(agent.clean, "the plugin's folder goes with its pod")
    plugin.stop()


def was_published(agent: Agent, times: int) -> bool:
    return agent.log().count('"volume call","method":"NodePublishVolume"') >= times


def running(lab: Lab, namespace: str, number: int) -> dict[str, str]:
    """Wait until so many pods run; their uids by name."""
    found = lab.wait_for(
        regions.path(namespace),
        accept=lambda found: len([p for p in found["items"] if regions.is_running(p)]) == number,
        seconds=300,
    )
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in found["items"]}


def create(lab: Lab, namespace: str, names: Iterable[str]) -> None:
    lab.apply(*(regions.pod(namespace, name) for name in names))


def kill_at_change(agent: Agent, cause: Callable[[], object]) -> None:
    """Kill the agent in the middle of a call: as soon as the first mount has come or gone. Then start it again."""
    before = agent.mounts()
    cause()
    while agent.mounts() == before:
        time.sleep(0.0005)
    agent.kill()
    agent.again()


def events(lab: Lab, namespace: str) -> str:
    found = lab.api.ok(Call("GET", f"/api/v1/namespaces/{namespace}/events"))["items"]
    return "\n".join(event.get("message", "") for event in found)
