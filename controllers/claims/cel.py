"""Evaluates the CEL selectors of DRA with the official C++ engine and the functions that Kubernetes adds to it.

The answer is True, False, Failed (the scheduler meets the same error and gives up the pod's attempt) or Unknown (this
engine cannot tell). What Kubernetes has and this engine lacks: url, ip, cidr, the list and regular expression
libraries, format, and cost limits. (kubernetes: dynamic-resource-allocation/cel, compile.go; apiserver/pkg/cel/library)
"""

import re
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from typing import Any

import msgspec
from cel_expr_python import cel
from cel_expr_python.ext import ext_bindings, ext_optional, ext_strings

from controllers.claims import scan
from controllers.claims.objects import Device, Typed
from controllers.pool.quantity import parse

# resource/v1, CELSelectorExpressionMaxLength: bytes.
MAX_EXPRESSION = 10 * 1024
# The engine has no opaque types: a quantity or version is a map with this one key, which no attribute can be.
_QUANTITY = "kubernetes.Quantity"
_VERSION = "kubernetes.Semver"
# semver.org, version 2.0.0, as github.com/blang/semver parses it.
_NUMBER = r"(?:0|[1-9]\d*)"
_SEMVER = re.compile(
    rf"({_NUMBER})\.({_NUMBER})\.({_NUMBER})(?:-([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?(?:\+[0-9A-Za-z.-]+)?"
)
_SENTENCE = 160


@dataclass(frozen=True, slots=True)
class Failed:
    """An error that the scheduler meets too."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """This engine cannot tell."""

    reason: str


Verdict = bool | Failed | Unknown


@dataclass(slots=True)
class Compiled:
    """An expression, what it reads, and either its program or why there is none."""

    expression: str
    reading: scan.Reading
    program: cel.Expression | None = None
    fault: Failed | Unknown | None = None
    read: tuple[scan.Reference, ...] = ()
    """What it reads by name, in a fixed order."""
    known: dict[Any, Verdict] = field(default_factory=dict)
    """Verdicts by what the expression reads: most devices of a cluster look alike to it."""


class Engine:
    """Compiles each expression once."""

    def __init__(self) -> None:
        extensions = [
            ext_strings.ExtStrings(),
            ext_bindings.ExtBindings(),
            ext_optional.ExtOptional(),
            cel.CelExtension("kubernetes", _declarations()),
        ]
        self._env = cel.NewEnv(variables={"device": cel.Type.DYN}, extensions=extensions)
        self._compiled: dict[str, Compiled] = {}

    def compile(self, expression: str) -> Compiled:
        """Never raises: a fault is part of the answer."""
        found = self._compiled.get(expression)
        if found is None:
            found = self._compiled[expression] = self._compile(expression)
        return found

    def _compile(self, expression: str) -> Compiled:
        if len(expression.encode(errors="surrogatepass")) > MAX_EXPRESSION:
            return Compiled(expression, scan.Reading(), fault=Failed("it is longer than 10 KiB"))
        reading = scan.read(expression)
        ordered = sorted(reading.references, key=lambda one: (one.name, one.capacity))
        found = Compiled(expression, reading, read=tuple(ordered))
        if found.reading.unknown_fields:
            found.fault = Failed(f"a device has no field {min(found.reading.unknown_fields)}")
            return found
        try:
            found.program = self._env.compile(expression)
        except (RuntimeError, ValueError, TypeError, UnicodeError) as error:
            found.fault = _compile_fault(str(error))
        else:
            kind = found.program.return_type()
            if kind not in (cel.Type.BOOL, cel.Type.DYN):
                found.fault = Failed(f"its result is {kind.name()}, not a bool")
        return found

    def matches(self, compiled: Compiled, device: Device, driver: str) -> Verdict:
        """Whether the device matches."""
        if compiled.fault is not None:
            return compiled.fault
        key = _signature(compiled, device, driver)
        verdict = compiled.known.get(key)
        if verdict is None:
            verdict = compiled.known[key] = _evaluate(compiled, device, driver)
        return verdict


def lookup(device: Device, driver: str, name: str) -> Typed | None:
    """The attribute of that qualified name. Keys without a domain are the driver's (allocator: lookupAttribute)."""
    attributes = device.attributes or {}
    found = attributes.get(name)
    if found is None:
        domain, _, key = name.partition("/")
        found = attributes.get(key) if domain == driver else None
    return found.typed if found is not None else None


def _capacity(device: Device, driver: str, name: str) -> object:
    capacity = device.capacity or {}
    found = capacity.get(name)
    if found is None:
        domain, _, key = name.partition("/")
        found = capacity.get(key) if domain == driver else None
    return found.value if found is not None else None


