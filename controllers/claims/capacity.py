"""How many more pods a template serves: on each node, by NUMA node, and what stands in the way of one more.

Pods are placed one after the other as kube-scheduler would: its order counts, not the best packing.
Nothing but devices is looked at: CPU, memory and taints of nodes are the scheduler's other questions.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, replace

from controllers.claims.allocate import AbortedError, CannotTellError, Given, Matches, Search, Usage, tainted
from controllers.claims.cel import lookup
from controllers.claims.objects import Claim
from controllers.claims.requirements import Alternative, Requirements
from controllers.claims.slices import DeviceId, Inventory, Offer, Pool, PoolState

NUMA = "resource.kubernetes.io/numaNode"
# A claim that takes no device for itself (adminAccess only) has no bound; nobody needs more than a node's pods.
MAX_PODS = 256


@dataclass(frozen=True, slots=True)
class NodeCapacity:
    """Pods that still fit on a node; `pods` is None where it cannot be told."""

    node: str
    pods: int | None
    by_numa: tuple[tuple[str, int], ...] = ()
    """Pods by the NUMA node of all their devices: its number, or `mixed`, or `unknown`."""
    limit: str = ""
    """The request that one more pod would fail on; empty when that is not one request."""
    reason: str = ""
    aborts: bool = False
    """The scheduler's error here ends the pod's attempt on every node."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """What the search needs to know of a cluster."""

    inventory: Inventory
    matches: Matches
    claims: tuple[Claim, ...] = ()
    held: frozenset[DeviceId] = frozenset()
    """Devices that a process outside Kubernetes holds."""


def usage(cluster: Cluster) -> Usage:
    """What allocated claims and host processes take. Admin access takes nothing; a share is a use."""
    taken = {
        DeviceId(result.driver, result.pool, result.device)
        for claim in cluster.claims
        for result in claim.results
        if not result.admin_access
    }
    used = Usage(devices=taken | cluster.held)
    counted: set[DeviceId] = set()
    for node in cluster.inventory.nodes:
        for pool in cluster.inventory.pools(node):
            if not pool.counters:
                continue
            for offer in (*pool.offers, *pool.others):
                if offer.id in taken and offer.id not in counted:
                    counted.add(offer.id)
                    used.consume(offer, 1)
    return used


def of(wanted: Requirements, cluster: Cluster, nodes: Iterable[str]) -> Iterator[NodeCapacity]:
    """One answer per node, in their order; pods that take network devices leave less for the nodes after it."""
    used = usage(cluster)
    known: dict[Hashable, NodeCapacity] = {}
    for node in nodes:
        pools = cluster.inventory.pools(node)
        key = _alike(wanted, pools, used, cluster.matches)
        found = known.get(key) if key is not None else None
        if found is None:
            found = _node(node, wanted, pools, used, cluster.matches)
            if key is not None:
                known[key] = found
        yield replace(found, node=node)


def fits(wanted: Requirements, cluster: Cluster, node: str) -> tuple[Given, ...] | None:
    """What the scheduler would give the next pod here. Raises CannotTellError, AbortedError."""
    search = Search(wanted, cluster.inventory.pools(node), usage=usage(cluster), matches=cluster.matches)
    return search.run()


def _node(
    node: str, wanted: Requirements, pools: tuple[Pool, ...], used: Usage, matches: Matches
) -> NodeCapacity:
    places: Counter[str] = Counter()
    try:
        for pods in range(MAX_PODS):
            given = Search(wanted, pools, usage=used, matches=matches).run()
            if given is None:
                limit, reason = _limit(wanted, pools, used, matches)
                return NodeCapacity(node, pods, _sorted(places), limit=limit, reason=reason)
            places[_numa(given)] += 1
            for one in given:
                if not one.alternative.admin:
                    used.take(one.offer)
    except AbortedError as error:
        return NodeCapacity(node, sum(places.values()), _sorted(places), reason=str(error), aborts=True)
    except CannotTellError as error:
        return NodeCapacity(node, None, reason=str(error))
    return NodeCapacity(node, MAX_PODS, _sorted(places), reason="it takes no device for itself")


def _sorted(places: Counter[str]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(places.items()))


def _numa(given: Iterable[Given]) -> str:
    values = {numa_of(one.offer) for one in given}
    if "unknown" in values or not values:
        return "unknown"
    return values.pop() if len(values) == 1 else "mixed"


def numa_of(offer: Offer) -> str:
    """The device's NUMA node: of the standard attribute, else of a vendor's; `unknown` without one (-1 is no node)."""
    attributes = offer.device.attributes or {}
    names = [
        NUMA,
        *(key for key in attributes if key.rpartition("/")[2] in {"numaNode", "numa", "numaNodeID"}),
    ]
    for name in names:
        found = lookup(offer.device, offer.id.driver, name if "/" in name else f"{offer.id.driver}/{name}")
        if found is None:
            continue
        value = found[1][0] if isinstance(found[1], tuple) and found[1] else found[1]
        if isinstance(value, int) and value >= 0:
            return str(value)
    return "unknown"


def _limit(wanted: Requirements, pools: tuple[Pool, ...], used: Usage, matches: Matches) -> tuple[str, str]:
    """The request that stops one more pod, and why. Raises CannotTellError, AbortedError."""
    for request in wanted.requests:
        alone = Requirements((request,), wanted.rules)
        if Search(alone, pools, usage=used, matches=matches).run() is None:
            reasons = [_shortage(wanted, one, pools, used, matches) for one in request.alternatives]
            return request.name, "; ".join(reasons)
    for request in wanted.requests:
        others = tuple(other for other in wanted.requests if other.name != request.name)
        if Search(Requirements(others, wanted.rules), pools, usage=used, matches=matches).run() is not None:
            return request.name, _together(wanted, request.alternatives[0], pools, used, matches)
    return "", "each request fits alone, all together do not"


def _shortage(
    wanted: Requirements, one: Alternative, pools: tuple[Pool, ...], used: Usage, matches: Matches
) -> str:
    offers = [offer for pool in pools for offer in pool.offers if matches(one, offer) is True]
    if not offers:
        broken = [pool for pool in pools if pool.hidden and any(matches(one, o) is True for o in pool.hidden)]
        if broken:
            return f"request {one.name}: {describe(broken[0])}"
        return f"request {one.name}: no device of this node matches class {one.class_name} and its selectors"
    free = [o for o in offers if o.id not in used.devices]
    usable = [offer for offer in free if not tainted(offer, one.tolerations)]
    need = "all" if one.every else str(one.count)
    text = f"request {one.name} needs {need} of {len(offers)} devices, {len(usable)} are free"
    if len(usable) < len(free):
        text += f" and {len(free) - len(usable)} tainted"
    if len(usable) >= one.count:
        rules = [str(rule) for rule in wanted.rules if rule.covers(one)]
        text += (
            f", not as {' and '.join(rules)} wants them"
            if rules
            else ", but their pool's counters are used up"
        )
    return text


def _together(
    wanted: Requirements, one: Alternative, pools: tuple[Pool, ...], used: Usage, matches: Matches
) -> str:
    """Free devices of every request by the value of the constraint that joins this one with others."""
    for rule in wanted.rules:
        if rule.distinct or not rule.covers(one):
            continue
        parts = []
        for other in wanted.alternatives:
            if not rule.covers(other):
                continue
            values = Counter(
                _shown(lookup(offer.device, offer.id.driver, rule.attribute))
                for pool in pools
                for offer in pool.offers
                if offer.id not in used.devices and matches(other, offer) is True
            )
            counts = ", ".join(f"{count} with {value}" for value, count in sorted(values.items())) or "none"
            parts.append(f"request {other.name} needs {other.count}, free: {counts}")
        return f"{rule} over {'; '.join(parts)}"
    return f"request {one.name} does not fit beside the others"


def _shown(value: tuple[str, object] | None) -> str:
    return "no value" if value is None else str(value[1])


def describe(pool: Pool) -> str:
    """A pool that gives nothing, in words."""
    match pool.state:
        case PoolState.INCOMPLETE:
            return (
                f"pool {pool.name} of driver {pool.driver} has {pool.seen} of {pool.expected} slices of generation "
                f"{pool.generation}"
            )
        case PoolState.INCONSISTENT:
            return f"slices {', '.join(pool.slices)} of pool {pool.name} disagree about their number"
        case PoolState.INVALID:
            return f"pool {pool.name} of driver {pool.driver} is invalid: {pool.reason}"
        case PoolState.COMPLETE:
            return f"pool {pool.name} of driver {pool.driver} is complete"


def _alike(wanted: Requirements, pools: tuple[Pool, ...], used: Usage, matches: Matches) -> Hashable | None:
    """Equal for nodes of which the answer is the same but for names; None where names or other nodes matter."""
    looks = []
    sized = any(one.capacity for one in wanted.alternatives)
    for pool in pools:
        if pool.state is not PoolState.COMPLETE or pool.counters:
            return None
        for offer in pool.offers:
            device = offer.device
            if not offer.local or (sized and device.capacity) or device.allow_multiple_allocations:
                return None
            verdicts = tuple(matches(one, offer) for one in wanted.alternatives)
            if any(not isinstance(verdict, bool) for verdict in verdicts):
                return None
            constrained = tuple(lookup(device, offer.id.driver, rule.attribute) for rule in wanted.rules)
            looks.append((verdicts, constrained, numa_of(offer), device.taints, offer.id in used.devices))
    return tuple(looks)
