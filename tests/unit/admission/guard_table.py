"""The table of writes that the guard judges (guard_cases.yaml), as values."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from webhook.admission.reserved import forged, opened

SERVER = "system:serviceaccount:tenure-system:tenure-server"
Keys = dict[str, str | None] | None


@dataclass(frozen=True)
class Metadata:
    annotations: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    gates: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Case:
    """One write. `annotations`, `labels` and `gates` are what it says; `had` is the pod before it."""

    name: str
    way: str
    allowed: bool
    by: str = "tenant"
    had: Metadata = Metadata()
    annotations: Keys = field(default_factory=dict)
    labels: Keys = field(default_factory=dict)
    gates: list[str] | None = None

    @property
    def creates(self) -> bool:
        """A Binding, too, is a new object: what it says is compared with nothing."""
        return self.way in {"create", "binding", "legacy-binding"}

    @property
    def permitted(self) -> bool:
        """What the rule in Python says."""
        had = Metadata() if self.creates else self.had
        found = [
            *forged(had.annotations, _merged(had.annotations, self.annotations)),
            *forged(had.labels, _merged(had.labels, self.labels)),
        ]
        gates = had.gates if self.gates is None else self.gates
        return self.by == "server" or not (found or opened(had.gates, gates))


def _merged(had: dict[str, str], says: Keys) -> dict[str, str]:
    if says is None:
        return {}
    return {key: value for key, value in (had | says).items() if value is not None}


def _case(row: dict[str, Any]) -> Case:
    return Case(**row | {"had": Metadata(**row.get("had", {}))})


CASES = [_case(row) for row in yaml.safe_load((Path(__file__).parent / "guard_cases.yaml").read_text())]
