"""A lab with a node whose programs were all killed is removed to the last trace, and can be had again."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab import Lab, cgroups, images, machine
from tests.lab.layout import REPOSITORY
from tests.lab.plugin import require_node

MACHINE_FOLDERS = [
    Path(p) for p in ("/var/lib/kubelet", "/var/lib/cni", "/var/log/containers", "/run/containerd")
]


@pytest.fixture
def own_lab() -> Iterator[Lab]:
    lab = Lab(REPOSITORY / ".lab" / "crash-test")
    lab.down()
    yield lab
    lab.down()


@pytest.mark.own_node
@pytest.mark.timeout(300)  # Two clusters with a node are started, and one is taken to pieces.
def test_after_a_crash_of_everything_down_leaves_no_trace_and_up_works(own_lab: Lab) -> None:
    require_node(machine.missing() or machine.taken())
    before = traces()
    own_lab.up(node=True)
    assert traces() != before
    own_lab.kubectl("run", "p", f"--image={images.BUSYBOX}", "--", "sleep", "1d")
    own_lab.kubectl("wait", "--for=condition=Ready", "pod/p", "--timeout=60s")

    for state in own_lab.components.states().values():
        os.kill(int(state.removeprefix("running (pid ").removesuffix(")")), signal.SIGKILL)
    while set(own_lab.components.states().values()) != {"dead"}:  # The kernel takes its time.
        time.sleep(0.05)
    own_lab.down()
    own_lab.down()
    assert traces() == before
    assert [path.name for path in own_lab.state.iterdir()] == ["logs"]

    own_lab.up(node=True)
    assert own_lab.node_missing is None
    own_lab.down()
    assert traces() == before


def traces() -> dict[str, object]:
    """Everything outside of the checkout that a lab with a node changes, and its processes."""
    return {
        "mounts": [str(point) for point in machine.mounts()],
        "groups": [str(group) for mount in cgroups.mounts() for group in mount.glob(f"{cgroups.NAME}*")],
        "links": output("ip", "-brief", "link").count("tenure")
        + output("ip", "-brief", "link").count("veth"),
        "tables": output("nft", "list", "tables"),
        "folders": [path for path in (machine.RUN, machine.DATA, *MACHINE_FOLDERS) if path.exists()],
        "settings": [Path("/proc/sys", name).read_text() for name in ("net/ipv4/ip_forward", "kernel/panic")],
        "processes": processes(str(machine.RUN)) + processes("/crash-test/"),
    }


def output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def processes(word: str) -> list[int]:
    found = []
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = command.read_bytes()
        except OSError:
            continue
        if word.encode() in text and b"pytest" not in text:
            found.append(int(command.parent.name))
    return found
