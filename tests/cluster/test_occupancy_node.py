"""Occupancy on the real node: processes of the host, of pods, and an agent that is put into a container.

`ground` comes before `namespace`, so that the pods are gone before another run on this machine has the devices.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from controllers.occupancy.scanner import Scanner, ScanRules
from controllers.occupancy.sources.generic import GenericSource
from controllers.occupancy.sources.host import Host
from controllers.occupancy.sources.nvidia import NvidiaSource
from controllers.occupancy.tools import Tools
from service.settings import OccupancySettings
from tests.cluster import occupancy
from tests.cluster.occupancy import MERGE, PROFILES, SERVERS, Json, Seen, eventually, running
from tests.lab import Lab, images
from tests.lab.api import Call
from tests.lab.layout import REPOSITORY
from tests.lab.product import Product
from tests.unit.occupancy.ground import ACME, FULL, FUSE, Ground, Programs

pytestmark = [pytest.mark.node, pytest.mark.timeout(300)]

CARD = "GPU-aaaaaaaa-0000-4000-8000-aaaaaaaaaaaa"
INTERVAL_S = 3.0
REGISTER = "hami.io/node-nvidia-register"
SERVER_LABEL = "hami.io/lupine-server"
# The stand-in of nvidia-smi: whoever has the card's device node open, under whatever path, has a row.
SMI = (
    f"case $1 in --query-gpu*) echo '0, {CARD}, H200, 00000000:01:00.0, [N/A]';; *)\n"
    "find /proc/[0-9]*/fd -lname '*/nvidia0' 2>/dev/null | cut -d/ -f3 | sort -u |\n"
    f'while read -r pid; do echo "{CARD}, $pid, some, 1"; done;; esac'
)


@pytest.fixture
def seen(lab: Lab) -> Iterator[Seen]:
    """The real node; nothing of occupancy is left on it."""
    occupancy.install_kinds(lab)
    found = Seen(lab, lab.node_name)
    yield found
    for profile in found.profiles():
        lab.api.ok(Call("DELETE", f"{PROFILES}/{profile}"))
    notes = dict.fromkeys((occupancy.CORDON, "tenure.dev/device-cordon-owned", REGISTER))
    patch: Json = {
        "metadata": {"labels": {occupancy.HOST_HELD: None, SERVER_LABEL: None}, "annotations": notes}
    }
    lab.api.ok(Call("PATCH", f"/api/v1/nodes/{lab.node_name}", patch, MERGE))
    lab.api.request(Call("DELETE", f"{SERVERS}/{lab.node_name}"))


def settings() -> OccupancySettings:
    return OccupancySettings(interval_s=INTERVAL_S)


def scanner(ground: Ground, folder: Path) -> Scanner:
    """An NVIDIA card by the driver's texts and the stand-in, and cards that their device nodes tell of."""
    information = folder / "proc/driver/nvidia/gpus/0000:01:00.0"
    information.mkdir(parents=True)
    (information / "information").write_text(
        f"Model: H200\nGPU UUID: {CARD}\nBus Location: 0000:01:00.0\nDevice Minor: 0\n"
    )
    ground.tool("nvidia-smi", SMI)
    host = Host(folder / "proc", ground.sys, ground.dev)
    nvidia = NvidiaSource(host, Tools([ground.bin], deadline_s=10), deadline_s=5)
    generic = GenericSource(ground.host, ACME, deadline_s=5)
    return Scanner(ground.host, [nvidia, generic], ScanRules())


def pod(namespace: str, name: str, script: str, **container: Any) -> Json:
    main = {"name": "main", "image": images.BUSYBOX, "command": ["sh", "-c", script], **container}
    spec = {"terminationGracePeriodSeconds": 0, "containers": [main]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    }


def start(lab: Lab, manifest: Json) -> Json:
    lab.apply(manifest)
    meta = manifest["metadata"]
    path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
    found: Json = lab.wait_for(path, accept=lambda pod: pod["status"]["phase"] == "Running")
    return found


async def test_a_host_process_on_a_served_card_is_seen_everywhere_and_taken_back(
    lab: Lab, ground: Ground, programs: Programs, seen: Seen, tmp_path: Path
) -> None:
    """Label, profile, metric, cordon and pool, each within an interval; then all of it is gone again."""
    product = Product(lab)
    product.install()
    register = [
        {
            "id": CARD,
            "count": 1,
            "devmem": 143771,
            "devcore": 100,
            "type": "NVIDIA-H200",
            "mode": "remote",
            "health": True,
        }
    ]
    patch: Json = {
        "metadata": {
            "labels": {SERVER_LABEL: ""},
            "annotations": {REGISTER: json.dumps(register), occupancy.CORDON: "GPU-other"},
        }
    }
    lab.api.ok(Call("PATCH", f"/api/v1/nodes/{lab.node_name}", patch, MERGE))
    server = product.start(
        webhook__configuration_name=""
    )  # Nobody calls it here: the pool is what is watched.
    try:
        reasons = _reasons(lab)
        await eventually(lambda: reasons() is not None)
        node = ground.node("nvidia0", FULL)
        async with running(lab, lab.node_name, settings(), scanner=scanner(ground, tmp_path)) as agent:
            card = CARD.lower()
            await eventually(lambda: seen.label() == "0")
            await eventually(lambda: reasons() == [])
            pid = programs.opener(node)
            await eventually(lambda: seen.label() == "1", seconds=2 * INTERVAL_S)
            await eventually(lambda: seen.keys(card).get("healthy") == "false", seconds=INTERVAL_S)
            await eventually(lambda: seen.cordon() == f"GPU-other,{CARD}", seconds=INTERVAL_S)
            await eventually(lambda: "HostHeld" in (reasons() or ()), seconds=INTERVAL_S)
            assert [(h["pid"], h["managed"]) for h in seen.holders(card)] == [(pid, "host")]
            labels = {"component": "tenure-node", "vendor": "nvidia", "model": "H200"}
            assert agent.sample("rm_accel_accelerators_host_held", **labels) == 1

            programs.end(pid)
            await eventually(lambda: seen.label() == "0", seconds=4 * INTERVAL_S)
            await eventually(lambda: seen.keys(card).get("inUse") == "false", seconds=INTERVAL_S)
            await eventually(lambda: seen.cordon() == "GPU-other", seconds=INTERVAL_S)
            await eventually(lambda: reasons() == [], seconds=INTERVAL_S)
            assert "healthy" not in seen.keys(card)
            assert agent.sample("rm_accel_accelerators_host_held", **labels) == 0
    finally:
        lab.components.stop(server.name)


