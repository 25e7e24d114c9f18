"""Region folders: each container that shares a vGPU gets its own two, where the vGPU library looks for them.

Two backends. `csi`: an inline volume of csi.tenure.dev per container; its node agent makes the folders before the
container starts, and the pod goes to nodes that have one. `hostPath`: the node's folder with a sub-path by pod uid,
for clusters without the driver; Pod Security levels other than `privileged` forbid it, and kubelet makes such a
folder for root only.

Where the user mounts a writable volume at a parent, such as `/tmp`, the mount points appear in it as two empty folders.
"""

import hashlib
import itertools
import posixpath
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from service import names
from service.objects import EnvVarSource, FieldRef
from service.settings import RegionSettings
from webhook.admission.draft import ContainerDraft, PodDraft, Reason, RefusalError
from webhook.admission.pod import EnvVar, Volume, VolumeMount

NamespaceLabels = Callable[[str], Mapping[str, str] | None]
"""The labels of a namespace from the cache; None when the cache does not know it."""

_PREFIX = "tenure-regions"
# Hexadecimal digits of a container's name: a hash, because a name of 63 characters leaves no room in a volume's 63.
_DIGEST = 16
_ENFORCE = "pod-security.kubernetes.io/enforce"
# Kubelet makes the mount points of nested mounts in these itself (pkg/volume/util: MakeNestedMountpoints).
_PREPARED = {"configMap", "secret", "downwardAPI", "projected"}
_POD_UID = EnvVar(names.POD_UID_ENV, value_from=EnvVarSource(FieldRef("metadata.uid")))


@dataclass(frozen=True, slots=True)
class RegionPolicy:
    """The settings of region injection."""

    resources: frozenset[str]
    backend: Literal["csi", "hostPath", "off"]
    root: str
    refuse_when_restricted: bool

    @classmethod
    def of(cls, settings: RegionSettings) -> "RegionPolicy":
        """The policy of a settings section."""
        return cls(
            resources=frozenset(settings.resources),
            backend=settings.backend,
            root=str(settings.root),
            refuse_when_restricted=settings.refuse_when_restricted,
        )


def add(draft: PodDraft, policy: RegionPolicy, labels: Callable[[], Mapping[str, str] | None]) -> None:
    """Give regions to the containers that need them. Raises RefusalError, BadCallError."""
    wanting = [] if policy.backend == "off" else _wanting(draft, policy.resources)
    if not wanting:
        return
    if draft.pod.spec.os is not None and draft.pod.spec.os.name == "windows":
        raise RefusalError(
            Reason.WINDOWS,
            f"vGPU regions need Linux containers: remove the vGPU request and annotation {names.REGIONS}, "
            "or set spec.os.name to linux",
        )
    if policy.backend == "csi":
        given = [_by_csi(draft, container) for container in wanting]
        # The scheduler does not know where the driver is; this adds to the pod's own affinity.
        if any(given):
            draft.node_selector.put(names.REGIONS_READY_LABEL, names.REGIONS_READY)
    elif _allowed(draft, policy, labels()):
        for container in wanting:
            _by_host_path(draft, container, policy.root)


def _wanting(draft: PodDraft, resources: frozenset[str]) -> list[ContainerDraft]:
    """The containers that ask for a listed resource, and those that the annotation names; an empty one names all."""
    named = (draft.pod.metadata.annotations or {}).get(names.REGIONS)
    if named is None:
        return [container for container in draft.containers if _asks(container, resources)]
    chosen = {name.strip() for name in named.split(",")} - {""}
    unknown = chosen - {container.name for container in draft.containers}
    if unknown:
        draft.warn(f"annotation {names.REGIONS} names no container {min(unknown)[:63]}")
    return [c for c in draft.containers if not chosen or c.name in chosen or _asks(c, resources)]


def _asks(container: ContainerDraft, resources: frozenset[str]) -> bool:
    limits = container.limits
    return not resources.isdisjoint(limits) and any(
        str(limits[name]) != "0" for name in resources & limits.keys()
    )


def _by_csi(draft: PodDraft, container: ContainerDraft) -> bool:
    digest = hashlib.sha256(container.name.encode(errors="surrogatepass")).hexdigest()[:_DIGEST]
    attributes = {names.CSI_CONTAINER: container.name}
    source = {"csi": {"driver": names.CSI_DRIVER, "volumeAttributes": attributes}}
    volume, is_new = _volume(draft, f"{_PREFIX}-{digest}", source)
    mounts = {kind: VolumeMount(volume, path, sub_path=kind) for kind, path in names.REGION_PATHS.items()}
    return _mount(draft, container, mounts, {"name": volume} | source if is_new else None)


