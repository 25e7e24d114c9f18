"""The pods of this node, as far as a cgroup path or a container id can name them. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from service.objects import ObjectMeta, Projection

# kubelet, config types: the uid in a static pod's cgroup is the hash of its manifest; the mirror pod bears it here.
_CONFIG_HASH = "kubernetes.io/config.hash"


class ContainerStatus(Projection, frozen=True):
    """core/v1 ContainerStatus: `container_id` is `RUNTIME://ID`."""

    container_id: str = msgspec.field(default="", name="containerID")


class NodePodStatus(Projection, frozen=True):
    """core/v1 PodStatus, the containers only."""

    container_statuses: tuple[ContainerStatus, ...] | None = None
    init_container_statuses: tuple[ContainerStatus, ...] | None = None
    ephemeral_container_statuses: tuple[ContainerStatus, ...] | None = None


class NodePod(Projection, frozen=True):
    """core/v1 Pod for the join with processes."""

    metadata: ObjectMeta
    status: NodePodStatus = NodePodStatus()

    def names(self) -> Iterable[str]:
        """Everything that a process's placement may call this pod."""
        yield self.metadata.uid
        yield self.metadata.annotations.get(_CONFIG_HASH, "")
        kinds = (
            self.status.container_statuses,
            self.status.init_container_statuses,
            self.status.ephemeral_container_statuses,
        )
        for statuses in kinds:
            for status in statuses or ():
                yield status.container_id.rpartition("//")[2]


@dataclass(frozen=True, slots=True)
class PodIndex:
    """Pods by uid, manifest hash and container id. `complete` is False until the node's pods were listed."""

    by_name: Mapping[str, ObjectMeta] = field(default_factory=dict)
    complete: bool = False

    @staticmethod
    def of(pods: Iterable[NodePod]) -> "PodIndex":
        """The index of all pods of the node."""
        return PodIndex({name: pod.metadata for pod in pods for name in pod.names() if name}, complete=True)

    def find(self, uid: str, container_id: str) -> ObjectMeta | None:
        """The pod that a process's placement names, or None."""
        return self.by_name.get(uid) or self.by_name.get(container_id)
