"""The root folder on the node: whose folders are in it, how they are made, cleaned and removed.

Everything here blocks for a moment, so it runs in the agent's one input/output thread, which also keeps two of these
operations from meeting in one folder.
"""

import itertools
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from controllers.regions import fresh, mounts, processes
from controllers.regions.fresh import Outcome, Place
from controllers.regions.layout import Kind
from controllers.regions.mounts import Mount
from controllers.regions.names import ContainerId, Owner
from controllers.regions.processes import MountKey
from controllers.regions.safefs import Folder, Reason, RefusedError

# File systems on which device and inode in /proc/PID/maps were seen to equal stat(); btrfs reports another device.
KNOWN_FILE_SYSTEMS: Final = frozenset({"ext4", "xfs", "tmpfs", "overlay"})
# Processes of any user write into the two region folders; sticky, so that nobody but root moves them away.
LEAF_MODE: Final = 0o777
FOLDER_MODE: Final = 0o1755


# What became of each region of a container.
Outcomes = dict[Kind, Outcome | RefusedError]


class Ground:
    """`root` is an absolute path without links; `kib` bounds each region folder, 0: an unbounded plain folder."""

    def __init__(self, root: Path, *, kib: int) -> None:
        self.root = Path(os.path.realpath(root))
        self._kib = kib

    def containers(self) -> list[ContainerId]:
        """Containers that have a folder. Names that mean nothing to us are not ours to touch."""
        try:
            with Folder.trusted(self.root) as root:
                return list(filter(None, map(ContainerId.parse, sorted(root.names()))))
        except FileNotFoundError:
            return []

    @contextmanager
    def leaf(self, container: ContainerId, kind: Kind) -> Iterator[Folder]:
        """A handle on a region's folder. Raises FileNotFoundError, RefusedError."""
        with self.folder(container) as folder, folder.mount_point(kind) as leaf:
            yield leaf

    @contextmanager
    def folder(self, container: ContainerId) -> Iterator[Folder]:
        """A handle on a container's folder. Raises FileNotFoundError, RefusedError."""
        with Folder.trusted(self.root) as root, root.folder(str(container)) as folder:
            yield folder

    def path(self, container: ContainerId, kind: Kind) -> str:
        """Where a region's folder is, as the host names it."""
        return f"{self.root}/{container}/{kind}"

    # Who lives there

    def keys(
        self, containers: Iterable[ContainerId], table: list[Mount] | None = None
    ) -> dict[MountKey, ContainerId]:
        """How mount tables name the region folders of these containers."""
        covers = {mount.point: mount for mount in table or mounts.own()}
        return {
            _key(covers, self.path(container, kind)): container for container in containers for kind in Kind
        }

    def inhabitants(self, containers: Iterable[ContainerId]) -> Mapping[ContainerId, tuple[int, ...]]:
        """Processes of these containers; the dead ones are missing."""
        return processes.inhabitants(self.keys(containers)).pids

    def deserted(self, container: ContainerId) -> bool:
        """True when no process of the container lives."""
        return container not in self.inhabitants([container])

    # Make, clean, remove

    def make(self, owner: Owner) -> None:
        """Make the folders of a container that is about to start, each bounded. Safe to repeat.

        No bound is put over a folder that a living container uses: its processes must not part.
        """
        self.root.mkdir(mode=0o755, parents=True, exist_ok=True)
        with Folder.trusted(self.root) as root:
            root.make(str(owner.id), FOLDER_MODE)
            with root.folder(str(owner.id)) as folder:
                for kind in Kind:
                    folder.make(kind, LEAF_MODE)
        for kind in self._unbounded(owner.id):
            mounts.bounded(self.path(owner.id, kind), serves=str(owner), kib=self._kib)

    def _unbounded(self, container: ContainerId) -> list[Kind]:
        if not self._kib or not self.deserted(container):
            return []
        covered = {mount.point for mount in mounts.own()}
        return [kind for kind in Kind if self.path(container, kind) not in covered]

    def clean(
        self, containers: Collection[ContainerId], *, found_dead: bool = False
    ) -> dict[ContainerId, Outcomes]:
        """Remove the region files of those that are dead; what became of each. `found_dead`: the caller just looked."""
        found: dict[Place, Outcome | RefusedError] = {}
        with ExitStack() as stack:
            leaves = self._filled_leaves(stack, containers, found)
            if leaves and not found_dead:
                alive = self.inhabitants(containers)
                found |= {place: Outcome.IN_USE for place in leaves if place[0] in alive}
                leaves = {place: leaf for place, leaf in leaves.items() if place[0] not in alive}
            found |= fresh.remove(leaves, deserted=lambda: self._dead(containers), users=processes.used)
        return {c: {kind: found.get((c, kind), Outcome.ABSENT) for kind in Kind} for c in containers}

    def _filled_leaves(
        self,
        stack: ExitStack,
        containers: Collection[ContainerId],
        refused: dict[Place, Outcome | RefusedError],
    ) -> dict[Place, Folder]:
        """The region folders with something in them, on file systems that we know; the others go to `refused`."""
        leaves: dict[Place, Folder] = {}
        covers: dict[str, Mount] = {}
        for place in itertools.product(containers, Kind):
            try:
                leaf = stack.enter_context(self.leaf(*place))
                if leaf.names():
                    covers = covers or {mount.point: mount for mount in mounts.own()}
                    _require_known_file_system(covers, self.path(*place))
                    leaves[place] = leaf
            except FileNotFoundError:
                continue
            except RefusedError as refusal:
                refused[place] = refusal
        return leaves

    def _dead(self, containers: Collection[ContainerId]) -> set[ContainerId]:
        return set(containers) - set(self.inhabitants(containers))

    def retire(self, container: ContainerId, *, everything: bool = False) -> bool:
        """Remove the region folders of a dead container, and its folder when nothing else is in it.

        `everything` also removes what others put there. False: somebody still uses a region, nothing is removed.
        Raises RefusedError when something in the way is not ours to remove.
        """
        try:
            if not self.deserted(container) or not self._unused(container):
                return False
            self._unmount(container)
            with Folder.trusted(self.root) as root, root.folder(str(container)) as folder:
                self._empty(folder, everything=everything)
                if not folder.names():
                    root.remove(str(container))
        except FileNotFoundError:
            pass
        return True

    def _unused(self, container: ContainerId) -> bool:
        outcomes = self.clean([container], found_dead=True)[container].values()
        for outcome in outcomes:
            if isinstance(outcome, RefusedError) and outcome.reason in (Reason.FILE_SYSTEM, Reason.LEASED):
                raise outcome
        return Outcome.IN_USE not in outcomes

    def _unmount(self, container: ContainerId) -> None:
        paths = [self.path(container, kind) for kind in Kind]
        mounts.unmount_all([m.point for m in mounts.own() if m.point in paths and m.serves])

    def _empty(self, folder: Folder, *, everything: bool) -> None:
        if everything:
            folder.empty()
            return
        for kind in set(Kind) & set(folder.names()):
            with folder.folder(kind) as leaf:
                leaf.empty()
            folder.remove(kind)


def _require_known_file_system(covers: Mapping[str, Mount], path: str) -> None:
    cover = _cover(covers, path)
    if cover.kind not in KNOWN_FILE_SYSTEMS:
        raise RefusedError(Reason.FILE_SYSTEM, f"{cover.kind} under {cover.point}: nothing is removed there")


def _cover(covers: Mapping[str, Mount], path: str) -> Mount:
    """The mount that a path is on."""
    while path not in covers:
        path = path.rpartition("/")[0] or "/"
    return covers[path]


def _key(covers: Mapping[str, Mount], path: str) -> MountKey:
    cover = _cover(covers, path)
    below = path.removeprefix(cover.point.rstrip("/"))
    return cover.device, mounts.escaped((cover.root.rstrip("/") + below) or "/")
