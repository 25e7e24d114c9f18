"""The parts of the lab that are built: one Go module each, its programs, and the version that they report."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tests.lab.build import golang

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

MODULES: Final = golang.ROOT / "tests" / "lab" / "go"


class UnknownPartError(golang.BuildError):
    """Nobody knows a part of that name; the message lists the names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Programs that are built together: one Go module, what to build in it, and where its version goes.

    `target` is a package or `tool`, all that go.mod lists as tools. `versioned` is the module in go.mod whose version
    the programs report; `variables` are the Go variables that hold it, with the value's form: version (`v1.36.3`),
    bare (`1.36.3`), major or minor.
    """

    name: str
    module: str
    target: str
    programs: tuple[str, ...]
    versioned: str
    variables: tuple[str, ...]


# kubectl and Helm refuse a server that calls itself v0.0.0-master, so every version is set at link time.
CONTROL_PLANE: Final = Part(
    name="control-plane",
    module="cluster",
    target=".",
    programs=("cluster",),
    versioned="k8s.io/kubernetes",
    variables=(
        "k8s.io/component-base/version.gitVersion={version}",
        "k8s.io/component-base/version.gitMajor={major}",
        "k8s.io/component-base/version.gitMinor={minor}",
    ),
)
NODE: Final = Part(
    name="node",
    module="containerd",
    target="tool",
    programs=("containerd", "containerd-shim-runc-v2", "ctr"),
    versioned="github.com/containerd/containerd/v2",
    variables=("github.com/containerd/containerd/v2/version.Version={bare}",),
)
HELM: Final = Part(
    name="helm",
    module="helm",
    target="tool",
    programs=("helm",),
    versioned="helm.sh/helm/v4",
    variables=("helm.sh/helm/v4/internal/version.version={version}",),
)
PARTS: Final = {part.name: part for part in (CONTROL_PLANE, NODE, HELM)}


def parts_named(names: Iterable[str]) -> list[Part]:
    """Return the parts of these names.

    Raises:
        UnknownPartError: there is none of such a name.
    """
    wanted = list(names)
    if unknown := [name for name in wanted if name not in PARTS]:
        raise UnknownPartError(f"There is no part {', '.join(unknown)}; the parts are {', '.join(PARTS)}.")
    return [PARTS[name] for name in wanted]


def pinned_version(part: Part, modules: Path = MODULES) -> str:
    """Return the version of `part` that its go.mod pins, as Go writes it (`v1.36.3`)."""
    text = (modules / part.module / "go.mod").read_text()
    match = re.search(rf"^(?:require)?\s*{re.escape(part.versioned)} (v\S+)", text, re.MULTILINE)
    if match is None:
        raise golang.BuildError(f"tests/lab/go/{part.module}/go.mod does not require {part.versioned}.")
    return match[1]


def link_flags(part: Part, modules: Path = MODULES) -> list[str]:
    """Return the linker's flags that make `part`'s programs report their pinned version."""
    version = pinned_version(part, modules)
    major, minor, _ = version.removeprefix("v").split(".", 2)
    forms = {"version": version, "bare": version.removeprefix("v"), "major": major, "minor": minor}
    return [f"-X={variable.format_map(forms)}" for variable in part.variables]


def fingerprint(part: Part, modules: Path = MODULES) -> str:
    """Return a digest of all that decides what `part`'s programs are: its module's files and how they are built."""
    digest = hashlib.sha256(f"{part} {golang.GO_FLAGS} {golang.GO_MINOR}".encode())
    for file in sorted((modules / part.module).iterdir()):
        digest.update(f"{file.name} {file.stat().st_size}\n".encode() + file.read_bytes())
    return digest.hexdigest()
