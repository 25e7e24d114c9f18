"""What a template needs: its requests with every alternative, the classes' and its own selectors, its constraints."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from controllers.claims.objects import CapacityRequirements, DeviceClaim, DeviceClass, Selector, Wish
from service.objects import Toleration

# resource/v1, AllocationResultsMaxSize: devices of one claim.
MAX_DEVICES = 32


@dataclass(frozen=True, slots=True)
class Term:
    """One selector; `source` names the object that it stands in."""

    expression: str
    source: str


@dataclass(frozen=True, slots=True)
class Alternative:
    """One way to satisfy a request: the request itself, or one entry of `firstAvailable`."""

    base: str
    """The request's name."""
    sub: str
    """The entry's name; empty for a request without alternatives."""
    class_name: str
    class_known: bool
    class_terms: tuple[Term, ...]
    own_terms: tuple[Term, ...]
    count: int
    every: bool
    """allocationMode All: each matching device, at least one."""
    admin: bool
    tolerations: tuple[Toleration, ...]
    capacity: CapacityRequirements | None

    @property
    def name(self) -> str:
        """As allocation results call it (resource/v1, DeviceRequestAllocationResult.request)."""
        return f"{self.base}/{self.sub}" if self.sub else self.base

    @property
    def terms(self) -> tuple[Term, ...]:
        """All selectors, in the order in which the scheduler evaluates them."""
        return self.class_terms + self.own_terms


@dataclass(frozen=True, slots=True)
class Request:
    """A request; its alternatives in the order of preference, one for a plain request."""

    name: str
    alternatives: tuple[Alternative, ...]


@dataclass(frozen=True, slots=True)
class Rule:
    """A constraint over the devices of `requests` (names, or `name/entry`); none named means all."""

    requests: frozenset[str]
    attribute: str
    distinct: bool

    def covers(self, alternative: Alternative) -> bool:
        """True when devices of this alternative must obey."""
        return not self.requests or alternative.base in self.requests or alternative.name in self.requests

    def __str__(self) -> str:
        return f"{'distinctAttribute' if self.distinct else 'matchAttribute'} {self.attribute}"


@dataclass(frozen=True, slots=True)
class Requirements:
    """All of a template. `faults` are sentences about what no allocator could satisfy."""

    requests: tuple[Request, ...]
    rules: tuple[Rule, ...]
    faults: tuple[str, ...] = ()

    @property
    def alternatives(self) -> tuple[Alternative, ...]:
        """Every alternative of every request."""
        return tuple(alternative for request in self.requests for alternative in request.alternatives)

    @property
    def class_names(self) -> tuple[str, ...]:
        """The classes that are named, each once, in order."""
        return tuple(dict.fromkeys(alternative.class_name for alternative in self.alternatives))


def of(claim: DeviceClaim, classes: Mapping[str, DeviceClass]) -> Requirements:
    """What this claim needs, with the classes that exist."""
    requests = tuple(
        Request(
            request.name,
            tuple(_alternatives(request.name, request.exactly, request.first_available, classes)),
        )
        for request in claim.requests or ()
    )
    rules = tuple(
        Rule(frozenset(found.requests or ()), attribute, distinct=found.match_attribute is None)
        for found in claim.constraints or ()
        if (attribute := found.match_attribute or found.distinct_attribute)
    )
    return Requirements(requests, rules, tuple(_faults(claim, requests)))


def _alternatives(
    name: str, exactly: Wish | None, first: Iterable[Wish] | None, classes: Mapping[str, DeviceClass]
) -> Iterator[Alternative]:
    if exactly is not None:
        yield _alternative(name, "", exactly, classes)
    for wish in first or ():
        yield _alternative(name, wish.name, wish, classes)


def _alternative(base: str, sub: str, wish: Wish, classes: Mapping[str, DeviceClass]) -> Alternative:
    found = classes.get(wish.device_class_name)
    name = f"{base}/{sub}" if sub else base
    return Alternative(
        base=base,
        sub=sub,
        class_name=wish.device_class_name,
        class_known=found is not None,
        class_terms=_terms(found.spec.selectors if found else None, f"class {wish.device_class_name}"),
        own_terms=_terms(wish.selectors, f"request {name}"),
        count=1 if wish.count is None else wish.count,
        every=wish.allocation_mode == "All",
        admin=bool(wish.admin_access),
        tolerations=wish.tolerations or (),
        capacity=wish.capacity,
    )


def _terms(selectors: Iterable[Selector] | None, source: str) -> tuple[Term, ...]:
    return tuple(
        Term(selector.cel.expression, f"{source}, selector {place}")
        for place, selector in enumerate(selectors or ())
        if selector.cel is not None
    )


def _faults(claim: DeviceClaim, requests: tuple[Request, ...]) -> Iterator[str]:
    if not requests:
        yield "it has no request under spec.spec.devices.requests: it asks for no device"
    for request in requests:
        yield from _request_faults(request)
    least = sum(min((a.count for a in r.alternatives if not a.every), default=1) for r in requests)
    if least > MAX_DEVICES:
        yield f"it asks for at least {least} devices, and a claim holds at most {MAX_DEVICES}: split it"
    yield from _constraint_faults(claim, requests)


def _request_faults(request: Request) -> Iterator[str]:
    if not request.alternatives:
        yield (
            f"request {request.name} has neither exactly nor firstAvailable: the API server dropped what it does "
            "not know (older than Kubernetes 1.34), or it was never there"
        )
    for one in request.alternatives:
        if not one.every and one.count < 1:
            yield f"request {one.name} asks for {one.count} devices: ask for at least one"


def _constraint_faults(claim: DeviceClaim, requests: tuple[Request, ...]) -> Iterator[str]:
    alternatives = [one for request in requests for one in request.alternatives]
    known = {one.base for one in alternatives} | {one.name for one in alternatives}
    for constraint in claim.constraints or ():
        if not (constraint.match_attribute or constraint.distinct_attribute):
            yield "a constraint has neither matchAttribute nor distinctAttribute: no scheduler can satisfy it"
        for missing in sorted(set(constraint.requests or ()) - known):
            yield f"a constraint names request {missing}, which does not exist"
