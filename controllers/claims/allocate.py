"""The search for devices, in the scheduler's order: its first solution is ours, and there is none only where none is.

Like kube-scheduler it tries devices in the order of pools, slices and devices, one request after the other, and goes
back where it cannot go on. Unlike it, a device that looks to all requests and constraints like one that just led
nowhere is not tried, so that a large node needs few steps. That skips no first solution: what is behind the second of
two equal devices is behind the first one too. (kubernetes: dynamic-resource-allocation/structured, allocateOne)
"""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from decimal import Decimal

from controllers.claims import requirements, slices
from controllers.claims.cel import Failed, Unknown, Verdict, lookup
from controllers.claims.objects import Typed
from controllers.claims.requirements import Alternative, Requirements, Rule
from controllers.claims.slices import DeviceId, Offer, Pool, PoolState
from controllers.pool.quantity import parse
from service.objects import Taint, Toleration

# Steps of one search. Real claims take a few dozen; kube-scheduler gives up after 10 s, about as many.
MAX_STEPS = 200_000

Matches = Callable[[Alternative, Offer], Verdict]
PoolKey = tuple[str, str]


class CannotTellError(Exception):
    """The search ended without an answer; the text says why."""


class AbortedError(Exception):
    """The scheduler gives up the pod's attempt, on this node and all others; the text says why."""


@dataclass(slots=True)
class Usage:
    """What is taken: devices, and counters of pools."""

    devices: set[DeviceId] = field(default_factory=set)
    counters: dict[tuple[PoolKey, slices.CounterName], Decimal] = field(default_factory=dict)

    def take(self, offer: Offer) -> None:
        """Count a device as allocated."""
        self.devices.add(offer.id)
        self.consume(offer, 1)

    def consume(self, offer: Offer, times: int) -> None:
        """Count its counters only; -1 takes that back."""
        for name, taken in slices.consumed(offer.device).items():
            key = (offer.id.driver, offer.id.pool), name
            self.counters[key] = self.counters.get(key, Decimal(0)) + times * taken


@dataclass(frozen=True, slots=True)
class Given:
    """One device of a solution."""

    alternative: Alternative
    offer: Offer


