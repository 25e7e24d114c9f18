"""Which devices a node can use: the newest complete generation of each pool, judged as kube-scheduler judges it.

The scheduler judges a pool per node, from the slices that target the node; only when those are too few does it look at
all slices of the pool. (kubernetes: dynamic-resource-allocation/structured, GatherPools)
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from typing import Any, NamedTuple

from controllers.claims.objects import Device, ResourceSlice
from controllers.pool.quantity import parse
from service.objects import Node


class DeviceId(NamedTuple):
    """What a device is known by in all of the cluster."""

    driver: str
    pool: str
    device: str

    def __str__(self) -> str:
        return "/".join(self)


class PoolState(StrEnum):
    """Whether the scheduler takes devices from a pool."""

    COMPLETE = "complete"
    INCOMPLETE = "incomplete"
    INCONSISTENT = "inconsistent"
    """Its slices disagree about their number: what the scheduler does depends on their order."""
    INVALID = "invalid"


@dataclass(frozen=True, slots=True)
class Offer:
    """A device that a node can use. `counters` of its pool are consumed by quantities."""

    id: DeviceId
    device: Device
    local: bool
    """True when only this node can use it."""


CounterName = tuple[str, str]


@dataclass(slots=True)
class Pool:
    """A pool as one node sees it."""

    driver: str
    name: str
    generation: int
    expected: int
    seen: int
    state: PoolState
    slices: tuple[str, ...]
    """Names of the slices of this generation."""
    offers: tuple[Offer, ...] = ()
    hidden: tuple[Offer, ...] = ()
    """Its devices for this node while its state lets none of them be taken."""
    others: tuple[Offer, ...] = ()
    """Devices of the pool for other nodes, which consume the same counters."""
    counters: dict[CounterName, Decimal] = field(default_factory=dict)
    reason: str = ""
    has_older: bool = False
    """Slices of an older generation are left over."""

    @property
    def binds_late(self) -> bool:
        """The scheduler tries devices with binding conditions last."""
        return any(offer.device.binding_conditions is not None for offer in self.offers)


class Inventory:
    """All slices of a cluster. Objects of nodes are needed only for slices that select nodes by label."""

    def __init__(self, slices: Iterable[ResourceSlice], nodes: Mapping[str, Node] | None = None) -> None:
        self.slices = list(slices)
        self._nodes = nodes or {}
        self._of_node: dict[str, list[ResourceSlice]] = {}
        self._shared: list[ResourceSlice] = []
        self._of_pool: dict[tuple[str, str], list[ResourceSlice]] = {}
        for found in self.slices:
            spec = found.spec
            self._of_pool.setdefault((spec.driver, spec.pool.name), []).append(found)
            if spec.node_name and not spec.shared_counters:
                self._of_node.setdefault(spec.node_name, []).append(found)
            else:
                self._shared.append(found)
        self._views: dict[str, tuple[Pool, ...]] = {}

    @property
    def nodes(self) -> list[str]:
        """Names of all nodes that are known, as objects or from slices."""
        return sorted({*self._nodes, *self._of_node})

    @property
    def drivers(self) -> set[str]:
        """Drivers with a slice."""
        return {found.spec.driver for found in self.slices}

    def pools(self, node: str) -> tuple[Pool, ...]:
        """What this node can use, in the scheduler's order."""
        view = self._views.get(node)
        if view is None:
            view = self._views[node] = self._gather(node)
        return view

    def _gather(self, node: str) -> tuple[Pool, ...]:
        newest: dict[tuple[str, str], list[ResourceSlice]] = {}
        for found in (*self._of_node.get(node, ()), *self._shared):
            if not self._targets(found, node):
                continue
            key = (found.spec.driver, found.spec.pool.name)
            group = newest.setdefault(key, [])
            generation = found.spec.pool.generation
            if not group or generation > group[0].spec.pool.generation:
                newest[key] = [found]
            elif generation == group[0].spec.pool.generation:
                group.append(found)
        pools = [pool for key in sorted(newest) if (pool := self._pool(node, key, newest[key])) is not None]
        return tuple(sorted(pools, key=lambda pool: pool.binds_late))

    def _targets(self, found: ResourceSlice, node: str) -> bool:
        spec = found.spec
        if spec.shared_counters:
            return True
        if spec.node_name:
            return spec.node_name == node
        if spec.all_nodes:
            return True
        if spec.node_selector is not None:
            return self._selected(spec.node_selector, node)
        return bool(spec.per_device_node_selection) and any(
            self._device_targets(device, node) for device in spec.devices or ()
        )

    def _device_targets(self, device: Device, node: str) -> bool:
        if device.node_name:
            return device.node_name == node
        return bool(device.all_nodes) or (
            device.node_selector is not None and self._selected(device.node_selector, node)
        )

    def _selected(self, selector: dict[str, Any], node: str) -> bool:
        known = self._nodes.get(node)
        return _selects(selector, node, known.metadata.labels if known else {})

    def _pool(self, node: str, key: tuple[str, str], targeting: list[ResourceSlice]) -> Pool | None:
        generation = targeting[0].spec.pool.generation
        expected = targeting[0].spec.pool.resource_slice_count
        everything = targeting
        if len(targeting) != expected:
            whole = self._of_pool[key]
            if any(found.spec.pool.generation > generation for found in whole):
                return None  # being replaced, and the new generation has nothing for this node
            everything = [found for found in whole if found.spec.pool.generation == generation]
        pool = Pool(
            driver=key[0],
            name=key[1],
            generation=generation,
            expected=expected,
            seen=len(everything),
            state=PoolState.COMPLETE,
            slices=tuple(sorted(found.metadata.name for found in everything)),
            has_older=any(found.spec.pool.generation < generation for found in self._of_pool[key]),
        )
        if len({found.spec.pool.resource_slice_count for found in everything}) > 1:
            pool.state = PoolState.INCONSISTENT
        elif len(everything) != expected:
            pool.state = PoolState.INCOMPLETE
        if pool.state is PoolState.COMPLETE:
            self._fill(pool, node, targeting, everything)
        else:
            pool.hidden = tuple(self._offers(targeting, node))
        return pool

    def _fill(
        self, pool: Pool, node: str, targeting: list[ResourceSlice], everything: list[ResourceSlice]
    ) -> None:
        ordered = sorted(targeting, key=lambda found: found.metadata.name)
        local = {id(found) for found in ordered}
        pool.offers = tuple(self._offers(ordered, node))
        pool.others = tuple(
            Offer(_id(found, device), device, local=False)
            for found in everything
            if id(found) not in local
            for device in found.spec.devices or ()
        )
        pool.reason = _invalid(pool, everything)
        if pool.reason:
            pool.state, pool.offers, pool.hidden = PoolState.INVALID, (), pool.offers

    def _offers(self, slices: list[ResourceSlice], node: str) -> Iterator[Offer]:
        for found in slices:
            for device in found.spec.devices or ():
                if found.spec.per_device_node_selection and not self._device_targets(device, node):
                    continue
                yield Offer(_id(found, device), device, local=bool(found.spec.node_name or device.node_name))


