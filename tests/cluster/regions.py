"""What tests of regions on the real node share: the agent, its image of the C worker, and pods with region volumes."""

import io
import json
import sys
import tarfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from controllers.regions.names import ContainerId
from tests.lab import Lab, images
from tests.lab.api import Call
from tests.lab.layout import REPOSITORY
from tests.lab.ports import free_ports
from tests.lab.process import Health, Program

AGENT = "tenure-node"
IMAGE = "lab.local/vgpu-worker:1"
DRIVER = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "CSIDriver",
    "metadata": {"name": "csi.tenure.dev"},
    "spec": {
        "attachRequired": False,
        "podInfoOnMount": True,
        "volumeLifecycleModes": ["Ephemeral"],
        "fsGroupPolicy": "None",
        "requiresRepublish": False,
    },
}
RESTRICTED = {
    "runAsUser": 1000,
    "runAsNonRoot": True,
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
# What the container says at its start: which files it found, and the sampling lock's inode. Then it becomes a worker.
HELLO = (
    "mkdir -p /tmp/w; ln -sfn /tmp/.sm_node /tmp/w/sm_node; ln -sfn /tmp/.vmem_node /tmp/w/vmem_node; "
    "echo found $(ls /tmp/.sm_node /tmp/.vmem_node | grep config) "
    "lock $(stat -c %i /tmp/.sm_node/sm_node.lock 2>/dev/null); "
    "exec vgpu_worker /tmp/w "
)


class Agent:
    """The node's agent as a process of the lab, for the pods of one namespace."""

    def __init__(self, lab: Lab, root: Path, namespace: str) -> None:
        self.root = root
        self._namespace = namespace
        self._lab = lab
        (self._port,) = free_ports(1)
        self._log_start = 0

    def start(self, **settings: str) -> None:
        """Run it until it is ready: the driver is registered with kubelet."""
        env = {
            "TENURE_KUBE__KUBECONFIG": str(self._lab.kubeconfig),
            "TENURE_NODE__NAME": self._lab.node_name,
            "TENURE_HTTP__OPS_HOST": "127.0.0.1",
            "TENURE_HTTP__OPS_PORT": str(self._port),
            "TENURE_HTTP__DRAIN_S": "0",
            "TENURE_REGIONS__ROOT": str(self.root),
            "TENURE_REGIONS__KUBELET_ROOT": str(self._lab.kubelet_folder),
            "TENURE_REGIONS__SWEEP_S": "1",
            "TENURE_REGIONS__LEFTOVER_GRACE_S": "5",
            "PYTHONPATH": str(REPOSITORY),
        } | {f"TENURE_REGIONS__{name.upper()}": value for name, value in settings.items()}
        log = self._lab.log(AGENT)
        self._log_start = log.stat().st_size if log.exists() else 0
        argv = [sys.executable, "-m", "service", "node"]
        health = Health(port=self._port, path="/readyz", tls=False)
        self._lab.components.run(Program(AGENT, argv, env, health=health))

    def kill(self) -> None:
        self._lab.components.kill(AGENT)

    def stop(self) -> None:
        self._lab.components.stop(AGENT)

    def again(self) -> None:
        self._lab.components.start(AGENT)

    def log(self) -> str:
        """What it said since it was started with its settings."""
        return self._lab.log(AGENT).read_bytes()[self._log_start :].decode()

    def mounts(self) -> list[str]:
        """Where the mounts for its pods are on this machine."""
        table = Path("/proc/self/mountinfo").read_text("utf-8").splitlines()
        return [line.split(" ")[4] for line in table if f" tenure:{self._namespace}/" in line]

    def folders(self) -> list[str]:
        """What is under the root."""
        return sorted(path.name for path in self.root.iterdir()) if self.root.exists() else []

    def clean(self) -> bool:
        """No folder and no mount is left."""
        return not self.folders() and not self.mounts()


def worker_layer(worker: Path) -> bytes:
    """Busybox with the C worker beside it."""
    buffer = io.BytesIO(images.busybox_layer())
    with tarfile.open(fileobj=buffer, mode="a") as tar:
        entry = tarfile.TarInfo("bin/vgpu_worker")
        content = worker.read_bytes()
        entry.size, entry.mode = len(content), 0o755
        tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def pod(namespace: str, name: str, worker: str = "map forever", **spec: Any) -> dict[str, Any]:
    """A pod of uid 1000 whose only container has its regions and runs the C worker with these commands."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "containers": [container("main", worker)],
            "volumes": [volume("main")],
            **spec,
        },
    }


def container(name: str, worker: str, **more: Any) -> dict[str, Any]:
    """A container with its two region folders at the places of the vGPU library."""
    return {
        "name": name,
        "image": IMAGE,
        "command": ["sh", "-c", HELLO + worker],
        "securityContext": RESTRICTED,
        "volumeMounts": [
            {"name": f"regions-{name}", "mountPath": "/tmp/.sm_node", "subPath": "sm_node"},
            {"name": f"regions-{name}", "mountPath": "/tmp/.vmem_node", "subPath": "vmem_node"},
        ],
        **more,
    }


def volume(name: str) -> dict[str, Any]:
    """The inline volume that the webhook adds for a container."""
    attributes = {"container": name}
    return {"name": f"regions-{name}", "csi": {"driver": "csi.tenure.dev", "volumeAttributes": attributes}}


def path(namespace: str, name: str = "") -> str:
    return f"/api/v1/namespaces/{namespace}/pods/{name}".rstrip("/")


def is_running(found: Mapping[str, Any]) -> bool:
    statuses = found["status"].get("containerStatuses", ())
    return bool(statuses) and all("running" in status["state"] for status in statuses)


def restarts(found: Mapping[str, Any]) -> int:
    return int(found["status"]["containerStatuses"][0]["restartCount"])


def start(lab: Lab, made: Mapping[str, Any]) -> Any:
    """Create a pod and return it when all its containers run."""
    lab.apply(made)
    meta = made["metadata"]
    return lab.wait_for(path(meta["namespace"], meta["name"]), accept=is_running, seconds=90)


def delete(lab: Lab, namespace: str, name: str) -> None:
    """Delete a pod and return when it is gone."""
    lab.kubectl("delete", "pod", name, "-n", namespace, "--wait=true", "--timeout=90s")


def logs(lab: Lab, namespace: str, name: str, *, previous: bool = False) -> str:
    call = Call("GET", f"{path(namespace, name)}/log" + ("?previous=true" if previous else ""))
    return lab.api.request(call).body.decode()


def host_pids(uid: str, command: str = "vgpu_worker") -> list[int]:
    """Processes of a pod with this command, by the control group that names the pod."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            if uid in (folder / "cgroup").read_text("utf-8") and command in (folder / "comm").read_text(
                "utf-8"
            ):
                found.append(int(folder.name))
        except OSError:
            continue
    return sorted(found)


def eventually(true: Callable[[], object], what: str, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.05)


def container_id(found: Mapping[str, Any], name: str = "main") -> ContainerId:
    return ContainerId(found["metadata"]["uid"], name)


def pretty(thing: object) -> str:
    return json.dumps(thing, indent=1)[:2000]
