"""What DeviceTaintRules add to the devices of slices, before kube-scheduler looks at them.

Criteria of a selector are ANDed, and one that is left out matches everything: a rule without a selector taints every
device of the cluster. (kubernetes: dynamic-resource-allocation/resourceslice/tracker, applyPatches)
"""

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from controllers.claims.objects import DeviceTaintRule, ResourceSlice, TaintRuleSpec
from controllers.claims.report import Code, Finding, hint, some, unknown
from controllers.claims.slices import DeviceId
from service.objects import Taint

_CRITERIA = ("driver", "pool", "device")
_WHERE = (
    "Kubernetes serves it from 1.37 on; 1.36 with the gate DRADeviceTaintRules and "
    "--runtime-config=resource.k8s.io/v1beta2=true"
)


def tainted(slices: Sequence[ResourceSlice], rules: Iterable[DeviceTaintRule]) -> tuple[ResourceSlice, ...]:
    """The slices with the taints of all rules on their devices. Rules with criteria of the future match, too."""
    exact: dict[tuple[str, ...], list[Taint]] = {}
    loose: list[TaintRuleSpec] = []
    for spec in (rule.spec for rule in rules):
        named = [(spec.device_selector or {}).get(name) for name in _CRITERIA]
        if all(isinstance(name, str) for name in named):
            exact.setdefault(tuple(map(str, named)), []).append(spec.taint)
        else:
            loose.append(spec)
    if not exact and not loose:
        return tuple(slices)
    return tuple(_with_taints(found, exact, loose) for found in slices)


def _with_taints(
    found: ResourceSlice, exact: dict[tuple[str, ...], list[Taint]], loose: Iterable[TaintRuleSpec]
) -> ResourceSlice:
    spec = found.spec
    near = [rule for rule in loose if _matches(rule, driver=spec.driver, pool=spec.pool.name)]
    devices = []
    for device in spec.devices or ():
        added = list(exact.get((spec.driver, spec.pool.name, device.name), ()))
        added += [rule.taint for rule in near if _matches(rule, device=device.name)]
        taints = (*(device.taints or ()), *added)
        devices.append(msgspec.structs.replace(device, taints=taints) if added else device)
    return msgspec.structs.replace(found, spec=msgspec.structs.replace(spec, devices=tuple(devices)))


def _matches(rule: TaintRuleSpec, **given: str) -> bool:
    """Whether no criterion says otherwise. A criterion of another type is the API server's to refuse, and no match."""
    selector = rule.device_selector or {}
    return all(selector.get(name) is None or selector[name] == value for name, value in given.items())


def findings(rules: Sequence[DeviceTaintRule] | None, held: frozenset[DeviceId]) -> Iterator[Finding]:
    """What is to be known about the rules of a cluster; None: the API server does not serve them."""
    if rules is None:
        cards = f": kube-scheduler is not kept off {len(held)} host-held cards" if held else ""
        yield hint("DeviceTaintRule", f"is not available on this API server{cards}", _WHERE)
        return
    bare = [rule.metadata.name for rule in rules if not rule.spec.device_selector]
    if bare:
        yield hint(
            f"DeviceTaintRule {some(bare)}",
            "has no deviceSelector: kube-scheduler up to 1.37.0 taints every device of the cluster",
            "name driver, pool and device in it (kubernetes/kubernetes#141620)",
        )
    strange = [rule.metadata.name for rule in rules if set(rule.spec.device_selector or ()) - set(_CRITERIA)]
    if strange:
        yield unknown(
            Code.CAPACITY_UNKNOWN,
            f"DeviceTaintRule {some(strange)}",
            "selects by more than driver, pool and device, which is not covered: it is counted as if it matched",
        )
