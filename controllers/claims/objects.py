"""Projections of resource.k8s.io/v1: what DRA drivers advertise, what templates ask for, what was allocated.

Field names follow the Kubernetes API reference (resource/v1), in snake case.
"""

from typing import Any

import msgspec

from service.objects import ObjectMeta, Projection, Quantity, Taint, Toleration

Typed = tuple[str, Any]
"""An attribute's type, as the API calls it, and its value; lists are tuples."""


class Attribute(Projection, frozen=True):
    """DeviceAttribute: a union of which exactly one member is set. Lists need the gate DRAListTypeAttributes."""

    int_: int | None = msgspec.field(default=None, name="int")
    bool_: bool | None = msgspec.field(default=None, name="bool")
    string: str | None = None
    version: str | None = None
    ints: tuple[int, ...] | None = None
    bools: tuple[bool, ...] | None = None
    strings: tuple[str, ...] | None = None
    versions: tuple[str, ...] | None = None

    @property
    def typed(self) -> Typed | None:
        """Type and value; None for a type of the future, or none at all."""
        for kind, value in (
            ("string", self.string),
            ("int", self.int_),
            ("bool", self.bool_),
            ("version", self.version),
            ("ints", self.ints),
            ("strings", self.strings),
            ("bools", self.bools),
            ("versions", self.versions),
        ):
            if value is not None:
                return kind, value
        return None


class Capacity(Projection, frozen=True):
    """DeviceCapacity."""

    value: Quantity = "0"
    request_policy: dict[str, Any] | None = None


class Counter(Projection, frozen=True):
    """Counter."""

    value: Quantity = "0"


class CounterSet(Projection, frozen=True):
    """CounterSet of a pool."""

    name: str = ""
    counters: dict[str, Counter] = msgspec.field(default_factory=dict)


class Consumption(Projection, frozen=True):
    """DeviceCounterConsumption."""

    counter_set: str = ""
    counters: dict[str, Counter] = msgspec.field(default_factory=dict)


class Device(Projection, frozen=True):
    """Device of a slice. Keys of attributes and capacity without a domain belong to the driver's."""

    name: str = ""
    attributes: dict[str, Attribute] | None = None
    capacity: dict[str, Capacity] | None = None
    taints: tuple[Taint, ...] | None = None
    consumes_counters: tuple[Consumption, ...] | None = None
    node_name: str | None = None
    node_selector: dict[str, Any] | None = None
    all_nodes: bool | None = None
    allow_multiple_allocations: bool | None = None
    binding_conditions: tuple[str, ...] | None = None


class SlicePool(Projection, frozen=True):
    """ResourcePool."""

    name: str = ""
    generation: int = 0
    resource_slice_count: int = 1


class SliceSpec(Projection, frozen=True):
    """ResourceSliceSpec."""

    driver: str = ""
    pool: SlicePool = SlicePool()
    node_name: str | None = None
    node_selector: dict[str, Any] | None = None
    all_nodes: bool | None = None
    per_device_node_selection: bool | None = None
    devices: tuple[Device, ...] | None = None
    shared_counters: tuple[CounterSet, ...] | None = None


class ResourceSlice(Projection, frozen=True):
    """ResourceSlice."""

    metadata: ObjectMeta
    spec: SliceSpec = SliceSpec()


class Cel(Projection, frozen=True):
    """CELDeviceSelector."""

    expression: str = ""


class Selector(Projection, frozen=True):
    """DeviceSelector."""

    cel: Cel | None = None


class ClassSpec(Projection, frozen=True):
    """DeviceClassSpec."""

    selectors: tuple[Selector, ...] | None = None
    extended_resource_name: str | None = None


class DeviceClass(Projection, frozen=True):
    """DeviceClass."""

    metadata: ObjectMeta
    spec: ClassSpec = ClassSpec()


class CapacityRequirements(Projection, frozen=True):
    """CapacityRequirements."""

    requests: dict[str, Quantity] | None = None


class Wish(Projection, frozen=True):
    """ExactDeviceRequest (with `admin_access`, without `name`) or DeviceSubRequest (the other way round)."""

    name: str = ""
    device_class_name: str = ""
    selectors: tuple[Selector, ...] | None = None
    allocation_mode: str | None = None
    count: int | None = None
    admin_access: bool | None = None
    tolerations: tuple[Toleration, ...] | None = None
    capacity: CapacityRequirements | None = None


class DeviceRequest(Projection, frozen=True):
    """DeviceRequest."""

    name: str = ""
    exactly: Wish | None = None
    first_available: tuple[Wish, ...] | None = None


class Constraint(Projection, frozen=True):
    """DeviceConstraint; no `requests` means all of the claim."""

    requests: tuple[str, ...] | None = None
    match_attribute: str | None = None
    distinct_attribute: str | None = None


class DeviceClaim(Projection, frozen=True):
    """DeviceClaim."""

    requests: tuple[DeviceRequest, ...] | None = None
    constraints: tuple[Constraint, ...] | None = None


class ClaimSpec(Projection, frozen=True):
    """ResourceClaimSpec."""

    devices: DeviceClaim = DeviceClaim()


class TemplateSpec(Projection, frozen=True):
    """ResourceClaimTemplateSpec."""

    spec: ClaimSpec = ClaimSpec()


class Template(Projection, frozen=True):
    """ResourceClaimTemplate."""

    metadata: ObjectMeta
    spec: TemplateSpec = TemplateSpec()


class Result(Projection, frozen=True):
    """DeviceRequestAllocationResult; `request` is `name` or `name/subrequest`."""

    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool | None = None
    share_id: str | None = msgspec.field(default=None, name="shareID")


class AllocationResults(Projection, frozen=True):
    """DeviceAllocationResult."""

    results: tuple[Result, ...] | None = None


class Allocation(Projection, frozen=True):
    """AllocationResult."""

    devices: AllocationResults = AllocationResults()


class ClaimStatus(Projection, frozen=True):
    """ResourceClaimStatus."""

    allocation: Allocation | None = None


class Claim(Projection, frozen=True):
    """ResourceClaim."""

    metadata: ObjectMeta
    spec: ClaimSpec = ClaimSpec()
    status: ClaimStatus = ClaimStatus()

    @property
    def results(self) -> tuple[Result, ...]:
        """The devices that it has; empty while it waits."""
        return (self.status.allocation.devices.results if self.status.allocation else None) or ()


class TaintRuleSpec(Projection, frozen=True):
    """DeviceTaintRuleSpec. `device_selector` as it is: criteria of other versions must not get lost."""

    taint: Taint
    device_selector: dict[str, Any] | None = None


class DeviceTaintRule(Projection, frozen=True):
    """DeviceTaintRule."""

    metadata: ObjectMeta
    spec: TaintRuleSpec
