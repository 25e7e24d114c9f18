"""Allocations that exist, held against what was asked for: the scheduler has been wrong before.

kube-scheduler could give one request of three or more devices the same value twice under distinctAttribute
(kubernetes/kubernetes#140438), and a driver may change attributes under a claim that is in use.
"""

from collections import Counter
from collections.abc import Iterator

from controllers.claims.allocate import agrees
from controllers.claims.cel import lookup
from controllers.claims.objects import Claim, Result, Typed
from controllers.claims.report import Code, Finding, fail, unknown
from controllers.claims.requirements import Alternative, Requirements, Rule
from controllers.claims.slices import DeviceId, Offer

DeviceMap = dict[DeviceId, list[Offer]]


def device_map(offers: list[Offer]) -> DeviceMap:
    """Devices by their identity; two nodes may wrongly use one identity."""
    found: DeviceMap = {}
    for offer in offers:
        found.setdefault(offer.id, []).append(offer)
    return found


def concerns(claim: Claim, wanted: Requirements) -> bool:
    """True when the allocated claim answers the template's requests: a claim does not name its template."""
    asked = {result.request.partition("/")[0] for result in claim.results}
    return bool(asked) and asked <= {request.name for request in wanted.requests}


def findings(claim: Claim, wanted: Requirements, known: DeviceMap) -> Iterator[Finding]:
    """What is wrong with one allocation."""
    subject = f"claim {claim.metadata.key}"
    by_name = {one.name: one for one in wanted.alternatives}
    given: list[tuple[Alternative, Result, Offer]] = []
    for result in claim.results:
        one = by_name.get(result.request)
        offers = known.get(DeviceId(result.driver, result.pool, result.device), [])
        if one is None or len(offers) != 1:
            why = "no complete pool has it" if not offers else "its name is not unique"
            yield unknown(
                Code.ALLOCATION_UNKNOWN,
                subject,
                f"device {result.driver}/{result.pool}/{result.device} cannot be judged: "
                + (why if one is not None else f"the template has no request {result.request}"),
            )
            continue
        given.append((one, result, offers[0]))
    yield from _counts(subject, given)
    if len(given) == len(claim.results):
        for rule in wanted.rules:
            yield from _rule(subject, rule, given)


def _counts(subject: str, given: list[tuple[Alternative, Result, Offer]]) -> Iterator[Finding]:
    counted = Counter(one.name for one, _, _ in given)
    for one in {one.name: one for one, _, _ in given}.values():
        if not one.every and counted[one.name] != one.count:
            yield fail(
                Code.ALLOCATION_VIOLATES,
                subject,
                f"request {one.name} has {counted[one.name]} devices that exist, asked for were {one.count}",
                _AGAIN,
            )


_AGAIN = "delete the pod, so that it gets another claim; update kube-scheduler if it happens again"


def _rule(subject: str, rule: Rule, given: list[tuple[Alternative, Result, Offer]]) -> Iterator[Finding]:
    values: list[Typed] = []
    for one, _, offer in given:
        if not rule.covers(one):
            continue
        value = lookup(offer.device, offer.id.driver, rule.attribute)
        if value is None:
            yield fail(
                Code.ALLOCATION_VIOLATES,
                subject,
                f"device {offer.id} has no {rule.attribute} (any more), and {rule} needs it",
                "see what changed the driver's slices since the allocation",
            )
            return
        if not agrees(rule, value, values):
            yield fail(
                Code.ALLOCATION_VIOLATES,
                subject,
                f"device {offer.id} with {rule.attribute} = {value[1]} violates {rule}",
                _AGAIN,
            )
            return
        values.append(value)
