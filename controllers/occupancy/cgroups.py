"""Whose is a process: read from the text of /proc/PID/cgroup, without asking anybody.

Formats: cgroups(7); kubelet's names for pod cgroups (kubelet, cgroup manager: the systemd driver writes the uid with
underscores and slices, cgroupfs with dashes and plain folders); containerd, CRI-O and cri-dockerd put one container
segment right behind the pod's.

Paths are relative to the reader's cgroup namespace. A reader in a private one sees `/../../podX/ID` for another pod
and `/../../../../user.slice` for a host process, so neither a `kubepods` substring nor its absence says anything.
Kernel threads live in the root of every hierarchy: their path, as the same reader sees it, is the way to the root,
and tells a path that reaches the root (then absolute) from one that does not (then "not a pod" cannot be concluded).
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from itertools import takewhile

# cgroups(7): hierarchies that process managers of a version 1 or hybrid system really place processes in.
_V1_ORDER = ("name=systemd", "pids", "memory", "devices", "cpu", "freezer")

_UID = re.compile(
    r"(?:^|-)pod([0-9a-f]{8}([-_])[0-9a-f]{4}\2[0-9a-f]{4}\2[0-9a-f]{4}\2[0-9a-f]{12}|[0-9a-f]{32})"
    r"(?=\.slice(?::|$)|:|$)"
)
_CONTAINER = re.compile(r"(?:^|(?:cri-containerd|crio|docker|libpod)[-:]|:)([0-9a-f]{64})(?:\.scope)?$")
_KUBEPODS = re.compile(r"^(?:kubelet-)?kubepods(?:[-.]|$)")
_CRI_SCOPE = re.compile(r"^(?:cri-containerd|crio)[-:]")


class Managed(StrEnum):
    """Who answers for a holder. `lupine`: the lupine server or its children, wherever they run."""

    K8S = "k8s"
    HOST = "host"
    LUPINE = "lupine"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the cgroup puts a process.

    `pod_uid` has dashes, or is the 32 hex digits of a static pod's manifest hash. `of_user` marks a pod path below a
    login session: users may name cgroups of their own, so there only a pod that exists is believed.
    """

    managed: Managed
    pod_uid: str = ""
    container_id: str = ""
    of_user: bool = False


UNREADABLE = Placement(Managed.UNKNOWN)


def classify(text: str, *, root: str) -> Placement:
    """The placement of the process whose cgroup text is `text`.

    `root` is the cgroup text of a kernel thread as the same reader sees it. Never raises: a text that says nothing
    gives UNREADABLE.
    """
    hierarchy, path = _choose(_lines(text))
    if not path.startswith("/"):
        return UNREADABLE
    segments = [part for part in path.split("/") if part]
    climbs = _climbs(segments)
    absolute = climbs == _way_up(_lines(root).get(hierarchy))
    return _pod(segments[climbs:]) or _no_pod(segments[climbs:], absolute=absolute)


def _lines(text: str) -> dict[str, str]:
    """Hierarchy to path; the version 2 hierarchy is called "", a version 1 one by each of its controllers.

    Only the kernel's line feed ends a line: a name may hold every other character that Unicode calls a line end.
    """
    paths: dict[str, str] = {}
    for line in text.split("\n"):
        number, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if colon and number.isdecimal():
            paths |= dict.fromkeys(controllers.split(","), path.removesuffix(" (deleted)"))
    return paths


def _choose(paths: dict[str, str]) -> tuple[str, str]:
    """The line that accounts the process: version 2 unless it says only `/`, then the usual version 1 ones."""
    order = [name for name in ("", *_V1_ORDER, *paths) if name in paths]
    name = next((name for name in order if paths[name] != "/"), next(iter(order), ""))
    return name, paths.get(name, "")


def _way_up(root: str | None) -> int | None:
    return None if root is None else _climbs(root.split("/")[1:])


def _climbs(segments: list[str]) -> int:
    return len(list(takewhile(lambda part: part == "..", segments)))


def _pod(segments: list[str]) -> Placement | None:
    """The last pod segment counts (nodes that are containers themselves), and the container right behind it.

    Neither the deepest id (docker inside the pod) nor the first (the node's own container) names what kubelet knows.
    """
    for at in range(len(segments) - 1, -1, -1):
        if found := _UID.search(segments[at]):
            inline = segments[at][found.end() :].removeprefix(".slice")
            container = _container(inline or "".join(segments[at + 1 : at + 2]))
            uid = found[1].replace("_", "-")
            return Placement(Managed.K8S, uid, container, of_user=segments[0] == "user.slice")
    return None


def _container(segment: str) -> str:
    found = _CONTAINER.search(segment)
    return found[1] if found else ""


def _no_pod(segments: list[str], *, absolute: bool) -> Placement:
    below_kubepods = any(_KUBEPODS.match(part) for part in segments)
    if absolute and not below_kubepods:
        return Placement(Managed.HOST)
    # A sibling within the reader's own pod shows only its container; the id may still find the pod.
    last = segments[-1] if segments else ""
    return Placement(Managed.UNKNOWN, container_id=_container(last) if _CRI_SCOPE.match(last) else "")