class Search:
    """One claim on one node. `matches` answers for the selectors of an alternative."""

    def __init__(
        self, wanted: Requirements, pools: Iterable[Pool], *, usage: Usage, matches: Matches
    ) -> None:
        self._wanted = wanted
        self._pools = list(pools)
        self._offers = [offer for pool in self._pools for offer in pool.offers]
        self._limits = {(pool.driver, pool.name): pool.counters for pool in self._pools if pool.counters}
        self._usage = usage
        self._matches = matches
        self._given: list[Given] = []
        self._own: set[DeviceId] = set()
        self._values: dict[int, list[Typed]] = {place: [] for place in range(len(wanted.rules))}
        self._steps = 0
        self._looks: dict[int, Hashable] = {}

    def run(self) -> tuple[Given, ...] | None:
        """The scheduler's solution, or None when there is none. Raises CannotTellError, AbortedError.

        The usage is left as it was.
        """
        self._refuse_unclear()
        solved = self._request(0)
        given = tuple(self._given)
        for one in reversed(given):
            self._take_back(one)
        return given if solved else None

    def _refuse_unclear(self) -> None:
        every = any(alternative.every for alternative in self._wanted.alternatives)
        for pool in self._pools:
            if pool.state is PoolState.INCONSISTENT and (every or self._concerns(pool)):
                raise CannotTellError(
                    f"slices {', '.join(pool.slices)} of pool {pool.name} disagree about their number"
                )
            if pool.state is not PoolState.COMPLETE and every:
                raise AbortedError(
                    f"a request asks for all devices, and pool {pool.name} is {pool.state.value}"
                )

    def _concerns(self, pool: Pool) -> bool:
        """True when a device of a pool that offers nothing would serve this claim."""
        return any(
            self._matches(wanted, offer) is not False
            for wanted in self._wanted.alternatives
            for offer in pool.hidden
        )

    def _request(self, place: int) -> bool:
        if place == len(self._wanted.requests):
            return True
        return any(self._alternative(place, found) for found in self._wanted.requests[place].alternatives)

    def _alternative(self, place: int, wanted: Alternative) -> bool:
        if not wanted.class_known:
            raise AbortedError(f"DeviceClass {wanted.class_name} does not exist")
        if wanted.every:
            return self._every(place, wanted)
        if wanted.count < 1:
            raise CannotTellError(f"request {wanted.name} asks for {wanted.count} devices")
        if len(self._given) + wanted.count > requirements.MAX_DEVICES:
            return False
        return self._count(place, wanted, left=wanted.count, start=0)

    def _every(self, place: int, wanted: Alternative) -> bool:
        chosen = [offer for offer in self._offers if self._fits(wanted, offer)]
        if not chosen or len(self._given) + len(chosen) > requirements.MAX_DEVICES:
            return False
        taken = 0
        for offer in chosen:
            if not self._free(wanted, offer) or not self._give(wanted, offer, must=True):
                break
            taken += 1
        if taken == len(chosen) and self._request(place + 1):
            return True
        for _ in range(taken):
            self._take_back(self._given[-1])
        return False

    def _count(self, place: int, wanted: Alternative, *, left: int, start: int) -> bool:
        if left == 0:
            return self._request(place + 1)
        failed: set[Hashable] = set()
        for at in range(start, len(self._offers) - left + 1):
            offer = self._offers[at]
            if not self._free(wanted, offer):
                continue
            look = self._look(offer, at), offer.id in self._usage.devices
            if look in failed or not self._fits(wanted, offer) or not self._give(wanted, offer):
                continue
            if self._count(place, wanted, left=left - 1, start=at + 1):
                return True
            self._take_back(self._given[-1])
            failed.add(look)
        return False

    def _free(self, wanted: Alternative, offer: Offer) -> bool:
        return offer.id not in self._own and (wanted.admin or offer.id not in self._usage.devices)

    def _fits(self, wanted: Alternative, offer: Offer) -> bool:
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise CannotTellError(f"no answer after {MAX_STEPS} steps of the search")
        verdict = self._matches(wanted, offer)
        if isinstance(verdict, Failed):
            raise AbortedError(f"device {offer.id}: {verdict.reason}")
        if isinstance(verdict, Unknown):
            raise CannotTellError(f"device {offer.id}: {verdict.reason}")
        if not verdict:
            return False
        if offer.device.allow_multiple_allocations:
            raise CannotTellError(f"device {offer.id} is shared by several claims, which is not covered")
        return _has_capacity(wanted, offer)

    def _give(self, wanted: Alternative, offer: Offer, *, must: bool = False) -> bool:
        """Take the device if taints, counters and constraints allow it; with `must` a constraint may not forbid it."""
        if tainted(offer, wanted.tolerations) or not self._counters_allow(offer):
            return False
        values = self._constrained(wanted, offer)
        if values is None and must:
            raise AbortedError(
                f"a constraint forbids device {offer.id}, and request {wanted.name} asks for all"
            )
        if values is None:
            return False
        for rule, value in values:
            self._values[rule].append(value)
        self._own.add(offer.id)
        self._usage.consume(offer, 1)
        self._given.append(Given(wanted, offer))
        return True

    def _take_back(self, one: Given) -> None:
        self._given.pop()
        self._own.discard(one.offer.id)
        self._usage.consume(one.offer, -1)
        for place, rule in enumerate(self._wanted.rules):
            if rule.covers(one.alternative):
                self._values[place].pop()

    def _constrained(self, wanted: Alternative, offer: Offer) -> list[tuple[int, Typed]] | None:
        found = []
        for place, rule in enumerate(self._wanted.rules):
            if not rule.covers(wanted):
                continue
            value = lookup(offer.device, offer.id.driver, rule.attribute)
            if value is None or not agrees(rule, value, self._values[place]):
                return None
            found.append((place, value))
        return found

    def _counters_allow(self, offer: Offer) -> bool:
        key = (offer.id.driver, offer.id.pool)
        limits = self._limits.get(key, {})
        return all(
            self._usage.counters.get((key, name), Decimal(0)) + taken <= limits.get(name, Decimal(0))
            for name, taken in slices.consumed(offer.device).items()
        )

    def _look(self, offer: Offer, at: int) -> Hashable:
        """Equal for devices that no request and no constraint of this claim can tell apart."""
        found = self._looks.get(at)
        if found is None:
            device = offer.device
            selected = tuple(repr(self._matches(other, offer)) for other in self._wanted.alternatives)
            constrained = tuple(
                lookup(device, offer.id.driver, rule.attribute) for rule in self._wanted.rules
            )
            counters = tuple(slices.consumed(device).items())
            capacity = tuple(
                (key, str(value.value)) for key, value in sorted((device.capacity or {}).items())
            )
            shown = capacity if any(other.capacity for other in self._wanted.alternatives) else ()
            found = (selected, constrained, device.taints, offer.id[:2] if counters else (), counters, shown)
            self._looks[at] = found
        return found


def agrees(rule: Rule, value: Typed, others: list[Typed]) -> bool:
    """True when a device with this value may join devices with those."""
    if not others:
        return True
    if not rule.distinct:
        if _is_list(value) or any(_is_list(other) for other in others):
            return bool(frozenset.intersection(_sets(value), *(_sets(other) for other in others)))
        return all(other == value for other in others)
    return all(_sets(value).isdisjoint(_sets(other)) for other in others)


def _is_list(value: Typed) -> bool:
    return isinstance(value[1], tuple)


def _sets(value: Typed) -> frozenset[Typed]:
    """A scalar is a list of one (KEP-5491); values of different types are different."""
    kind, content = value
    if isinstance(content, tuple):
        return frozenset((kind.removesuffix("s"), _distinguished(one)) for one in content)
    return frozenset({(kind, _distinguished(content))})


def _distinguished(value: object) -> object:
    return ("bool", value) if isinstance(value, bool) else value  # True == 1 in Python


def tainted(offer: Offer, tolerations: Iterable[Toleration]) -> bool:
    """True when a taint of the device keeps a request with these tolerations away (resource/v1, DeviceTaint)."""
    return any(
        taint.effect in {"NoSchedule", "NoExecute"} and not any(_tolerates(one, taint) for one in tolerations)
        for taint in offer.device.taints or ()
    )


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator == "Exists":
        return True
    return bool(toleration.key) and toleration.value == taint.value


def _has_capacity(wanted: Alternative, offer: Offer) -> bool:
    """A device that one claim has for itself must be at least as large as asked for."""
    for name, asked in ((wanted.capacity.requests if wanted.capacity else None) or {}).items():
        found = (offer.device.capacity or {}).get(name)
        if found is None:
            return False
        if found.request_policy is not None:
            raise CannotTellError(f"device {offer.id} rounds requests for {name}, which is not covered")
        if (parse(asked) or Decimal(0)) > slices.amount(found.value):
            return False
    return True