def _reasons(lab: Lab) -> Callable[[], list[str] | None]:
    def read() -> list[str] | None:
        answer = lab.api.request(Call("GET", f"{SERVERS}/{lab.node_name}"))
        cards = answer.json().get("status", {}).get("cards", []) if answer.status == 200 else []
        found: list[str] | None = cards[0].get("reasons", []) if cards else None
        return found

    return read


async def test_a_pod_on_a_card_is_kubernetes_and_named(
    lab: Lab, ground: Ground, namespace: str, seen: Seen, tmp_path: Path
) -> None:
    """Every container has a device of the same number; its path there is its own."""
    ground.node("acme0", FULL)
    ground.node("acme1", FUSE)
    async with running(lab, lab.node_name, settings(), scanner=scanner(ground, tmp_path)) as agent:
        await eventually(lambda: seen.label() == "0")
        started = start(lab, pod(namespace, "train", "exec 3</dev/full; exec sleep 1d"))
        (holder,) = await eventually(lambda: seen.holders("acme0"))
        assert holder["managed"] == "k8s"
        assert holder["pod"] == f"{namespace}/train"
        assert holder["command"] == "busybox"
        keys = seen.keys("acme0")
        assert keys["inUse"] == "true"
        assert not keys.keys() & {"health", "healthy"}
        assert seen.label() == "0"
        (mine,) = agent.agent.standings["acme", "acme0"].verdict.holders
        assert mine.pod_uid == started["metadata"]["uid"]
        assert started["status"]["containerStatuses"][0]["containerID"].endswith(mine.container_id)
        lab.kubectl("delete", "pod", "train", "-n", namespace, "--now")
        await eventually(lambda: seen.keys("acme0").get("inUse") == "false")


async def test_a_host_process_beside_a_pod_makes_the_card_host_held(
    lab: Lab, ground: Ground, namespace: str, programs: Programs, seen: Seen, tmp_path: Path
) -> None:
    node = ground.node("acme0", FULL)
    async with running(lab, lab.node_name, settings(), scanner=scanner(ground, tmp_path)):
        start(lab, pod(namespace, "train", "exec 3</dev/full; exec sleep 1d"))
        await eventually(lambda: [h["managed"] for h in seen.holders("acme0")] == ["k8s"])
        programs.opener(node)
        await eventually(lambda: {h["managed"] for h in seen.holders("acme0")} == {"k8s", "host"})
        assert seen.keys("acme0")["healthy"] == "false"
        assert seen.label() == "1"


def test_an_agent_in_a_container_says_unknown_and_not_free(
    lab: Lab, ground: Ground, namespace: str, programs: Programs
) -> None:
    """The scan runs in the pid and cgroup namespaces of a real container, with that container's /proc."""
    programs.opener(ground.node("acme0", FULL))
    ground.node("acme1", FUSE)
    started = start(lab, pod(namespace, "agent", "exec sleep 1d"))
    pid = _pid_of(started["metadata"]["uid"])
    scan = (
        "import asyncio, json, sys; sys.path.insert(0, sys.argv[1])\n"
        "from service.settings import Settings, OccupancySettings, CardClass\n"
        "from controllers.occupancy import holdings\n"
        "kind = CardClass(vendor='acme', nodes='acme[0-9]+')\n"
        "chosen = Settings(occupancy=OccupancySettings(sys=sys.argv[2], dev=sys.argv[3], cards=(kind,)))\n"
        "found = asyncio.run(holdings.of_node(chosen))\n"
        "print(json.dumps([found.problem, [[c.card, c.state] for c in found.cards]]))\n"
    )
    own_proc = 'mount -t proc proc /proc && exec "$@"'
    enter = [
        "nsenter",
        f"--target={pid}",
        "--pid",
        "--cgroup",
        "--",
        "unshare",
        "--mount",
        "sh",
        "-c",
        own_proc,
        "sh",
    ]
    folders = [str(folder) for folder in (REPOSITORY, ground.sys, ground.dev)]
    ran = subprocess.run(
        [*enter, sys.executable, "-c", scan, *folders],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    problem, cards = json.loads(ran.stdout)
    assert problem == "host processes are not visible (run with hostPID): occupancy not reported"
    assert cards == [["acme0", "unknown"], ["acme1", "unknown"]]


def _pid_of(uid: str) -> int:
    """The container's first process, which is `sleep`."""
    for folder in Path("/proc").iterdir():
        try:
            theirs = folder.name.isdigit() and uid in (folder / "cgroup").read_text()
            if theirs and "sleep" in (folder / "cmdline").read_text():
                return int(folder.name)
        except OSError:
            continue
    raise AssertionError(f"no process of pod {uid}")
