"""A cluster with a real node on which the chart is installed as people install it, and pods that use it."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Self

from service import names
from tests.lab import Lab, LabError, images, product_images
from tests.lab.api import Call
from tests.lab.layout import REPOSITORY
from tests.lab.product import CHART, NAMESPACE
from tests.lab.simulated import SimulatedNode

Json = dict[str, Any]

RELEASE: Final = "tenure"
SECONDS: Final = 120.0
# Helm's own patience, and ours with Helm: two Python programs and two schedulers start on two cores.
HELM_S: Final = 300.0
PAUSE_S: Final = 0.05
_REGISTERS: Final = REPOSITORY / "tests" / "fixtures" / "hami" / "node-nvidia-register.json"
_TAINT: Final = {"key": "example.com/gpu", "effect": "NoSchedule"}
PODS: Final = "/api/v1/namespaces/default/pods"


class World:
    """The lab, Helm, and pods in namespace default."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.regions = lab.kubelet_folder.parent / "regions"

    @classmethod
    @contextmanager
    def running(cls, name: str) -> Iterator[Self]:
        """A cluster with the images under the chart's default names, and two nodes that serve their cards."""
        archives = [product_images.product(), product_images.scheduler()]
        lab = Lab(REPOSITORY / ".lab" / name)
        lab.down()
        lab.up(node=True)
        try:
            if lab.node_missing:
                raise LabError(f"the chart needs the lab's real node: {lab.node_missing}")
            for archive in archives:
                lab.import_image(archive)
            registers = json.loads(_REGISTERS.read_text())
            keys = ("json-remote-h200", "json-remote-a100-four-cards")
            lab.simulate_nodes(_server(number, registers[key]) for number, key in enumerate(keys, 1))
            yield cls(lab)
        finally:
            lab.down()

    def helm(self, *words: str) -> str:
        """What Helm prints. Raises LabError with what it complains about."""
        return self.lab.helm(*words, "--namespace", NAMESPACE, seconds=HELM_S + 30)

    def install(self, *more: str) -> str:
        """With the defaults, but for the two folders of the lab's node, whose kubelet has another root."""
        folders = f"regions.kubeletRoot={self.lab.kubelet_folder},regions.root={self.regions}"
        words = ("--create-namespace", "--wait", f"--timeout={HELM_S:.0f}s", "--set", folders)
        return self.helm("install", RELEASE, str(CHART), *words, *more)

    def pods(self, component: str) -> list[Json]:
        """The release's pods of a component on the real node; what runs on simulated ones runs nothing."""
        selector = f"app.kubernetes.io/instance={RELEASE},app.kubernetes.io/component={component}"
        found = self.lab.api.ok(Call("GET", f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector={selector}"))[
            "items"
        ]
        return [
            one
            for one in found
            if one["spec"].get("nodeName") == self.lab.node_name
            and "deletionTimestamp" not in one["metadata"]
        ]

    def create(self, pod: Json) -> Json:
        """Create a pod in namespace default."""
        made: Json = self.lab.api.ok(Call("POST", PODS, pod))
        return made

    def delete(self, name: str) -> None:
        """Delete a pod and return when it is gone."""
        self.lab.kubectl("delete", "pod", name, "--wait=true", "--timeout=50s")

    def until(self, name: str, accept: Callable[[Json], bool]) -> Json:
        """The pod as soon as it is as wanted. Raises LabError."""
        found: Json = self.lab.wait_for(f"{PODS}/{name}", accept=accept, seconds=SECONDS)
        return found

    def folders(self) -> list[str]:
        """The region folders of containers on the node."""
        return sorted(path.name for path in self.regions.iterdir() if path.is_dir())

    def eventually_none(self, look: Callable[[], list[str]]) -> list[str]:
        """What is still seen after a while; empty as soon as nothing is."""
        ends = time.monotonic() + SECONDS
        while (found := look()) and time.monotonic() < ends:
            time.sleep(0.5)
        return found

    def log(self, name: str) -> str:
        """What its container printed."""
        return self.lab.kubectl("logs", name)

    def node(self) -> Json:
        """The real node."""
        found: Json = self.lab.api.ok(Call("GET", f"/api/v1/nodes/{self.lab.node_name}"))
        return found


def pod(
    name: str,
    script: str,
    *,
    annotations: Mapping[str, str] | None = None,
    limits: Mapping[str, str] | None = None,
) -> Json:
    """A pod of user 1000 that passes Pod Security `restricted`. Limits by resource name."""
    security = {
        "runAsUser": 1000,
        "runAsNonRoot": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    main = {
        "name": "main",
        "image": images.BUSYBOX,
        "command": ["sh", "-c", script],
        "resources": {"limits": dict(limits or {})},
        "securityContext": security,
    }
    spec = {"terminationGracePeriodSeconds": 0, "automountServiceAccountToken": False, "containers": [main]}
    metadata = {"name": name, "annotations": dict(annotations or {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def is_running(found: Json) -> bool:
    """Whether the pod runs."""
    return bool(found["status"].get("phase") == "Running")


def is_ready(found: Json) -> bool:
    """Whether every container of the pod is ready."""
    return any(c["type"] == "Ready" and c["status"] == "True" for c in found["status"].get("conditions", ()))


def _server(number: int, register: str) -> SimulatedNode:
    """A node that serves its cards. Its taint keeps pods off that need a node where something runs."""
    return SimulatedNode(
        name=f"gpu-{number}",
        address=f"198.19.2.{number}",
        labels={names.LUPINE_SERVER_LABEL: ""},
        annotations={names.NODE_REGISTER: register},
        taints=[_TAINT],
    )


class Creates:
    """Pods created without a pause until told to stop, and what became of each call.

    `through`: each must have been to the webhook. `kept`: every tenth stays, the others are dry runs, which go the same
    way through admission; nobody schedules any of them.
    """

    def __init__(self, lab: Lab, *, through: bool, kept: bool) -> None:
        self.tried = 0
        self.failed: list[str] = []
        self._lab = lab
        self._through = through
        self._kept = kept
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        manifest = pod("", "true", limits={"nvidia.com/vgpu-number": "1"})
        manifest["metadata"] = {"generateName": "during-"}
        manifest["spec"]["schedulerName"] = "nobody"
        while not self._stop.is_set():
            self.tried += 1
            path = PODS if self._kept and self.tried % 10 == 0 else f"{PODS}?dryRun=All"
            try:
                answer = self._lab.api.request(Call("POST", path, manifest), seconds=60)
            except OSError as error:
                self.failed.append(repr(error))
            else:
                self._judge(answer.status, answer.json())
            time.sleep(PAUSE_S)

    def _judge(self, status: int, made: Json) -> None:
        changed = any("csi" in volume for volume in made.get("spec", {}).get("volumes", ()))
        if status != 201 or (self._through and not changed):
            self.failed.append(f"{status}: {json.dumps(made)[:300]}")


def left_behind(lab: Lab) -> list[str]:
    """Objects of the cluster that are or were the release's, by kind and name, but definitions and events."""
    listed = lab.kubectl("api-resources", "--verbs=list", "--output=name").split()
    # Definitions stay, with what the API server makes of them.
    passed = ("events", "customresourcedefinitions", "apiservices")
    kinds = sorted(kind for kind in listed if not kind.startswith(passed))
    found = json.loads(lab.kubectl("get", ",".join(kinds), "--all-namespaces", "--output=json"))["items"]
    return sorted(f"{one['kind']} {one['metadata']['name']}" for one in found if _is_ours(one))


def _is_ours(found: Json) -> bool:
    meta = found["metadata"]
    labels = meta.get("labels") or {}
    made = {labels.get("app.kubernetes.io/part-of"), labels.get("app.kubernetes.io/managed-by")}
    keys = [*labels, *(meta.get("annotations") or {})] if found["kind"] in {"Node", "CSINode"} else []
    return (
        bool(made & {"tenure", "tenure-node"})
        or "tenure" in meta["name"].removeprefix(NAMESPACE)
        or found.get("apiVersion", "").startswith(("tenure.dev", "airm.ai"))
        or any("tenure.dev" in key and not key.startswith("lab.") for key in keys)
    )


def mounts_of(folder: Path) -> list[str]:
    """What is mounted below a folder of this machine."""
    table = Path("/proc/self/mountinfo").read_text("utf-8").splitlines()
    return [line.split(" ")[4] for line in table if line.split(" ")[4].startswith(f"{folder}/")]
