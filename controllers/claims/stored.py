"""What the API server made of a template: fields that feature gates drop are gone without a word.

The gate table is from kube-features of Kubernetes 1.37 and the KEPs of DRA.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from controllers.claims.report import Code, Finding, fail

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


@dataclass(frozen=True, slots=True)
class Gate:
    """A feature gate: the minor version of 1.x from which it exists, and from which it is on by itself."""

    name: str
    since: int
    on: int
    components: str = "kube-apiserver, kube-scheduler and kubelet"

    def advice(self, minor: int | None) -> str:
        """What to do about it on 1.`minor`; None: the version is not known."""
        switch = f"set --feature-gates={self.name}=true on {self.components}"
        if minor is None:
            return f"{switch} (on by itself from 1.{self.on})"
        if minor < self.since:
            return f"Kubernetes 1.{minor} does not know it: update to 1.{self.on}"
        if minor < self.on:
            return f"{switch}, or update to 1.{self.on}, where it is on"
        return f"somebody switched it off: {switch}"


_GATES = {
    "distinctAttribute": Gate("DRAConsumableCapacity", 34, 36),
    "capacity": Gate("DRAConsumableCapacity", 34, 36),
    "firstAvailable": Gate("DRAPrioritizedList", 33, 34, "kube-apiserver and kube-scheduler"),
    "tolerations": Gate(
        "DRADeviceTaints", 33, 36, "kube-apiserver, kube-controller-manager and kube-scheduler"
    ),
    "adminAccess": Gate("DRAAdminAccess", 32, 34, "kube-apiserver and kube-scheduler"),
}


def gate_of(path: str) -> Gate | None:
    """The gate that the field at a path such as `constraints[1].distinctAttribute` hangs on."""
    last = path.rpartition(".")[2].partition("[")[0]
    return _GATES.get(last)


def meant(stored: dict[str, Any]) -> dict[str, Any] | None:
    """The template as `kubectl apply` sent it, from the annotation that it leaves; None without one."""
    annotations = (stored.get("metadata") or {}).get("annotations") or {}
    try:
        found = msgspec.json.decode(annotations.get(LAST_APPLIED, ""))
    except (msgspec.DecodeError, UnicodeError, RecursionError, TypeError):
        return None
    return found if isinstance(found, dict) else None


def dropped(wanted: Any, stored: Any, path: str = "") -> Iterator[str]:
    """Paths of fields that were sent and are not stored, or are stored differently."""
    if isinstance(wanted, dict):
        fields = stored if isinstance(stored, dict) else {}
        for key, value in wanted.items():
            below = f"{path}.{key}" if path else str(key)
            if value is None or value in ([], {}):
                continue
            if key not in fields:
                yield below
            else:
                yield from dropped(value, fields[key], below)
    elif isinstance(wanted, list):
        items = stored if isinstance(stored, list) else []
        for place, value in enumerate(wanted):
            yield from dropped(value, items[place] if place < len(items) else None, f"{path}[{place}]")
    elif wanted != stored and str(wanted) != str(stored):
        yield path


def findings(
    wanted: dict[str, Any], stored: dict[str, Any], *, subject: str, minor: int | None
) -> Iterator[Finding]:
    """One finding per field of the spec that did not survive."""
    for path in dropped(_spec(wanted), _spec(stored)):
        gate = gate_of(path)
        if gate is None:
            sentence = f"field {path} was sent and is not stored as sent"
            advice = "compare what you apply with kubectl get resourceclaimtemplate -o yaml"
        else:
            sentence = f"the API server dropped {path}: feature gate {gate.name} is off"
            advice = gate.advice(minor)
        yield fail(Code.GATE_DROPPED, subject, sentence, advice)


def refused(wanted: dict[str, Any], refusal: str, *, subject: str, minor: int | None) -> Iterator[Finding]:
    """Gated fields of the part that the API server refuses: it drops the field first, and then misses it."""
    for path in _gated(_spec(wanted)):
        gate = gate_of(path)
        if gate is not None and f"devices.{path.rpartition('.')[0]}" in refusal:
            yield fail(
                Code.GATE_DROPPED,
                subject,
                f"it has {path}, which the API server drops before it looks where feature gate {gate.name} is off",
                gate.advice(minor),
            )


def _gated(value: Any, path: str = "") -> Iterator[str]:
    """Paths of all fields that hang on a gate."""
    if isinstance(value, dict):
        for key, below in value.items():
            here = f"{path}.{key}" if path else str(key)
            if key in _GATES:
                yield here
            else:
                yield from _gated(below, here)
    elif isinstance(value, list):
        for place, below in enumerate(value):
            yield from _gated(below, f"{path}[{place}]")


def _spec(template: dict[str, Any]) -> Any:
    spec = template.get("spec")
    inner = spec.get("spec") if isinstance(spec, dict) else None
    return inner.get("devices") if isinstance(inner, dict) else None
