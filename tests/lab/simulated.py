"""Simulated nodes: real Node objects whose kubelet is imitated by one cheap process (simulator.py)."""

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

SIMULATOR = "simulator"
SIMULATOR_USER = "lab:simulator"
# The simulator touches nodes with this label only, and pods bound to them.
LABEL = "lab.tenure.dev/simulated"
NODES = "/api/v1/nodes"
SELECTED_NODES = f"{NODES}?labelSelector={LABEL}"
_NOT_READY_TAINT = "node.kubernetes.io/not-ready"
_ARCHITECTURE = "amd64"
_CAPACITY = {"cpu": "64", "memory": "256Gi", "pods": "250"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedNode:
    """A node to make. `capacity` is added to 64 CPUs, 256 GiB and room for 250 pods, or replaces them.

    The default address comes from the range for benchmarks (RFC 2544), which no machine routes.
    """

    name: str
    address: str = "198.19.0.1"
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    capacity: Mapping[str, str] = field(default_factory=dict)
    taints: Sequence[Mapping[str, str]] = ()

    def manifest(self) -> dict[str, Any]:
        """The Node as its kubelet would register it."""
        capacity = _CAPACITY | dict(self.capacity)
        labels = {"kubernetes.io/hostname": self.name, LABEL: "true"} | _platform_labels()
        now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        ready = {
            "type": "Ready",
            "status": "True",
            "reason": "Simulated",
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        }
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": self.name,
                "labels": labels | dict(self.labels),
                "annotations": dict(self.annotations),
            },
            "spec": {"taints": [dict(taint) for taint in self.taints]},
            "status": {
                "capacity": capacity,
                "allocatable": capacity,
                "addresses": [{"type": "InternalIP", "address": self.address}],
                "conditions": [ready],
                "nodeInfo": {
                    "kubeletVersion": "v1.36.3",
                    "operatingSystem": "linux",
                    "architecture": _ARCHITECTURE,
                }
                | _unknown_node_info(),
            },
        }


def is_schedulable(node: Mapping[str, Any]) -> bool:
    """Whether the node controller has taken off the taint that every new node starts with."""
    return all(taint["key"] != _NOT_READY_TAINT for taint in node["spec"].get("taints", ()))


def _platform_labels() -> dict[str, str]:
    """All of them, or the node controller writes those that are missing: one more write for each node."""
    return {
        f"{prefix}kubernetes.io/{name}": value
        for prefix in ("", "beta.")
        for name, value in (("os", "linux"), ("arch", _ARCHITECTURE))
    }


def _unknown_node_info() -> dict[str, str]:
    names = ("machineID", "systemUUID", "bootID", "kernelVersion", "osImage", "containerRuntimeVersion")
    return dict.fromkeys((*names, "kubeProxyVersion"), "")
