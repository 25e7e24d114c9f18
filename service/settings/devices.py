"""Sections of what pods get: remote GPUs, and devices by claim."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from service import names
from service.settings.fields import PositiveSeconds, Seconds, Section


class PoolSettings(Section):
    """Remote GPUs."""

    resource_count_name: str = names.REMOTE_GPU
    """The resource that counts cards."""
    resource_memory_name: str = names.REMOTE_GPU_MEMORY
    """Both empty: the backend is disabled."""
    placement: Literal["extender", "dra"] = "extender"
    """Who hands out the cards; dra is not built yet."""
    policy: Literal["binpack", "spread"] = "binpack"
    """Fill one server after the other, or take the emptiest."""
    remote_mode: str = "remote"
    """The `mode` of a registered card that is served over the network."""
    lupine_port: Annotated[int, Field(ge=1, le=65535)] = names.LUPINE_PORT
    """Of a server that names no endpoint of its own."""
    local_resources: tuple[str, ...] = ("nvidia.com/gpu",)
    """Where a server's kubelet still advertises one of these, a HAMi scheduler that does not know mode `remote` may
    give the same cards to local pods: such nodes get a warning."""
    promise_s: PositiveSeconds = 300.0
    """An unused promise may pass on after this time (design decision 4)."""
    cool_down_s: Seconds = 0.0
    """How long a released card stays Draining where no node agent looks at it."""
    silent_agent_s: PositiveSeconds = 120.0
    """A card whose agent fell silent leaves Draining after this time; a dead client was seen for 110 s."""
    starvation_s: PositiveSeconds = 600.0
    """After this wait a server is kept free for a pod that needs more cards than are free at once."""
    read_deadline_s: PositiveSeconds = 1.0
    """Deadline of the consistent read before `filter` rejects a pod that the cache does not know."""

    @property
    def enabled(self) -> bool:
        """False when the resource names are empty: then no pod can ask for a remote card."""
        return bool(self.resource_count_name)

    @model_validator(mode="after")
    def _built(self) -> "PoolSettings":
        if self.placement == "dra":
            raise ValueError("placement: dra is not built yet; use placement: extender")
        if bool(self.resource_count_name) != bool(self.resource_memory_name):
            raise ValueError("set resource_count_name and resource_memory_name both, or leave both empty")
        if self.enabled and self.resource_count_name == self.resource_memory_name:
            raise ValueError("resource_count_name and resource_memory_name must differ")
        return self


class DeviceKindSettings(Section):
    """One kind of device that a pod with the annotation `tenure.dev/claim-template` gets."""

    mode: Literal["dra", "devicePlugin"] = "dra"
    """devicePlugin: the pod asks for an extended resource instead of a claim; NUMA alignment is not given then."""
    resource_name: str = ""
    """The extended resource of mode devicePlugin."""
    count: Annotated[int, Field(ge=1, le=64)] = 1
    """How many of it in mode devicePlugin; in mode dra the template says it."""

    @model_validator(mode="after")
    def _named(self) -> "DeviceKindSettings":
        if self.mode == "devicePlugin" and not self.resource_name:
            raise ValueError("mode devicePlugin needs resource_name, the extended resource to ask for")
        return self


class NpuSettings(DeviceKindSettings):
    """The accelerators."""

    resource_name: str = "rebellions.ai/npu"
    count: Annotated[int, Field(ge=1, le=64)] = 4


class RdmaSettings(DeviceKindSettings):
    """The NICs beside them."""

    enabled: bool = True
    """False: pods get no NIC; set `devices.claim_template_name` to a template without, such as `npu-only`."""
    resource_name: str = "rdma/hca"
    count: Annotated[int, Field(ge=1, le=64)] = 2


class DevicesSettings(Section):
    """Devices that the webhook injects by name."""

    claim_template_name: str = "npu-rdma"
    """The ResourceClaimTemplate of pods whose annotation `tenure.dev/claim-template` is empty."""
    npu: NpuSettings = NpuSettings()
    rdma: RdmaSettings = RdmaSettings()


class ClaimSettings(Section):
    """Checks of claim templates by the leading server."""

    enabled: bool = True
    """False: templates are checked only when somebody asks (`tenure claims check`)."""
    interval_s: Annotated[float, Field(ge=5)] = 60.0
    """Between two rounds; a round lists slices, claims and pods."""