def _id(found: ResourceSlice, device: Device) -> DeviceId:
    return DeviceId(found.spec.driver, found.spec.pool.name, device.name)


def _invalid(pool: Pool, slices: list[ResourceSlice]) -> str:
    """Why the scheduler takes nothing from it; empty when it does. Fills the pool's counters."""
    names = [offer.id.device for offer in pool.offers]
    if len(set(names)) != len(names):
        return f"device {max(names, key=names.count)} is there twice"
    for found in slices:
        for counters in found.spec.shared_counters or ():
            for name, counter in counters.counters.items():
                pool.counters[counters.name, name] = amount(counter.value)
    for offer in (*pool.offers, *pool.others):
        for taken in consumed(offer.device):
            if taken not in pool.counters:
                return f"device {offer.id.device} consumes counter {'/'.join(taken)}, which the pool does not have"
    return ""


def consumed(device: Device) -> dict[CounterName, Decimal]:
    """What an allocation of this device takes from its pool's counters."""
    return {
        (consumption.counter_set, name): amount(counter.value)
        for consumption in device.consumes_counters or ()
        for name, counter in consumption.counters.items()
    }


def amount(quantity: str | float) -> Decimal:
    """A quantity as a number; what is none counts as nothing."""
    return parse(quantity) or Decimal(0)


# Node selectors (core/v1 NodeSelector; component-helpers/scheduling/corev1/nodeaffinity).


def _selects(selector: dict[str, Any], node: str, labels: Mapping[str, str]) -> bool:
    terms = selector.get("nodeSelectorTerms")
    return isinstance(terms, list) and any(_term(term, node, labels) for term in terms)


def _term(term: Any, node: str, labels: Mapping[str, str]) -> bool:
    if not isinstance(term, dict):
        return False
    expressions, fields = _list(term, "matchExpressions"), _list(term, "matchFields")
    if not expressions and not fields:
        return False
    return all(_expression(e, labels) for e in expressions) and all(
        _expression(e, {"metadata.name": node}) for e in fields
    )


def _expression(expression: Any, labels: Mapping[str, str]) -> bool:
    if not isinstance(expression, dict):
        return False
    found = labels.get(str(expression.get("key")))
    values = [str(value) for value in _list(expression, "values")]
    match expression.get("operator"):
        case "In":
            return found in values
        case "NotIn":
            return found not in values
        case "Exists":
            return found is not None
        case "DoesNotExist":
            return found is None
        case "Gt" | "Lt" as operator:
            return _ordered(found, values, greater=operator == "Gt")
        case _:
            return False


def _list(found: dict[str, Any], key: str) -> list[Any]:
    value = found.get(key)
    return value if isinstance(value, list) else []


def _ordered(found: str | None, values: list[str], *, greater: bool) -> bool:
    try:
        number, bound = int(Decimal(found or "x")), int(Decimal(values[0]))
    except (InvalidOperation, IndexError, ValueError, OverflowError):
        return False
    return number > bound if greater else number < bound
