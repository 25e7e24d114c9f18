"""Sections of the node's agent: vGPU regions, and who holds the cards."""

import os
import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator

from service.settings.fields import PositiveSeconds, Section


class NodeSettings(Section):
    """The node that `tenure node` runs on."""

    name: str = ""
    """Its name in the cluster; the chart fills it from `spec.nodeName`. Empty: the host's name."""


class RegionSettings(Section):
    """vGPU regions, for the webhook (injection) and the node agent (CSI volumes, cleaning)."""

    resources: tuple[str, ...] = (
        "nvidia.com/vgpu-number",
        "nvidia.com/vgpu-cores",
        "nvidia.com/vgpu-memory",
    )
    """Containers that ask for one of these get region volumes."""
    backend: Literal["csi", "hostPath", "off"] = "csi"
    """csi: a volume per container. hostPath: for clusters without the driver."""
    root: Path = Path("/etc/vgpu-manager")
    """Folder on the node with one `<pod-uid>_<container>` folder per container."""
    kubelet_root: Path = Path("/var/lib/kubelet")
    """Kubelet's --root-dir: its plugin sockets and the pods' volumes lie below."""
    folder_limit_kib: Annotated[int, Field(ge=0)] = 1024
    """Size of each region folder, a file system in memory: a tenant fills no more. The regions of today need 320 KiB.
    0: plain folders on the node's disk, without a bound."""
    sweep_s: PositiveSeconds = 10.0
    """Between two looks at all regions. What is urgent, a container's end, is seen at once and needs no look."""
    leftover_grace_s: PositiveSeconds = 120.0
    """How long a folder is unused before the API server is asked whether its pod still exists."""
    unpublish_only: bool = False
    """Make no new volumes, take existing ones away: for a node that Tenure is about to leave."""
    refuse_when_restricted: bool = False
    """hostPath backend only: refuse a pod whose namespace forbids it, instead of a warning and no regions."""


class CardClass(Section):
    """A kind of accelerator known by its device nodes, for vendors that Tenure has no code for."""

    vendor: Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)]
    nodes: str
    """Regular expression for the whole path of a compute node below /dev, such as `acme/npu[0-9]+`."""
    drivers: tuple[str, ...] = ()
    """Kernel drivers that are meant; empty: any."""

    @field_validator("nodes")
    @classmethod
    def _compiles(cls, text: str) -> str:
        try:
            re.compile(text)
        except re.error as error:
            raise ValueError(f"is not a regular expression: {error}") from None
        return text


class ProfileSettings(Section):
    """The AcceleratorProfile objects that tell about cards."""

    group: str = "airm.ai-computing.io"
    """API group of the kind."""
    version: str = "v1alpha1"
    """API version of the kind."""
    plural: str = "acceleratorprofiles"
    """The kind, as the API server's paths name it."""
    create: bool = True
    """False: another daemon owns the profiles; Tenure writes into its objects and creates none."""


class OccupancySettings(Section):
    """Who holds the cards of a node: the scan, and what is published of it."""

    enabled: bool = True
    """False, or AIRM_OCCUPANCY=0 in the environment: nothing is scanned, and what was published is taken back."""
    interval_s: PositiveSeconds = 15.0
    """Between two scans."""
    drain_interval_s: PositiveSeconds = 3.0
    """Between scans while a card of this node's lupine server waits to be empty."""
    host_rounds: Annotated[int, Field(ge=1, le=100)] = 1
    """Scans in a row with a host process before a card counts as host-held."""
    clean_rounds: Annotated[int, Field(ge=1, le=100)] = 2
    """Scans in a row without one before it is free again."""
    tool_deadline_s: PositiveSeconds = 5.0
    """Of one run of a vendor's tool."""
    walk_deadline_s: PositiveSeconds = 5.0
    """Of looking into all processes."""
    resync_s: PositiveSeconds = 300.0
    """Everything is written again after this time, in case somebody changed it."""
    monitor_hold_s: PositiveSeconds = 600.0
    """A vendor's monitor that keeps a compute node open for longer holds the card."""
    monitors: tuple[str, ...] = ()
    """Further base names of monitors; `x-*` is a prefix."""
    lupine_executable: str = "lupine_driver_server"
    """Base name of lupine's server; its children are clients of other nodes, never host processes."""
    cards: tuple[CardClass, ...] = ()
    """Further kinds of cards, before the built-in ones."""
    optional_tools: tuple[str, ...] = ()
    """Vendors' tools that may be missing (`furiosa-smi`, `rbln-stat`): other sources then decide alone."""
    tool_folders: tuple[Path, ...] = (
        Path("/usr/bin"),
        Path("/usr/local/bin"),
        Path("/run/rbln/driver/usr/bin"),
        Path("/run/nvidia/driver/usr/bin"),
        Path("/host/usr/bin"),
        Path("/host/driver/usr/bin"),
    )
    """Where vendors' tools are looked for; only files that nobody but root can change are run."""
    proc: Path = Path("/proc")
    """The host's; the process must be in the host's pid namespace."""
    sys: Path = Path("/sys")
    """The host's."""
    dev: Path = Path("/dev")
    """The host's; device nodes are looked at and never opened."""
    assume_host_pid: bool = False
    """For nodes that are containers themselves (kind): take their process ids for the host's."""
    profiles: ProfileSettings = ProfileSettings()

    @property
    def active(self) -> bool:
        """False when the setting or rm-accel's own switch turns occupancy off."""
        return self.enabled and os.environ.get("AIRM_OCCUPANCY", "").strip().lower() not in {
            "0",
            "false",
            "off",
        }
