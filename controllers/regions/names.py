"""Names of region folders, and where they lie. Pure.

`<root>/<pod-uid>_<container>/{sm_node,vmem_node}` as vgpu-manager's device plugin makes it
(pkg/util: GetPodContainerManagerPath), so that both can live under one root.
"""

import re
from dataclasses import dataclass
from typing import Final, Self

# A uid is a UUID; for a static pod it is the 32 digits of its manifest's hash (kubelet, pkg/kubelet/config/common.go).
_UID: Final = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}"
# A container's name is a DNS label.
_LABEL: Final = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
_NAME: Final = re.compile(rf"({_UID})_({_LABEL})")
_SERVES: Final = re.compile(rf"([^/]*)/([^/]*)/((?:{_UID})_(?:{_LABEL}))")


@dataclass(frozen=True, slots=True, order=True)
class ContainerId:
    """One container of one pod."""

    uid: str
    container: str

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(str(self)):
            raise ValueError(f"{str(self)[:100]!r} is not <pod-uid>_<container>")

    def __str__(self) -> str:
        return f"{self.uid}_{self.container}"

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """The container that a folder belongs to; None for every other name."""
        found = _NAME.fullmatch(name)
        return cls(found[1], found[2]) if found else None


@dataclass(frozen=True, slots=True)
class Owner:
    """A container and the names people know its pod by; empty names: not known."""

    id: ContainerId
    namespace: str = ""
    pod: str = ""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.pod}/{self.id}"

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """The inverse of str(); None for any other text."""
        found = _SERVES.fullmatch(text)
        container = ContainerId.parse(found[3]) if found else None
        return cls(container, found[1], found[2]) if found and container else None
