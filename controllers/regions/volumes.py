"""CSI volumes: the two region folders of a container, shown where kubelet wants them.

At the target lies a frame, a tiny read-only file system that names whom the volume serves; in it the two region
folders are bind mounts. So the whole state of a volume is in the kernel's mount table, and every step can be repeated
or taken up after a crash: what is not complete is taken away and made anew.
"""

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from controllers.regions import mounts
from controllers.regions.ground import Ground
from controllers.regions.layout import Kind
from controllers.regions.mounts import Mount
from controllers.regions.names import ContainerId, Owner

# Kubelet, pkg/volume/csi: the folder of a CSI volume of a pod.
_TARGET: Final = re.compile(r"/pods/([^/]+)/volumes/kubernetes\.io~csi/[^/]+/mount")


class BadRequestError(Exception):
    """The call cannot be served as it is; the text says what to change."""


class ConflictError(Exception):
    """Another container's volume is published at this target."""


@dataclass(frozen=True, slots=True)
class Published:
    """A volume that shows at `target`."""

    owner: Owner
    target: str


class Volumes:
    """Publishes and takes back. `kubelet` is the kubelet's root folder."""

    def __init__(self, ground: Ground, kubelet: Path) -> None:
        self._ground = ground
        self._kubelet = str(kubelet)

    def published(self) -> list[Published]:
        """All our volumes."""
        return [
            Published(owner, mount.point)
            for mount in mounts.own()
            if mount.serves and self._pod_of(mount.point) and (owner := Owner.parse(mount.serves)) is not None
        ]

    def publish(self, owner: Owner, target: str) -> bool:
        """Show the regions of `owner` at `target`; False when they show there already.

        Raises BadRequestError, ConflictError, RefusedError; OSError for what a later try may cure.
        """
        if self._pod_of(target) != owner.id.uid:
            raise BadRequestError(
                f"target_path is not a CSI volume of pod {owner.id.uid} below {self._kubelet}"
            )
        below = _below(target)
        if self._complete(below, owner, target):
            return False
        others = [mount.serves for mount in below if mount.point == target and mount.serves]
        if any(other != str(owner) for other in others):
            raise ConflictError(f"the volume of {others[-1]} is published there")
        mounts.unmount_all([mount.point for mount in below])
        self._ground.make(owner)
        self._ground.clean([owner.id])
        self._show(owner, target)
        return True

    def unpublish(self, target: str) -> ContainerId | None:
        """Take the volume at `target` away; whose it was, None when there was none. Raises BadRequestError, OSError."""
        if self._pod_of(target) is None:
            raise BadRequestError(f"target_path is not a CSI volume below {self._kubelet}")
        below = _below(target)
        owners = [Owner.parse(mount.serves) for mount in below if mount.point == target and mount.serves]
        mounts.unmount_all([mount.point for mount in below])
        with suppress(FileNotFoundError):
            os.rmdir(target)
        owner = next(filter(None, owners), None)
        return owner.id if owner else None

    def _complete(self, below: list[Mount], owner: Owner, target: str) -> bool:
        if [mount.point for mount in below] != [target, *(f"{target}/{kind}" for kind in Kind)]:
            return False
        keys = self._ground.keys([owner.id])
        return below[0].serves == str(owner) and all(
            (m.device, mounts.escaped(m.root)) in keys for m in below[1:]
        )

    def _show(self, owner: Owner, target: str) -> None:
        os.makedirs(target, mode=0o750, exist_ok=True)
        mounts.frame(target, serves=str(owner))
        for kind in Kind:
            os.mkdir(f"{target}/{kind}", 0o755)
        mounts.seal(target, serves=str(owner))
        for kind in Kind:
            mounts.bind(self._ground.path(owner.id, kind), f"{target}/{kind}")

    def _pod_of(self, target: str) -> str | None:
        if not target.startswith(self._kubelet + "/") or os.path.normpath(target) != target:
            return None
        found = _TARGET.fullmatch(target.removeprefix(self._kubelet))
        return found[1] if found else None


def _below(target: str) -> list[Mount]:
    """Mounts at a path and below it, oldest first."""
    return [m for m in mounts.own() if m.point == target or m.point.startswith(target + "/")]