def _signature(compiled: Compiled, device: Device, driver: str) -> Any:
    if compiled.reading.whole:
        return driver, msgspec.json.encode(device)
    values = [
        _capacity(device, driver, one.name) if one.capacity else lookup(device, driver, one.name)
        for one in compiled.read
    ]
    return driver, device.allow_multiple_allocations, *values


def _evaluate(compiled: Compiled, device: Device, driver: str) -> Verdict:
    reading = compiled.reading
    versions_as_text = {
        reference.name
        for reference in reading.as_text
        if not reference.capacity and (lookup(device, driver, reference.name) or ("", None))[0] == "version"
    }
    if versions_as_text:
        # In Kubernetes comparing a version with text is an error where it is reached; here it would be a mere False.
        # Without the attribute the expression fails in just those places.
        verdict = _run(compiled, _activation(reading, device, driver, leave_out=versions_as_text))
        if isinstance(verdict, Failed):
            return Failed(f"{min(versions_as_text)} is a version: compare it with semver(...), not with text")
        return verdict
    return _run(compiled, _activation(reading, device, driver))


def _run(compiled: Compiled, activation: dict[str, Any] | Failed) -> Verdict:
    if isinstance(activation, Failed):
        return activation
    if compiled.program is None:
        return Unknown("it was not compiled")
    try:
        result = compiled.program.eval(data={"device": activation})
    except (RuntimeError, ValueError, TypeError, OverflowError, UnicodeError) as error:
        return Unknown(_one_line(str(error)))
    kind = result.type()
    if kind == cel.Type.BOOL:
        return bool(result.value())
    if kind == cel.Type.ERROR:
        reason = _one_line(str(result.value()))
        return Unknown(reason) if compiled.reading.whole else Failed(_plain(reason))
    return Failed(f"its result is {kind.name()}, not a bool")


def _activation(
    reading: scan.Reading, device: Device, driver: str, *, leave_out: set[str] | frozenset[str] = frozenset()
) -> dict[str, Any] | Failed:
    # An absent domain is an empty map in Kubernetes, so each one that is asked for exists here.
    attributes: dict[str, dict[str, Any]] = {domain: {} for domain in reading.domains}
    capacity: dict[str, dict[str, Any]] = {domain: {} for domain in reading.domains}
    for key, attribute in (device.attributes or {}).items():
        domain, name = _qualified(key, driver)
        typed = attribute.typed
        if typed is None:
            return Failed(f"attribute {domain}/{name} has no value of a known type")
        if f"{domain}/{name}" in leave_out:
            continue
        value = _plain_value(typed)
        if value is None:
            return Failed(f"attribute {domain}/{name} is no semantic version")
        attributes.setdefault(domain, {})[name] = value
    for key, found in (device.capacity or {}).items():
        domain, name = _qualified(key, driver)
        number = parse(found.value)
        capacity.setdefault(domain, {})[name] = {_QUANTITY: _canonical(number or Decimal(0))}
    return {
        "driver": driver,
        "attributes": attributes,
        "capacity": capacity,
        "allowMultipleAllocations": bool(device.allow_multiple_allocations),
    }


def _qualified(key: str, driver: str) -> tuple[str, str]:
    domain, slash, name = key.partition("/")
    return (domain, name) if slash else (driver, key)


def _plain_value(typed: Typed) -> Any:
    kind, value = typed
    if kind == "version":
        return _semver_map(value)
    if kind == "versions":
        versions = [_semver_map(one) for one in value]
        return None if None in versions else versions
    return list(value) if isinstance(value, tuple) else value


def _semver_map(text: str) -> dict[str, str] | None:
    match = _SEMVER.fullmatch(text)
    return {_VERSION: text.partition("+")[0]} if match else None


def _canonical(number: Decimal) -> str:
    return format(number.normalize(), "f")


def _compile_fault(text: str) -> Failed | Unknown:
    line = _one_line(text.removeprefix("INVALID_ARGUMENT: ").removeprefix("ERROR: "))
    return Failed(line) if "Syntax error" in text else Unknown(f"this check cannot evaluate it: {line}")


def _plain(reason: str) -> str:
    missing = re.search(r'Key not found in map : "([^"]*)"', reason)
    return f"a device lacks attribute {missing[1]}" if missing else reason


def _one_line(text: str) -> str:
    line = text.strip().splitlines()[0] if text.strip() else "no reason given"
    return line if len(line) <= _SENTENCE else line[: _SENTENCE - 3] + "..."


# The functions of Kubernetes. They raise ValueError for what is an error there.


