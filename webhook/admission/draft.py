"""A pod while it is being decided about: the steps of the pipeline read `pod` and edit through this."""

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Generic, TypeVar

import msgspec

from service.objects import Quantity, SchedulingGate
from webhook.admission.patch import ListEditor, MapEditor, Patch
from webhook.admission.pod import Container, EnvVar, Pod, PodClaim, Volume, VolumeMount, volumes

# Kubernetes, "Dynamic Admission Control": warnings above 120 characters should not be sent.
MAX_WARNING = 120
# The API server cuts off warnings once they fill 4,096 characters together (apiserver, warning recorder).
MAX_WARNINGS = 32
# Entries of one name in a container's environment. More would make a patch that costs the API server seconds.
MAX_DOUBLES = 32
# Room for two quoted names of 63 characters and the advice; a hostile name cannot fill the terminal.
MAX_REFUSAL = 400


T = TypeVar("T")


class Reason(Enum):
    """Why a pod is refused."""

    DEMAND = "demand"
    NODE_NAME = "node_name"
    SCHEDULER = "scheduler"
    WINDOWS = "windows"
    POD_SECURITY = "pod_security"
    CLAIM = "claim"
    SIZE = "size"


class Refusal(msgspec.Struct, frozen=True, gc=False):
    """A refused pod: why, and one sentence for its author that says what to change."""

    reason: Reason
    sentence: str


class RefusalError(Exception):
    """Ends the pipeline with a refusal."""

    def __init__(self, reason: Reason, sentence: str) -> None:
        super().__init__(sentence)
        self.refusal = Refusal(reason, one_line(sentence, MAX_REFUSAL))


def one_line(text: str, most: int) -> str:
    """`text` without anything that breaks a line or a terminal, at most `most` characters."""
    if not text.isprintable():
        text = "".join(char if char.isprintable() else "?" for char in text)
    return text if len(text) <= most else text[: most - 3] + "..."


class lazy(Generic[T]):  # noqa: N801 - used like a property
    """A value made at its first use and kept: functools.cached_property without the lock of Python 3.11."""

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make = make
        self._name = make.__name__

    def __get__(self, owner: Any, _: type) -> T:
        value: T = self._make(owner)
        owner.__dict__[self._name] = value
        return value


class ContainerDraft:
    """One container; `path` is its JSON pointer in the object that was sent."""

    def __init__(self, patch: Patch, path: str, view: Container) -> None:
        self.patch = patch
        self.path = path
        self.view = view
        self.name = view.name

    @property
    def limits(self) -> Mapping[str, Quantity]:
        """What it asks for: extended resources stand in the limits, the API server sees to that."""
        resources = self.view.resources
        return (resources.limits if resources else None) or {}

    @lazy
    def env(self) -> ListEditor[EnvVar]:
        """Its environment."""
        return ListEditor(self.patch, f"{self.path}/env", self.view.env)

    @lazy
    def mounts(self) -> ListEditor[VolumeMount]:
        """Its volume mounts."""
        return ListEditor(self.patch, f"{self.path}/volumeMounts", self.view.volume_mounts)

    @lazy
    def resources(self) -> MapEditor:
        """Its resources: only whether the map is there matters, for what is put below it."""
        present = self.view.resources is not None
        return MapEditor(self.patch, f"{self.path}/resources", {} if present else None)

    def set_env(self, wanted: EnvVar) -> bool:
        """Make `wanted` the only entry of its name; True when another one had to go. Raises RefusalError.

        Entries stay in order. A new one comes first, because `$(NAME)` only sees entries above itself.
        """
        places = [i for i, entry in enumerate(self.env.items) if entry.name == wanted.name]
        if len(places) > MAX_DOUBLES:
            raise RefusalError(
                Reason.SIZE,
                f'container "{self.name[:63]}" sets {wanted.name} {len(places)} times: leave it out, Tenure sets it',
            )
        for place in reversed(places[1:]):
            self.env.remove(place)
        if not places:
            self.env.insert(0, wanted)
        elif self.env.items[places[0]] != wanted:
            self.env.replace(places[0], wanted)
            return True
        return len(places) > 1

    def default_env(self, wanted: EnvVar) -> None:
        """Add `wanted` unless the container sets that name itself."""
        if not self.sets_env(wanted.name):
            self.env.insert(0, wanted)

    def sets_env(self, name: str) -> bool:
        """True when its environment has an entry of that name."""
        return name in [entry.name for entry in self.env.items]


class PodDraft:
    """The pod that was sent, with the patch and the warnings that have come together so far.

    `containers`: init containers (sidecars among them), then app containers.
    """

    def __init__(self, pod: Pod) -> None:
        self.pod = pod
        self.patch: Patch = []
        self.warnings: list[str] = []
        self.stripped_keys = 0
        spec = pod.spec
        self.inits = self._drafts("/spec/initContainers", spec.init_containers)
        self.apps = self._drafts("/spec/containers", spec.containers)
        self.containers = self.inits + self.apps

    def _drafts(self, path: str, containers: tuple[Container, ...] | None) -> list[ContainerDraft]:
        return [ContainerDraft(self.patch, f"{path}/{i}", c) for i, c in enumerate(containers or ())]

    @lazy
    def annotations(self) -> MapEditor:
        """Its annotations."""
        return MapEditor(self.patch, "/metadata/annotations", self.pod.metadata.annotations)

    @lazy
    def labels(self) -> MapEditor:
        """Its labels."""
        return MapEditor(self.patch, "/metadata/labels", self.pod.metadata.labels)

    @lazy
    def gates(self) -> ListEditor[SchedulingGate]:
        """Its scheduling gates."""
        return ListEditor(self.patch, "/spec/schedulingGates", self.pod.spec.scheduling_gates)

    @lazy
    def scalars(self) -> MapEditor:
        """Plain fields of its spec."""
        return MapEditor(self.patch, "/spec", {"schedulerName": self.pod.spec.scheduler_name})

    @lazy
    def node_selector(self) -> MapEditor:
        """Its node selector."""
        return MapEditor(self.patch, "/spec/nodeSelector", self.pod.spec.node_selector)

    @lazy
    def volumes(self) -> ListEditor[Volume]:
        """Its volumes. Raises BadCallError where they cannot be read."""
        return ListEditor(self.patch, "/spec/volumes", volumes(self.pod.spec))

    @lazy
    def volume_by_name(self) -> dict[str, Volume]:
        """Its volumes by name."""
        return {volume.get("name", ""): volume for volume in self.volumes.items}

    def add_volume(self, volume: Volume) -> None:
        """Give the pod one more volume, whose name must be free."""
        self.volumes.append(volume)
        self.volume_by_name[volume["name"]] = volume

    @lazy
    def claims(self) -> ListEditor[PodClaim]:
        """Its resource claims."""
        return ListEditor(self.patch, "/spec/resourceClaims", self.pod.spec.resource_claims)

    def warn(self, sentence: str) -> None:
        """Tell the user; the same sentence once."""
        warning = one_line(sentence, MAX_WARNING)
        if warning not in self.warnings and len(self.warnings) < MAX_WARNINGS:
            self.warnings.append(warning)
