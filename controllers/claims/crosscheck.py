"""Every attribute that selectors and constraints need, against every device of the newest complete generations.

Presence on the first device proves nothing: the second one may lack the attribute, or have it with another type or
format, and then kube-scheduler leaves the pod Pending without a word about it.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from controllers.claims.cel import Failed, Unknown, lookup
from controllers.claims.matching import Matching
from controllers.claims.objects import Typed
from controllers.claims.report import Code, Finding, fail, hint, some, unknown
from controllers.claims.requirements import Alternative, Requirements, Rule
from controllers.claims.slices import DeviceId, Inventory, Offer

NUMA = "resource.kubernetes.io/numaNode"
PCIE_ROOT = "resource.kubernetes.io/pcieRoot"
# deviceattribute of kubernetes/dynamic-resource-allocation: pci<domain>:<bus>, <domain>:<bus>:<device>.<function>.
_FORMATS = {
    PCIE_ROOT: (re.compile(r"pci[0-9a-f]{4}:[0-9a-f]{2}"), "pci<domain>:<bus>, such as pci0000:60"),
    "resource.kubernetes.io/pciBusID": (
        re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]"),
        "<domain>:<bus>:<device>.<function>, such as 0000:60:00.0",
    ),
}
_KINDS = {NUMA: {"int", "ints"}, PCIE_ROOT: {"string", "strings"}}
# Vendors' names for what the standard attributes say (KEP-6072 and the drivers' documents).
_ALIASES = {"numaNode": {"numanode", "numa", "numanodeid"}, "pcieRoot": {"pcieroot", "pciroot"}}
_UNALIGNED = (
    "use a template without that constraint (manifests/rct/numa-unaligned.yaml), or drivers that publish it "
    "(numaNode: NPU drivers and dranet 1.5.0 or later)"
)


@dataclass(frozen=True, slots=True)
class Candidates:
    """Devices that an alternative may get."""

    wanted: Alternative
    in_class: list[Offer]
    selected: list[Offer]


def devices(inventory: Inventory) -> list[Offer]:
    """Each device that some node can use, once."""
    seen: set[DeviceId] = set()
    found = []
    for node in inventory.nodes:
        for pool in inventory.pools(node):
            for offer in pool.offers:
                if offer.local:
                    found.append(offer)
                elif offer.id not in seen:
                    seen.add(offer.id)
                    found.append(offer)
    return found


def attributes(wanted: Requirements, offers: list[Offer], matching: Matching) -> Iterator[Finding]:
    """Findings about selectors first, then about constraints."""
    found = []
    for one in wanted.alternatives:
        if one.class_known:
            in_class = [offer for offer in offers if matching.in_class(one, offer) is True]
            selected = [offer for offer in in_class if matching.matches(one, offer) is True]
            found.append(Candidates(one, in_class, selected))
    for candidates in found:
        yield from _selectors(candidates, offers, matching)
    for rule in wanted.rules:
        yield from _rule(rule, [c for c in found if rule.covers(c.wanted)])


def _selectors(candidates: Candidates, offers: list[Offer], matching: Matching) -> Iterator[Finding]:
    one = candidates.wanted
    subject = f"request {one.name}"
    yield from _expressions(one, matching)
    errors: dict[str, list[Offer]] = {}
    unclear: dict[str, list[Offer]] = {}
    for offer in offers:
        match matching.matches(one, offer):
            case Failed(reason):
                errors.setdefault(reason, []).append(offer)
            case Unknown(reason):
                unclear.setdefault(reason, []).append(offer)
            case bool():
                continue
    for reason, hit in errors.items():
        yield fail(
            Code.SELECTOR_ERROR,
            subject,
            f"{reason}: on {_share(hit, candidates.in_class or offers)}; such an error ends the pod's whole attempt",
            'guard the attribute with has(...) or .?name.orValue(...), and test device.driver first: "&&" stops there',
        )
    for reason, hit in unclear.items():
        yield unknown(Code.SELECTOR_UNKNOWN, subject, f"{reason}: on {_share(hit, offers)}")
    if not candidates.selected and not errors and not unclear:
        yield from _nothing_selected(candidates, matching)


def _expressions(one: Alternative, matching: Matching) -> Iterator[Finding]:
    for term in one.terms:
        compiled = matching.engine.compile(term.expression)
        for reference, literal in sorted(compiled.reading.too_long, key=str):
            yield fail(
                Code.NEVER_MATCHES,
                term.source,
                f"{reference.name} can never equal a text of {len(literal.encode(errors='replace'))} bytes: "
                "no attribute is longer than 64",
                f'compare with what the driver cut it to, as {reference.name.rpartition("/")[2]}.startsWith("...")',
            )


def _nothing_selected(candidates: Candidates, matching: Matching) -> Iterator[Finding]:
    one = candidates.wanted
    subject = f"request {one.name}"
    if not candidates.in_class:
        yield fail(
            Code.NO_DEVICE,
            subject,
            f"no device of any complete pool belongs to class {one.class_name}",
            "see which drivers have slices: kubectl get resourceslices",
        )
        return
    read = {
        reference.name
        for term in one.own_terms
        for reference in matching.engine.compile(term.expression).reading.references
        if not reference.capacity
    }
    found = [f"{name} is {_values(name, candidates.in_class)}" for name in sorted(read)]
    yield fail(
        Code.NO_DEVICE,
        subject,
        f"none of the {len(candidates.in_class)} devices of class {one.class_name} matches its selectors"
        + (f": {'; '.join(found)}" if found else ""),
        "change or drop the term that excludes them",
    )


def _values(name: str, offers: Iterable[Offer]) -> str:
    counted = Counter(_shown(lookup(offer.device, offer.id.driver, name)) for offer in offers)
    return ", ".join(f"{value} on {count}" for value, count in counted.most_common(3))


def _shown(value: Typed | None) -> str:
    if value is None:
        return "absent"
    content = value[1]
    return str(content).lower() if isinstance(content, bool) else str(content)


def _rule(rule: Rule, covered: list[Candidates]) -> Iterator[Finding]:
    everything = [offer for candidates in covered for offer in candidates.selected]
    for candidates in covered:
        yield from _presence(rule, candidates)
    yield from _types(rule, everything)
    yield from _format(rule, everything)


def _presence(rule: Rule, candidates: Candidates) -> Iterator[Finding]:
    offers = candidates.selected
    missing = [o for o in offers if lookup(o.device, o.id.driver, rule.attribute) is None]
    subject = f"request {candidates.wanted.name}"
    if not missing:
        return
    if len(missing) == len(offers):
        aliases = _aliases(rule.attribute, offers)
        sentence = f"{rule.attribute} is on none of {len(offers)} devices, and {rule} needs it on each"
        yield fail(Code.ATTR_MISSING, subject, sentence, _UNALIGNED)
        if aliases:
            yield hint(
                subject,
                f"the driver publishes {', '.join(sorted(aliases))} instead: it matches among devices of that driver, "
                "never across drivers",
            )
        if rule.attribute == NUMA and all(lookup(o.device, o.id.driver, PCIE_ROOT) for o in offers):
            yield hint(
                subject, f"{PCIE_ROOT} is on all of them", f"matchAttribute {PCIE_ROOT} may do instead"
            )
        return
    yield fail(
        Code.ATTR_PARTIAL,
        subject,
        f"{rule.attribute} is missing on {_share(missing, offers)}: {rule} never takes those",
        "update the driver on these nodes; a device without a NUMA node (numa_node -1) or PCI root publishes nothing",
    )


def _aliases(attribute: str, offers: Iterable[Offer]) -> set[str]:
    wanted = _ALIASES.get(attribute.rpartition("/")[2], {attribute.rpartition("/")[2].lower()})
    return {
        key if "/" in key else f"{offer.id.driver}/{key}"
        for offer in offers
        for key in offer.device.attributes or ()
        if key.rpartition("/")[2].lower() in wanted and key != attribute
    }


def _types(rule: Rule, offers: list[Offer]) -> Iterator[Finding]:
    kinds: dict[str, list[Offer]] = {}
    for offer in offers:
        value = lookup(offer.device, offer.id.driver, rule.attribute)
        if value is not None:
            kinds.setdefault(value[0], []).append(offer)
    allowed = _KINDS.get(rule.attribute)
    wrong = {kind for kind in kinds if allowed is not None and kind not in allowed}
    if wrong:
        hit = [offer for kind in wrong for offer in kinds[kind]]
        yield fail(
            Code.FORMAT_MISMATCH,
            rule.attribute,
            f"it is {some(wrong)} on {_share(hit, offers)}, the standard says {' or '.join(sorted(allowed or ()))}",
            "update that driver",
        )
    if len(kinds) < 2:  # noqa: PLR2004 - one type is no mix
        return
    shown = "; ".join(f"{kind} on {_share(hit, offers)}" for kind, hit in sorted(kinds.items()))
    if len({kind.removesuffix("s") for kind in kinds}) == 1:
        yield unknown(
            Code.TYPE_MIX,
            rule.attribute,
            f"{shown}: a list and a single value match only where gate DRAListTypeAttributes is on",
            "let all drivers publish the same form",
        )
    else:
        yield fail(
            Code.TYPE_MIX,
            rule.attribute,
            f"{shown}: values of different types never match",
            "let all drivers publish the same type",
        )


def _format(rule: Rule, offers: list[Offer]) -> Iterator[Finding]:
    if rule.attribute == NUMA:
        wrong = [o for o in offers if any(isinstance(v, int) and v < 0 for v in _contents(o, NUMA))]
        meaning = "a NUMA node of 0 or more"
    elif rule.attribute in _FORMATS:
        pattern, meaning = _FORMATS[rule.attribute]
        wrong = [
            o
            for o in offers
            if any(isinstance(v, str) and not pattern.fullmatch(v) for v in _contents(o, rule.attribute))
        ]
    else:
        return
    if wrong:
        example = _contents(wrong[0], rule.attribute)[0]
        yield fail(
            Code.FORMAT_MISMATCH,
            rule.attribute,
            f"it is {example!s:.64} on {_share(wrong, offers)}, the standard form is {meaning}: "
            "devices of different drivers never match",
            "update that driver, or leave this constraint out",
        )


def _contents(offer: Offer, name: str) -> tuple[object, ...]:
    value = lookup(offer.device, offer.id.driver, name)
    if value is None:
        return ()
    return value[1] if isinstance(value[1], tuple) else (value[1],)


def _share(hit: list[Offer], of: list[Offer]) -> str:
    """How many, of which driver, and the first names."""
    drivers = some({offer.id.driver for offer in hit})
    names = some((f"{offer.id.pool}/{offer.id.device}" for offer in hit), most=3)
    return f"{len(hit)} of {len(of)} devices ({drivers}: {names})"
