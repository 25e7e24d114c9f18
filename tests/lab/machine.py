"""What the node of the lab changes on this machine outside of the checkout, and how each change is undone.

All of it carries a name of the lab's own, but for four folders whose paths kubelet, containerd and the CNI
library compile in, a few kernel settings that kubelet writes, and kube-proxy's nftables tables. What was there
before is written down first, in one file that also says whose node this is: one machine has one.
"""

import ipaddress
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from tests.lab import cgroups
from tests.lab.controlplane import SERVICE_RANGE
from tests.lab.errors import LabError

RUN = Path("/run/tenure-lab")
DATA = Path("/var/lib/tenure-lab")
BRIDGE = "tenure-lab0"
POD_RANGE = "10.213.0.0/16"
BRIDGE_IP = "10.213.0.1"
CNI_PLUGINS = Path("/usr/lib/cni")
CNI_NETWORK = "tenure-lab"

_OWNER = RUN / "owner.json"
_KUBELET_FOLDER = Path("/var/lib/kubelet")  # Of it, only device-plugins is used.
_COMPILED_IN = (
    _KUBELET_FOLDER,
    Path("/var/log/containers"),  # kubelet: links to the logs of containers.
    Path("/var/lib/cni"),  # The CNI library: results of its calls.
    Path("/run/containerd"),  # containerd: sockets of its shims.
)
_KERNEL_SETTINGS = (
    "net/ipv4/ip_forward",  # The bridge plugin turns it on; all others are kubelet's.
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)
_PACKAGES = "runc containernetworking-plugins busybox-static iptables conntrack nftables iproute2"
_PROGRAMS = ("runc", "nft", "ip", "busybox", "conntrack")
_PLUGINS = ("bridge", "host-local", "loopback")
_CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21}
_UNMOUNT_SECONDS = 10.0


class Owner(msgspec.Struct, frozen=True):
    """Whose node this is, and what the machine was like before."""

    state: str
    kernel_settings: dict[str, str]
    new_folders: list[str]


def owner() -> Owner | None:
    try:
        return msgspec.json.decode(_OWNER.read_bytes(), type=Owner)
    except FileNotFoundError:
        return None


def taken() -> str | None:
    """Which other lab has the node of this machine; None when it is to be had."""
    found = owner()
    if found is None or not Path(found.state, "lab.json").exists():
        return None
    return (
        f"the lab in {found.state} has the node, and a machine has one: "
        f"end that lab with `python -m tests.lab down --state {found.state}`"
    )


def missing() -> str | None:
    """Why this machine can have no node of a lab; None when it can have one."""
    for check in (_no_rights, _no_programs, cgroups.missing, _no_kernel_support):
        if reason := check():
            return reason
    if owner() is not None:
        return None  # A lab's node is or was here: what follows is its own.
    if _KUBELET_FOLDER.exists():
        return f"this machine is a Kubernetes node already: {_KUBELET_FOLDER} exists"
    return _used_addresses()


def claim(state: Path) -> None:
    """Become the one node of this machine and make its folders, groups and bridge."""
    if reason := taken():
        raise LabError(reason)
    if left := owner():
        release(Path(left.state))  # Of a lab whose folder somebody deleted.
    folders = [str(path) for path in _COMPILED_IN if not path.exists()]
    settings = {name: _setting(name).read_text() for name in _KERNEL_SETTINGS if _setting(name).exists()}
    RUN.mkdir(parents=True, exist_ok=True)
    record = Owner(state=str(state), kernel_settings=settings, new_folders=folders)
    try:
        with _OWNER.open("xb") as file:
            file.write(msgspec.json.encode(record))
    except FileExistsError:
        raise LabError("another lab became this machine's node just now: end it first") from None
    _unmount_all()
    shutil.rmtree(DATA, ignore_errors=True)  # What a reboot left, which took the record in /run with it.
    DATA.mkdir(parents=True)
    # Mounts that kubelet and CSI drivers make below are seen in pods that ask for it (mountPropagation).
    _run("mount", "--bind", DATA, DATA)
    _run("mount", "--make-shared", DATA)
    cgroups.create()
    _run("ip", "link", "add", BRIDGE, "type", "bridge")
    _run("ip", "address", "add", f"{BRIDGE_IP}/{ipaddress.ip_network(POD_RANGE).prefixlen}", "dev", BRIDGE)
    _run("ip", "link", "set", BRIDGE, "up")
    # Addresses of Services never leave this machine, and reach kube-proxy's rules without a default route.
    _run("ip", "route", "add", SERVICE_RANGE, "dev", BRIDGE)


