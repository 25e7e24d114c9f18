"""The chart's values as a person reads them: path, default, and the comment above."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from tests.lab.layout import REPOSITORY

CHART: Final = REPOSITORY / "charts" / "tenure"
DOCUMENT: Final = REPOSITORY / "docs" / "values.md"
_KEY: Final = re.compile(r"^( *)([A-Za-z]\w*):(.*)$")
_INTRODUCTION: Final = """\
# Values of the chart

Made of `charts/tenure/values.yaml` by `make generate`. `helm show values charts/tenure` prints the file itself. Unknown
keys are refused.

| value | default | what it is |
|---|---|---|
"""


@dataclass(frozen=True, slots=True)
class Value:
    """One value that a person sets. `text` is empty where no comment stands above it."""

    path: str
    default: Any
    text: str


def load(chart: Path = CHART) -> Any:
    """values.yaml as data."""
    return yaml.safe_load((chart / "values.yaml").read_text())


def values(text: str) -> list[Value]:
    """Every leaf of a values file, in its order. A map on one line (`{}`, `{a: b}`) is a leaf."""
    tree = yaml.safe_load(text)
    found: list[Value] = []
    parents: list[str] = []
    comment: list[str] = []
    for line in text.splitlines():
        if line.strip().startswith("#"):
            comment.append(line.strip().lstrip("#").strip())
        elif (match := _KEY.match(line)) is None:
            comment = []
        else:
            depth = len(match[1]) // 2
            parents = [*parents[:depth], match[2]]
            path = ".".join(parents)
            if match[3].strip():
                found.append(Value(path, _at(tree, path), " ".join(comment)))
            comment = []
    return found


def _at(tree: Mapping[str, Any], path: str) -> Any:
    found: Any = tree
    for part in path.split("."):
        found = found[part]
    return found


def table(text: str) -> str:
    """docs/values.md."""
    return _INTRODUCTION + "".join(_rows(values(text)))


def _rows(found: list[Value]) -> Iterator[str]:
    for value in found:
        default = json.dumps(value.default, ensure_ascii=False)
        yield f"| `{value.path}` | `{default}` | {value.text.replace('|', '&#124;')} |\n"
