"""What a simulated kubelet reads and writes: pure, the process around it is simulator.py."""

import datetime as dt
from typing import Any

import msgspec

LEASE_SECONDS = 40  # As kubelet's.


class Metadata(msgspec.Struct, rename="camel"):
    name: str
    uid: str
    namespace: str = ""
    deletion_timestamp: str | None = None


class Container(msgspec.Struct):
    name: str
    image: str = ""


class Spec(msgspec.Struct, rename="camel"):
    node_name: str = ""
    containers: list[Container] = []


class Address(msgspec.Struct):
    type: str
    address: str


class Condition(msgspec.Struct):
    type: str
    status: str


class Status(msgspec.Struct):
    phase: str = ""
    addresses: list[Address] = []
    conditions: list[Condition] = []


class Object(msgspec.Struct):
    """A Node or a Pod, as far as a simulated kubelet looks at it."""

    metadata: Metadata
    spec: Spec
    status: Status


class ListMetadata(msgspec.Struct, rename="camel"):
    resource_version: str
    following: str = msgspec.field(default="", name="continue")


class LeaseMetadata(msgspec.Struct, rename="camel"):
    resource_version: str


class Leased(msgspec.Struct):
    metadata: LeaseMetadata


class Page(msgspec.Struct):
    metadata: ListMetadata
    items: list[Object]


class Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


def ready(node: Object) -> dict[str, Any]:
    """The patch by which a kubelet says that its node is ready."""
    now = timestamp()
    condition = {
        "type": "Ready",
        "status": "True",
        "reason": "Simulated",
        "message": "",
        "lastHeartbeatTime": now,
    }
    return {"metadata": {"uid": node.metadata.uid}, "status": {"conditions": [condition]}}


def running(pod: Object, node: Object, *, address: str) -> dict[str, Any]:
    """The patch by which a kubelet says that all containers of a pod run. The uid keeps it off a successor."""
    now = timestamp()
    types = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady")
    host = next((entry.address for entry in node.status.addresses if entry.type == "InternalIP"), "")
    containers = [
        {
            "name": container.name,
            "image": container.image,
            "imageID": "",
            "ready": True,
            "started": True,
            "restartCount": 0,
            "state": {"running": {"startedAt": now}},
        }
        for container in pod.spec.containers
    ]
    status = {
        "phase": "Running",
        "startTime": now,
        "hostIP": host,
        "hostIPs": [{"ip": host}],
        "podIP": address,
        "podIPs": [{"ip": address}],
        "conditions": [{"type": name, "status": "True", "lastTransitionTime": now} for name in types],
        "containerStatuses": containers,
    }
    return {"metadata": {"uid": pod.metadata.uid}, "status": status}


def lease(node: Object, *, version: str | None) -> dict[str, Any]:
    """A node's lease, renewed; it goes when the node goes. No version: a new one."""
    owner = {"apiVersion": "v1", "kind": "Node", "name": node.metadata.name, "uid": node.metadata.uid}
    metadata = {"name": node.metadata.name, "namespace": "kube-node-lease", "ownerReferences": [owner]}
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": metadata | ({"resourceVersion": version} if version else {}),
        "spec": {
            "holderIdentity": node.metadata.name,
            "leaseDurationSeconds": LEASE_SECONDS,
            "renewTime": dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        },
    }


def pod_path(pod: Object) -> str:
    return f"/api/v1/namespaces/{pod.metadata.namespace}/pods/{pod.metadata.name}"


def pod_address(number: int) -> str:
    """An address of the range for benchmarks (RFC 2544); after 65,536 pods they come again."""
    return f"198.18.{number >> 8 & 255}.{number & 255}"


def timestamp() -> str:
    """Now, as Kubernetes writes it."""
    return dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