def _number(value: Any) -> Decimal:
    if not isinstance(value, dict) or _QUANTITY not in value:
        raise ValueError("no such overload: not a quantity")
    return Decimal(value[_QUANTITY])


def _quantity(text: str) -> dict[str, str]:
    number = parse(text)
    if number is None:
        raise ValueError(f"{text[:40]} is no quantity")
    return {_QUANTITY: _canonical(number)}


def _is_quantity(text: str) -> bool:
    return parse(text) is not None


def _semver(text: str) -> dict[str, str]:
    found = _semver_map(text)
    if found is None:
        raise ValueError(f"{text[:40]} is no semantic version")
    return found


def _precedence(text: str) -> tuple[Any, ...]:
    """Sorts as semver.org, section 11, says."""
    match = _SEMVER.fullmatch(text)
    if match is None:
        raise ValueError("no semantic version")
    core = tuple(int(part) for part in match.groups()[:3])
    if match[4] is None:
        return (*core, 1)
    parts = tuple((0, int(p), "") if p.isdigit() else (1, 0, p) for p in match[4].split("."))
    return (*core, 0, parts)


def _part(place: int, value: Any) -> int:
    return int(_precedence(_version_text(value))[place])


def _version_text(value: Any) -> str:
    if not isinstance(value, dict) or _VERSION not in value:
        raise ValueError("no such overload: not a semver")
    return str(value[_VERSION])


def _comparable(value: Any) -> tuple[str, Any]:
    if isinstance(value, dict) and _VERSION in value:
        return _VERSION, _precedence(value[_VERSION])
    return _QUANTITY, _number(value)


def _compare(left: Any, right: Any) -> int:
    kind, a = _comparable(left)
    other, b = _comparable(right)
    if kind != other:
        raise ValueError("no such overload: a quantity and a semver")
    return int(a > b) - int(a < b)


def _add(sign: int, left: Any, right: Any) -> dict[str, str]:
    other = Decimal(right) if isinstance(right, int) and not isinstance(right, bool) else _number(right)
    return {_QUANTITY: _canonical(_number(left) + sign * other)}


def _as_integer(value: Any) -> int:
    number = _number(value)
    if number != number.to_integral_value() or abs(number) >= 2**63:
        raise ValueError("quantity is no 64-bit integer")
    return int(number)


def _is_integer(value: Any) -> bool:
    number = _number(value)
    return number == number.to_integral_value() and abs(number) < 2**63


def _sign(value: Any) -> int:
    number = _number(value)
    return int(number > 0) - int(number < 0)


def _includes(values: Any, wanted: Any) -> bool:
    """A scalar is a list of one (KEP-5491, list types for attributes)."""
    return wanted in values if isinstance(values, list) else bool(values == wanted)


def _declarations() -> list[cel.FunctionDecl]:
    dyn, text = cel.Type.DYN, cel.Type.STRING
    boolean, integer, double = cel.Type.BOOL, cel.Type.INT, cel.Type.DOUBLE
    free = [
        ("quantity", dyn, [text], _quantity),
        ("isQuantity", boolean, [text], _is_quantity),
        ("semver", dyn, [text], _semver),
        ("isSemver", boolean, [text], lambda value: _semver_map(value) is not None),
    ]
    members = [
        ("compareTo", integer, [dyn, dyn], _compare),
        ("isGreaterThan", boolean, [dyn, dyn], lambda a, b: _compare(a, b) > 0),
        ("isLessThan", boolean, [dyn, dyn], lambda a, b: _compare(a, b) < 0),
        ("add", dyn, [dyn, dyn], partial(_add, 1)),
        ("sub", dyn, [dyn, dyn], partial(_add, -1)),
        ("sign", integer, [dyn], _sign),
        ("isInteger", boolean, [dyn], _is_integer),
        ("asInteger", integer, [dyn], _as_integer),
        ("asApproximateFloat", double, [dyn], lambda value: float(_number(value))),
        ("major", integer, [dyn], partial(_part, 0)),
        ("minor", integer, [dyn], partial(_part, 1)),
        ("patch", integer, [dyn], partial(_part, 2)),
        ("includes", boolean, [dyn, dyn], _includes),
    ]
    return [_declare(*row, is_member=False) for row in free] + [
        _declare(*row, is_member=True) for row in members
    ]


def _declare(
    name: str, returns: cel.Type, parameters: list[cel.Type], impl: Any, *, is_member: bool
) -> cel.FunctionDecl:
    overload = cel.Overload(
        f"kubernetes_{name}", return_type=returns, parameters=parameters, is_member=is_member, impl=impl
    )
    return cel.FunctionDecl(name, [overload])
