"""The checks of a claim template, together: what `tenure claims check`, the status page and the controller show."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from controllers.claims import capacity, crosscheck, recheck, requirements, rules, stored
from controllers.claims.capacity import Cluster, NodeCapacity, describe
from controllers.claims.cel import Engine, Failed, Unknown, lookup
from controllers.claims.matching import Matching
from controllers.claims.objects import Claim, DeviceClass, DeviceTaintRule, ResourceSlice, Template
from controllers.claims.report import (
    Check,
    Code,
    Finding,
    Report,
    Room,
    fail,
    hint,
    some,
    unknown,
    worst,
)
from controllers.claims.requirements import Requirements, Term
from controllers.claims.slices import DeviceId, Inventory, Offer, Pool, PoolState
from service import names
from service.objects import Node


@dataclass(frozen=True, slots=True)
class World:
    """What was read of a cluster. `unreadable` names objects that are not what their kind promises."""

    classes: Mapping[str, DeviceClass] = field(default_factory=dict)
    slices: tuple[ResourceSlice, ...] = ()
    claims: tuple[Claim, ...] = ()
    nodes: Mapping[str, Node] = field(default_factory=dict)
    driver_pods: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Nodes on which a pod of that driver runs."""
    held: frozenset[DeviceId] = frozenset()
    taint_rules: tuple[DeviceTaintRule, ...] | None = ()
    """None: the API server does not serve DeviceTaintRule."""
    unreadable: tuple[str, ...] = ()
    minor: int | None = None
    """Of the API server: 36 for 1.36; None when it is not known."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The template. `stored` and `meant` as plain JSON: None where there is nothing to compare."""

    name: str
    template: Template | None
    stored: dict[str, Any] | None = None
    meant: dict[str, Any] | None = None
    refusal: str = ""
    """The API server's sentence, when it would not take the template."""


def run(subject: Subject, world: World, engine: Engine | None = None) -> Report:
    """All checks. Never raises for what a cluster may hold."""
    inventory = Inventory(rules.tainted(world.slices, world.taint_rules or ()), world.nodes)
    if subject.template is None:
        check = Check.of("template", _template(subject, Requirements((), ()), world.minor))
        return Report(subject.name, check.verdict, (check,), 0)
    wanted = requirements.of(subject.template.spec.spec.devices, world.classes)
    matching = Matching(engine or Engine())
    offers = crosscheck.devices(inventory)
    known = recheck.device_map(offers)
    rooms = _rooms(wanted, world, inventory, matching)
    namespace = subject.template.metadata.namespace
    checks = (
        Check.of("classes", _classes(wanted, matching)),
        Check.of("slices", _slices(wanted, world, inventory, matching, offers)),
        Check.of("template", _template(subject, wanted, world.minor)),
        Check.of(
            "allocations",
            (
                finding
                for claim in world.claims
                if claim.metadata.namespace == namespace and recheck.concerns(claim, wanted)
                for finding in recheck.findings(claim, wanted, known)
            ),
        ),
        Check.of("attributes", crosscheck.attributes(wanted, offers, matching)),
        Check.of("rdma", _rdma(wanted, world, inventory, matching)),
        Check.of("capacity", (*_capacity(rooms), *rules.findings(world.taint_rules, world.held))),
    )
    return Report(
        subject.name,
        worst(check.verdict for check in checks),
        checks,
        _total(rooms),
        tuple(_shown(room) for room in rooms),
    )


def _rooms(
    wanted: Requirements, world: World, inventory: Inventory, matching: Matching
) -> list[NodeCapacity]:
    cluster = Cluster(inventory, matching.matches, world.claims, world.held)
    return list(capacity.of(wanted, cluster, inventory.nodes))


def _shown(room: NodeCapacity) -> Room:
    return Room(room.node, room.pods, dict(room.by_numa), room.limit, room.reason)


def _total(rooms: list[NodeCapacity]) -> int:
    """An error of a selector on one node ends the attempt on every node (kube-scheduler, Filter)."""
    if any(room.aborts and not room.pods for room in rooms):
        return 0
    return sum(room.pods or 0 for room in rooms)


# Check 1.


