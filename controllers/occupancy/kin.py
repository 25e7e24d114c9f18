"""Processes that are on cards by trade: vendors' monitors, and the lupine server with its children. Pure.

A name is believed only of an executable that belongs to root: a user may call his program what he likes.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum

from controllers.occupancy.processes import Described, Process

# Base names by vendor (their documents and packages); `x-*` is a prefix.
MONITORS = (
    *("nvidia-smi", "nvidia-persistenced", "nv-hostengine", "dcgmi", "dcgm-exporter", "nv-fabricmanager"),
    *("nvidia-device-plugin", "gpu-feature-discovery", "nvidia-mig-manager", "gpu-kubelet-plugin"),
    *("compute-domain-*", "nvidia-cuda-mps-control", "nvtop", "gpustat", "all-smi", "node_exporter"),
    *("furiosa-smi", "furiosa-metrics-exporter", "furiosa-device-plugin", "furiosa-feature-discovery"),
    *("furiosa-npu-*", "dra-kubelet-plugin", "npu-kubelet-plugin"),
    *("rbln-stat", "rbln-smi", "rbln-smd", "rbln_daemon", "rbln-smdi", "rbln-metrics-exporter"),
    *("rbln-npu-feature-discovery", "rbln-device-plugin"),
    *("rocm-smi", "amd-smi", "rdcd", "gpuagent", "hl-smi", "npu-smi", "npu-exporter"),
)


class Kind(Enum):
    """What a process is to a card."""

    WORKLOAD = "workload"
    MONITOR = "monitor"
    LUPINE_SERVER = "lupine server"
    LUPINE_CLIENT = "lupine client"


@dataclass(frozen=True, slots=True)
class Kin:
    """Tells kinds apart. `processes` holds the processes on cards, their parents and their group leaders.

    lupine's server forks a child for each client and the child holds the card (lupine, server main). A child whose
    server died keeps the process group of that server, which is gone: it is a client still.
    """

    lupine: str
    monitors: Collection[str] = MONITORS
    processes: Mapping[int, Described] = field(default_factory=dict)

    def kind(self, process: Process) -> Kind:
        """The kind of one process."""
        if process.named((self.lupine,)):
            return Kind.LUPINE_CLIENT if self._serves(process) else Kind.LUPINE_SERVER
        if self._is_lupine(process.parent):
            return Kind.LUPINE_CLIENT
        return Kind.MONITOR if process.named(self.monitors) else Kind.WORKLOAD

    def _serves(self, process: Process) -> bool:
        if self._is_lupine(process.parent):
            return True
        leads = process.group == process.pid
        return not leads and not isinstance(self.processes.get(process.group), Process)

    def _is_lupine(self, pid: int) -> bool:
        found = self.processes.get(pid)
        return isinstance(found, Process) and found.named((self.lupine,))