def _by_host_path(draft: PodDraft, container: ContainerDraft, root: str) -> bool:
    source = {"hostPath": {"path": root, "type": "DirectoryOrCreate"}}
    volume, is_new = _volume(draft, _PREFIX, source)
    folder = f"$({names.POD_UID_ENV})_{container.name}"
    mounts = {
        kind: VolumeMount(volume, path, sub_path_expr=f"{folder}/{kind}")
        for kind, path in names.REGION_PATHS.items()
    }
    given = _mount(draft, container, mounts, {"name": volume} | source if is_new else None)
    if given:
        container.set_env(_POD_UID)
    return given


def _volume(draft: PodDraft, wanted: str, source: Volume) -> tuple[str, bool]:
    """`wanted` or the next like it that is ours already (and False) or free (and True)."""
    for number in itertools.count(1):
        name = wanted if number == 1 else f"{wanted}-{number}"
        found = draft.volume_by_name.get(name)
        if found is None or found == {"name": name} | source:
            return name, found is None
    raise AssertionError  # pragma: no cover - the count does not end


def _mount(
    draft: PodDraft, container: ContainerDraft, mounts: Mapping[str, VolumeMount], volume: Volume | None
) -> bool:
    """Mount each kind where there is a place for it, with its switch; True when one is mounted."""
    given = [kind for kind, mount in mounts.items() if _place(draft, container, mount)]
    if given and volume is not None:
        draft.add_volume(volume)
    for kind in given:
        container.default_env(EnvVar(names.REGION_SWITCHES[kind], "true"))
    return bool(given)


def _place(draft: PodDraft, container: ContainerDraft, wanted: VolumeMount) -> bool:
    """True when `wanted` is among the mounts, if need be from now on."""
    path = wanted.mount_path
    there = [mount for mount in container.mounts.items if _clean(mount.mount_path) == path]
    devices = container.view.volume_devices or ()
    if wanted in there:
        return True
    if there or any(_clean(device.device_path) == path for device in devices):
        draft.warn(f"container {container.name[:63]} keeps its own mount at {path}; no region there")
        return False
    parent = _read_only_parent(draft, container, path)
    if parent is not None:
        draft.warn(
            f"container {container.name[:63]} gets no regions: its mount at {parent[:20]} is read-only"
        )
        return False
    container.mounts.append(wanted)
    return True


def _read_only_parent(draft: PodDraft, container: ContainerDraft, path: str) -> str | None:
    """The mount point that `path` would lie in, when nobody can make a folder there (kubernetes issue 121294)."""
    around = [mount for mount in container.mounts.items if _is_below(path, _clean(mount.mount_path))]
    if not around:
        return None
    nearest = max(_clean(mount.mount_path) for mount in around)  # Of nested paths the longest sorts last.
    at_it = [mount for mount in around if _clean(mount.mount_path) == nearest]
    return nearest if any(_is_read_only(draft, mount) for mount in at_it) else None


def _is_read_only(draft: PodDraft, mount: VolumeMount) -> bool:
    volume = draft.volume_by_name.get(mount.name, {})
    if _PREPARED & volume.keys():
        return bool(mount.sub_path or mount.sub_path_expr)
    sources = [source for source in volume.values() if isinstance(source, dict)]
    return mount.read_only or "image" in volume or any(source.get("readOnly") for source in sources)


def _clean(path: str) -> str:
    return posixpath.normpath("/" + path.lstrip("/"))


def _is_below(path: str, parent: str) -> bool:
    return path.startswith(parent.rstrip("/") + "/")


def _allowed(draft: PodDraft, policy: RegionPolicy, labels: Mapping[str, str] | None) -> bool:
    """Whether the namespace lets hostPath in. Raises RefusalError where settings ask for it."""
    level = "unknown" if labels is None else labels.get(_ENFORCE, "privileged")
    if level == "privileged":
        return True
    if policy.refuse_when_restricted:
        raise RefusalError(
            Reason.POD_SECURITY,
            f'vGPU regions need hostPath volumes, which Pod Security level "{level[:20]}" forbids: use another '
            "namespace, or have the administrator set regions.backend to csi",
        )
    draft.warn(f"no vGPU regions: Pod Security level {level[:20]} of the namespace forbids hostPath volumes")
    return False
