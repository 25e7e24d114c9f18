"""What a check of a claim template found. `pass` means that it was looked at and is right; unknown never passes."""

from collections.abc import Iterable
from enum import StrEnum

import msgspec


class Verdict(StrEnum):
    """The outcome of a check."""

    PASS = "pass"  # noqa: S105 - a verdict
    FAIL = "fail"
    UNKNOWN = "unknown"


class Code(StrEnum):
    """What can be found, as a closed set for metrics."""

    CLASS_MISSING = "CLASS_MISSING"
    SELECTOR_ERROR = "SELECTOR_ERROR"
    SELECTOR_UNKNOWN = "SELECTOR_UNKNOWN"
    NEVER_MATCHES = "NEVER_MATCHES"
    NO_SLICE = "NO_SLICE"
    NO_SLICE_OF_DRIVER_POD = "NO_SLICE_OF_DRIVER_POD"
    POOL_INCOMPLETE = "POOL_INCOMPLETE"
    POOL_INCONSISTENT = "POOL_INCONSISTENT"
    POOL_INVALID = "POOL_INVALID"
    UNREADABLE = "UNREADABLE"
    DOUBLE_ADVERTISED = "DOUBLE_ADVERTISED"
    TEMPLATE_MISSING = "TEMPLATE_MISSING"
    TEMPLATE_INVALID = "TEMPLATE_INVALID"
    GATE_DROPPED = "GATE_DROPPED"
    ALLOCATION_VIOLATES = "ALLOCATION_VIOLATES"
    ALLOCATION_UNKNOWN = "ALLOCATION_UNKNOWN"
    NO_DEVICE = "NO_DEVICE"
    ATTR_MISSING = "ATTR_MISSING"
    ATTR_PARTIAL = "ATTR_PARTIAL"
    TYPE_MIX = "TYPE_MIX"
    FORMAT_MISMATCH = "FORMAT_MISMATCH"
    HINT = "HINT"
    NO_CAPACITY = "NO_CAPACITY"
    CAPACITY_UNKNOWN = "CAPACITY_UNKNOWN"
    RDMA_DRIVER_MISSING = "RDMA_DRIVER_MISSING"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One line: what is so, about whom, and what to do."""

    code: Code
    verdict: Verdict
    subject: str
    sentence: str
    advice: str = ""


class Check(msgspec.Struct, frozen=True):
    """One of the checks, with everything that it found."""

    name: str
    verdict: Verdict
    findings: tuple[Finding, ...] = ()

    @classmethod
    def of(cls, name: str, findings: Iterable[Finding]) -> "Check":
        """The worst finding decides."""
        found = tuple(findings)
        return cls(name, worst(finding.verdict for finding in found), found)


class Room(msgspec.Struct, frozen=True, omit_defaults=True):
    """Pods that still fit on a node; null where it cannot be told."""

    node: str
    pods: int | None
    by_numa: dict[str, int] = {}
    limit: str = ""
    reason: str = ""


class Report(msgspec.Struct, frozen=True):
    """The whole answer. `pods` is the sum of the nodes that could be told."""

    template: str
    verdict: Verdict
    checks: tuple[Check, ...]
    pods: int
    capacity: tuple[Room, ...] = ()


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """A failure outweighs what is unknown, and that outweighs a pass."""
    found = set(verdicts)
    for verdict in (Verdict.FAIL, Verdict.UNKNOWN):
        if verdict in found:
            return verdict
    return Verdict.PASS


def fail(code: Code, subject: str, sentence: str, advice: str = "") -> Finding:
    """A finding that says no."""
    return Finding(code=code, verdict=Verdict.FAIL, subject=subject, sentence=sentence, advice=advice)


def unknown(code: Code, subject: str, sentence: str, advice: str = "") -> Finding:
    """A finding that cannot tell."""
    return Finding(code=code, verdict=Verdict.UNKNOWN, subject=subject, sentence=sentence, advice=advice)


def hint(subject: str, sentence: str, advice: str = "") -> Finding:
    """Something worth knowing that is not wrong."""
    return Finding(code=Code.HINT, verdict=Verdict.PASS, subject=subject, sentence=sentence, advice=advice)


def some(names: Iterable[str], most: int = 4) -> str:
    """The first of many names, and how many more there are."""
    listed = sorted(names)
    more = len(listed) - most
    return ", ".join(listed[:most]) + (f" and {more} more" if more > 0 else "")
