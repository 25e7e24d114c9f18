"""Which folders belong to pods that no longer exist. Pure.

Evidence, all of it, or the folder stays: it was unused at every look for the grace time; then the API server was asked
and gave a complete list of the node's pods without it. An API server that cannot be reached removes nothing; a pod so
young that no list has it yet is younger than the grace time.
"""

from collections.abc import Collection, Mapping
from typing import Final

import msgspec

from controllers.regions.names import ContainerId
from service.objects import Pod

# Set by kubelet on the mirror of a static pod: the hash that its folders are named by (kubelet, pkg/kubelet/types).
_STATIC_HASHES: Final = ("kubernetes.io/config.hash", "kubernetes.io/config.mirror")


class Leftovers:
    """Remembers since when each folder is unused. `grace_s` in seconds of the caller's monotonic clock."""

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._since: Mapping[ContainerId, float] = {}

    def due(self, unused: Collection[ContainerId], *, now: float) -> list[ContainerId]:
        """Those that were unused at every look for the grace time; the API server may be asked about them."""
        self._since = {container: self._since.get(container, now) for container in unused}
        return [container for container, since in self._since.items() if now - since >= self._grace_s]


def known_uids(pods: Collection[Pod]) -> set[str]:
    """Every uid that a folder of these pods may be named by."""
    own = {pod.metadata.uid for pod in pods}
    return own | {
        pod.metadata.annotations[key]
        for pod in pods
        for key in _STATIC_HASHES
        if key in pod.metadata.annotations
    }


class PodList(msgspec.Struct, frozen=True):
    """core/v1 PodList without pages: it is asked for whole."""

    items: tuple[Pod, ...]