def release(state: Path) -> None:
    """Undo everything, if this lab has the node. Safe to repeat, and after any crash."""
    found = owner()
    if found is None or found.state != str(state):
        return
    cgroups.end_all()
    _unmount_all()
    for command in (
        ("ip", "link", "delete", BRIDGE),
        ("nft", "delete", "table", "ip", "kube-proxy"),
        ("nft", "delete", "table", "ip6", "kube-proxy"),
    ):
        subprocess.run(command, capture_output=True, check=False)  # Gone already is as good.
    for name, value in found.kernel_settings.items():
        if _setting(name).read_text() != value:
            _setting(name).write_text(value)
    _remove_files(found)
    shutil.rmtree(RUN)  # Last, with the owner's record: until here it can be done again.


def mounts() -> list[Path]:
    """What is mounted in the lab's folders, in the order in which it must be unmounted."""
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    plain = [Path(point.encode().decode("unicode_escape")) for point in points]
    return [
        point
        for point in reversed(plain)
        if RUN in (point, *point.parents) or DATA in (point, *point.parents)
    ]


def _no_rights() -> str | None:
    if os.geteuid() != 0:
        return "a node needs root"
    status = Path("/proc/self/status").read_text()
    effective = int(status.partition("CapEff:")[2].split()[0], 16)
    lacking = [name for name, bit in _CAPABILITIES.items() if not effective >> bit & 1]
    return f"root lacks {' and '.join(lacking)} here" if lacking else None


def _no_programs() -> str | None:
    absent = [name for name in _PROGRAMS if shutil.which(name) is None]
    absent += [str(CNI_PLUGINS / name) for name in _PLUGINS if not (CNI_PLUGINS / name).exists()]
    return f"{', '.join(absent)} not found: install {_PACKAGES}" if absent else None


def _no_kernel_support() -> str | None:
    if "overlay" not in Path("/proc/filesystems").read_text().split():
        return "the kernel has no overlay file system"
    trial = f"lab-try{os.getpid()}"  # At most 15 characters.
    for command in (
        ("ip", "link", "add", trial, "type", "bridge"),
        ("ip", "link", "delete", trial),
        ("nft", "list", "tables"),
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            return f"`{' '.join(command)}` fails here: {done.stderr.strip()}"
    return None


def _used_addresses() -> str | None:
    ranges = [ipaddress.ip_network(text) for text in (POD_RANGE, SERVICE_RANGE)]
    for route in _json("ip", "-json", "-4", "route"):
        if route["dst"] == "default":
            continue
        used = ipaddress.ip_network(route["dst"])
        if any(used.overlaps(own) for own in ranges):
            return f"the addresses {used} of {route['dev']} overlap those of the lab ({', '.join(map(str, ranges))})"
    return None


def _unmount_all() -> None:
    deadline = time.monotonic() + _UNMOUNT_SECONDS
    while points := mounts():
        if time.monotonic() > deadline:
            raise LabError(f"cannot unmount {', '.join(map(str, points))}: see who uses it with `fuser -m`")
        for point in points:
            subprocess.run(["umount", point], capture_output=True, check=False)


def _remove_files(found: Owner) -> None:
    for link in _lab_links(Path("/var/log/containers")):
        link.unlink(missing_ok=True)
    for result in Path("/var/lib/cni/results").glob(f"{CNI_NETWORK}-*"):
        result.unlink(missing_ok=True)
    for folder in found.new_folders:
        shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(DATA, ignore_errors=True)


def _lab_links(folder: Path) -> Iterator[Path]:
    for link in folder.glob("*.log"):
        with suppress(OSError):
            if DATA in link.readlink().parents:
                yield link


def _setting(name: str) -> Path:
    return Path("/proc/sys", name)


def _json(*command: str) -> Any:
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def _run(*command: str | Path) -> None:
    words: Sequence[str] = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise LabError(f"`{' '.join(words)}` failed: {done.stderr.strip()}")
