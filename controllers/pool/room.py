"""Whether some node could take a pod: an estimate from the cache, by which an unused promise may pass on.

Only a pod that could start is worth taking a card away from one that cannot (design decision 4). The scheduler
knows more (spread, pod affinity, volumes); where this estimate is wrong, the card goes on waiting or comes back.
"""

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from controllers.pool import quantity
from service.objects import Container, Node, Pod, Taint, Toleration

# What nodes run out of. Cards themselves are not among it: the scheduler is told to ignore that resource.
_COUNTED = ("cpu", "memory")
_ZERO = Decimal(0)
_BLOCKING = {"NoSchedule", "NoExecute"}

Amounts = dict[str, Decimal]


def requested(pod: Pod) -> Amounts:
    """CPU in cores and memory in bytes that the scheduler counts for a pod (Kubernetes, pod resource requests)."""
    inits = pod.spec.init_containers or ()
    sidecars = [container for container in inits if container.restart_policy == "Always"]
    running = _sum([*pod.spec.containers, *sidecars])
    first = [_sum([container, *sidecars]) for container in inits if container.restart_policy != "Always"]
    overhead = {name: quantity.parse((pod.spec.overhead or {}).get(name, 0)) or _ZERO for name in _COUNTED}
    return {name: max([running[name], *(peak[name] for peak in first)]) + overhead[name] for name in _COUNTED}


def _sum(containers: Iterable[Container]) -> Amounts:
    total = dict.fromkeys(_COUNTED, _ZERO)
    for container in containers:
        limits = (container.resources and container.resources.limits) or {}
        requests = (container.resources and container.resources.requests) or {}
        for name in _COUNTED:
            total[name] += quantity.parse(requests.get(name, limits.get(name, 0))) or _ZERO
    return total


class Room:
    """What is used on each node. Fed with every pod of the cluster; sync, no awaits."""

    def __init__(self) -> None:
        self._used: dict[str, Amounts] = {}
        self._pods: dict[str, tuple[str, Amounts]] = {}

    def learn(self, pod: Pod) -> None:
        """Take a pod's newest state; only placed pods that have not ended use room."""
        self.forget(pod.metadata.uid)
        if pod.spec.node_name and not pod.ended:
            amounts = requested(pod) | {"pods": Decimal(1)}
            self._pods[pod.metadata.uid] = (pod.spec.node_name, amounts)
            self._add(pod.spec.node_name, amounts, 1)

    def forget(self, uid: str) -> None:
        """The pod is gone."""
        node, amounts = self._pods.pop(uid, ("", {}))
        self._add(node, amounts, -1)

    def _add(self, node: str, amounts: Amounts, sign: int) -> None:
        used = self._used.setdefault(node, {})
        for name, amount in amounts.items():
            used[name] = used.get(name, _ZERO) + sign * amount

    def fits(self, pod: Pod, nodes: Iterable[Node]) -> bool:
        """True when some Ready node has the room, the labels and no taint against this pod."""
        needs = requested(pod) | {"pods": Decimal(1)}
        return any(_admits(node, pod) and self._has(node, needs) for node in nodes)

    def _has(self, node: Node, needs: Amounts) -> bool:
        used = self._used.get(node.metadata.name, {})
        return all(_allocatable(node, name) - used.get(name, _ZERO) >= least for name, least in needs.items())


def _allocatable(node: Node, name: str) -> Decimal:
    return quantity.parse(node.status.allocatable.get(name, 0)) or _ZERO


def _admits(node: Node, pod: Pod) -> bool:
    if not node.ready or node.spec.unschedulable or node.metadata.deletion_timestamp is not None:
        return False
    labels = node.metadata.labels
    wanted = pod.spec.node_selector or {}
    return (
        all(labels.get(key) == value for key, value in wanted.items())
        and _affinity(pod.spec.affinity or {}, labels, node.metadata.name)
        and all(_tolerated(taint, pod.spec.tolerations or ()) for taint in node.spec.taints or ())
    )


def _tolerated(taint: Taint, tolerations: Sequence[Toleration]) -> bool:
    if taint.effect not in _BLOCKING:
        return True
    return any(
        (not item.effect or item.effect == taint.effect)
        and (item.key == taint.key or (not item.key and item.operator == "Exists"))
        and (item.operator == "Exists" or item.value == taint.value)
        for item in tolerations
    )


def _affinity(affinity: Mapping[str, Any], labels: Mapping[str, str], name: str) -> bool:
    """Required node affinity: any term, all of its expressions. What has an unknown shape does not keep a pod out."""
    required = (affinity.get("nodeAffinity") or {}).get("requiredDuringSchedulingIgnoredDuringExecution")
    terms = (required or {}).get("nodeSelectorTerms") or []
    fields = {"metadata.name": name}
    return not terms or any(
        all(_matches(expression, labels) for expression in term.get("matchExpressions") or ())
        and all(_matches(expression, fields) for expression in term.get("matchFields") or ())
        for term in terms
    )


def _matches(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """One node selector requirement (core/v1 NodeSelectorRequirement)."""
    value = labels.get(expression.get("key", ""))
    values = expression.get("values") or []
    match expression.get("operator"):
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" as operator if value is not None and values:
            return _compares(operator, value, values[0])
    return False


def _compares(operator: str, value: str, bound: str) -> bool:
    try:
        return int(value) > int(bound) if operator == "Gt" else int(value) < int(bound)
    except ValueError:
        return False