def _classes(wanted: Requirements, matching: Matching) -> Iterator[Finding]:
    missing = sorted({one.class_name for one in wanted.alternatives if not one.class_known})
    for name in missing:
        yield fail(
            Code.CLASS_MISSING,
            f"class {name or '(no name)'}",
            "no DeviceClass has this name",
            "install the driver's chart, or name a class that exists: kubectl get deviceclasses",
        )
    terms: dict[Term, None] = dict.fromkeys(term for one in wanted.alternatives for term in one.terms)
    for term in terms:
        match matching.engine.compile(term.expression).fault:
            case Failed(reason):
                yield fail(
                    Code.SELECTOR_ERROR, term.source, f"does not compile: {reason}", "correct the expression"
                )
            case Unknown(reason):
                yield unknown(Code.SELECTOR_UNKNOWN, term.source, reason, "test it with one pod")
            case None:
                continue


# Check 2.


def needed_drivers(wanted: Requirements, matching: Matching, offers: list[Offer]) -> set[str]:
    """Drivers that the classes name, or whose devices they select."""
    found: set[str] = set()
    for one in {alternative.class_name: alternative for alternative in wanted.alternatives}.values():
        named = {
            driver
            for term in one.class_terms
            for driver in matching.engine.compile(term.expression).reading.drivers
        }
        found |= named or {offer.id.driver for offer in offers if matching.in_class(one, offer) is True}
    return found


def _slices(
    wanted: Requirements, world: World, inventory: Inventory, matching: Matching, offers: list[Offer]
) -> Iterator[Finding]:
    for name in world.unreadable:
        yield unknown(Code.UNREADABLE, name, "cannot be read as what its kind promises, and is left out")
    needed = needed_drivers(wanted, matching, offers)
    for driver in sorted(needed - inventory.drivers):
        yield fail(
            Code.NO_SLICE,
            f"driver {driver}",
            "has no ResourceSlice in the cluster",
            "see that the driver's pods run, and what they log",
        )
    yield from _absent(needed, world, inventory)
    yield from _pools(needed, inventory)
    yield from _double(wanted, world, inventory, needed)


def _absent(needed: set[str], world: World, inventory: Inventory) -> Iterator[Finding]:
    """Nodes that have a slice of one needed driver, or a pod of this one, and no slice of it."""
    having: dict[str, set[str]] = {driver: set() for driver in needed}
    for node in inventory.nodes:
        for pool in inventory.pools(node):
            if pool.driver in having:
                having[pool.driver].add(node)
    concerned = set().union(*having.values()) if having else set()
    for driver in sorted(needed):
        silent = world.driver_pods.get(driver, frozenset()) - having[driver]
        if silent:
            yield fail(
                Code.NO_SLICE_OF_DRIVER_POD,
                f"driver {driver}",
                f"its pod runs on {some(silent)}, and there is no slice of it there",
                "read that pod's log: the API server refuses a whole slice for one text above 64 bytes (422)",
            )
        lacking = concerned - having[driver] - silent
        if lacking and having[driver]:
            yield hint(f"driver {driver}", f"has no slice on {len(lacking)} nodes: {some(lacking)}")


def _pools(needed: set[str], inventory: Inventory) -> Iterator[Finding]:
    told: set[tuple[str, str, tuple[str, ...]]] = set()
    for node in inventory.nodes:
        for pool in inventory.pools(node):
            key = pool.driver, pool.name, pool.slices
            if pool.driver in needed and pool.state is not PoolState.COMPLETE and key not in told:
                told.add(key)
                yield _broken(node, pool)


_BROKEN = {
    PoolState.INCOMPLETE: (
        Code.POOL_INCOMPLETE,
        "read the driver's log: it has the API server's refusal of the missing slice",
    ),
    PoolState.INCONSISTENT: (
        Code.POOL_INCONSISTENT,
        "restart the driver's pod on that node; what the scheduler does depends on the order of the slices",
    ),
    PoolState.INVALID: (Code.POOL_INVALID, "update the driver: the scheduler takes nothing from this pool"),
}


def _broken(node: str, pool: Pool) -> Finding:
    code, advice = _BROKEN[pool.state]
    older = "; slices of an older generation are left over and not used" if pool.has_older else ""
    return fail(code, f"node {node}", describe(pool) + older, advice)


def _double(wanted: Requirements, world: World, inventory: Inventory, needed: set[str]) -> Iterator[Finding]:
    """A device plugin and a DRA driver that both give the same cards."""
    resources = {
        found.spec.extended_resource_name
        for name in wanted.class_names
        if (found := world.classes.get(name)) is not None and found.spec.extended_resource_name
    }
    domains = {driver.partition(".")[2] for driver in needed if driver.count(".") > 1}
    for node in inventory.nodes:
        known = world.nodes.get(node)
        if known is None or not any(pool.driver in needed for pool in inventory.pools(node)):
            continue
        for resource, amount in known.status.allocatable.items():
            if str(amount) == "0":
                continue
            if resource in resources:
                yield fail(
                    Code.DOUBLE_ADVERTISED,
                    f"node {node}",
                    f"a device plugin gives {resource}, and a DRA driver gives the same cards",
                    "run one of the two on a node: both hand the same card to different pods",
                )
            elif resource.partition("/")[0] in domains:
                yield unknown(
                    Code.DOUBLE_ADVERTISED,
                    f"node {node}",
                    f"a device plugin gives {resource}, of the vendor of a DRA driver there: perhaps the same cards",
                    "run one of the two on a node, or make sure that they share no card",
                )


# Check 3.


def _template(subject: Subject, wanted: Requirements, minor: int | None) -> Iterator[Finding]:
    name = f"template {subject.name}"
    if subject.refusal:
        yield fail(Code.TEMPLATE_INVALID, name, f"the API server refuses it: {subject.refusal}")
        yield from stored.refused(subject.meant or {}, subject.refusal, subject=name, minor=minor)
    elif subject.template is None:
        yield fail(
            Code.TEMPLATE_MISSING,
            name,
            "there is no such ResourceClaimTemplate: every pod that names it stays Pending",
            "apply one of charts/tenure/examples/manifests/rct in the pod's namespace",
        )
        return
    for fault in wanted.faults:
        yield fail(Code.TEMPLATE_INVALID, name, fault)
    if subject.meant is not None and subject.stored is not None:
        yield from stored.findings(subject.meant, subject.stored, subject=name, minor=minor)


# RDMA.


def _rdma(wanted: Requirements, world: World, inventory: Inventory, matching: Matching) -> Iterator[Finding]:
    """NICs whose slice says that they do not do RDMA, against what the node's agent saw below /sys."""
    key = "dra.net/rdma"
    asked = any(
        reference.name == key
        for one in wanted.alternatives
        for term in one.terms
        for reference in matching.engine.compile(term.expression).reading.references
    )
    if not asked:
        return
    for node in inventory.nodes:
        offers = (offer for pool in inventory.pools(node) for offer in pool.offers if offer.local)
        values = [value for offer in offers if (value := lookup(offer.device, offer.id.driver, key))]
        if not values:
            continue
        count = values.count(("bool", True))
        known = world.nodes.get(node)
        text = known.metadata.annotations.get(names.RDMA_DEVICES) if known else None
        seen = len([entry for entry in text.split(",") if entry]) if text is not None else None
        if count == 0 and not seen:
            yield fail(
                Code.RDMA_DRIVER_MISSING,
                f"node {node}",
                "none of its NICs does RDMA"
                + ("" if seen is None else ", and /sys/class/infiniband is empty"),
                "load the NICs' RDMA kernel driver (bnxt_re, mlx5_ib), then restart dranet there",
            )
        elif seen is not None and seen != count:
            yield unknown(
                Code.RDMA_DRIVER_MISSING,
                f"node {node}",
                f"{seen} entries in /sys/class/infiniband, and {count} devices with {key} true",
                "restart dranet on that node; a NIC without its RDMA kernel driver has no entry",
            )


# Capacity.


def _capacity(rooms: list[NodeCapacity]) -> Iterator[Finding]:
    for room in rooms:
        if room.pods is None:
            yield unknown(Code.CAPACITY_UNKNOWN, f"node {room.node}", room.reason)
        elif room.aborts and not room.pods:
            yield fail(
                Code.NO_CAPACITY,
                f"node {room.node}",
                f"{room.reason}: this ends the pod's attempt on every node",
            )
    if not any(room.pods or room.pods is None for room in rooms):
        shown = [room for room in rooms if room.reason and not room.aborts]
        first = f"; {shown[0].node}: {shown[0].reason}" if shown else ""
        yield fail(Code.NO_CAPACITY, "cluster", f"no node has room for one pod{first}")
