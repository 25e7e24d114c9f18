"""What `tenure regions` says: one row per container and device, from a node's root folder or from one file.

Nothing is written, pruned or removed. A file that was copied from elsewhere has no processes here: who lives is then
unknown, and so is the age of its stamps.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from controllers.regions import processes, safefs, sm, vmem
from controllers.regions.ground import Ground
from controllers.regions.layout import Kind, NoDataError, Records, SmDevice, kind_of
from controllers.regions.names import ContainerId, Owner
from controllers.regions.safefs import RefusedError
from controllers.regions.sm import Budget
from controllers.regions.view import Mapped, Trouble, View, view
from controllers.regions.vmem import Ledger
from controllers.regions.volumes import Volumes


class CannotReadError(Exception):
    """There is nothing to show at this path; the text says why."""


class Row(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, rename="camel"):
    """One device of one container. None: not known. Bytes, percent, seconds; pids as the container numbers them."""

    pod: str = ""
    pod_uid: str = ""
    container: str = ""
    device: int | None = None
    card: str = ""
    processes: int | None = None
    """Records in the ledger."""
    stale: int | None = None
    """Records whose process does not map the ledger."""
    corrupt: int = 0
    """Records with an impossible amount; they are not in `used_bytes`, which is then "at least"."""
    used_bytes: int | None = None
    limit_bytes: int | None = None
    limit_cores: int | None = None
    sm_limit: int | None = None
    sm_used: int | None = None
    tokens: int | None = None
    tokens_total: int | None = None
    refill_age_s: float | None = None
    sampling_pid: int | None = None
    sampling_locked: bool | None = None
    """Whether a process holds the lock of the sampling owner; the kernel does not say which."""
    trouble: str = ""

    @property
    def finding(self) -> bool:
        """Something here is not as it should be."""
        return bool(self.trouble or self.stale or self.corrupt)


def of(path: Path, *, kubelet: Path) -> list[Row]:
    """Rows for a root folder, for the folder of one container, or for one region file. Raises CannotReadError."""
    try:
        if path.is_dir():
            one = ContainerId.parse(path.resolve().name)
            return _of_root(path.resolve().parent if one else path, kubelet=kubelet, only=one)
        return list(_of_file(path))
    except FileNotFoundError:
        raise CannotReadError(f"there is nothing at {path}") from None
    except PermissionError:
        raise CannotReadError(f"{path} may not be read: run this as root on the node") from None
    except (NoDataError, RefusedError) as error:
        raise CannotReadError(f"{path} is no region file: {error}") from None


def _of_root(root: Path, *, kubelet: Path, only: ContainerId | None) -> list[Row]:
    ground = Ground(root, kib=0)
    containers = [only] if only else ground.containers()
    mapped = None if processes.sees_every_pod() else Mapped(ground.inhabitants(containers))
    owners = {volume.owner.id: volume.owner for volume in Volumes(ground, kubelet).published()}
    rows: list[Row] = []
    for container in containers:
        fresh = _this_boot(Path(ground.path(container, Kind.SM)) / Kind.SM.file_name)
        found = view(ground, container, mapped, for_people=True)
        rows += _of_view(owners.get(container, Owner(container)), found, this_boot=fresh)
    return rows


def _of_file(path: Path) -> Iterator[Row]:
    with (
        safefs.Folder.trusted(path.resolve().parent) as folder,
        folder.regular(path.resolve().name, size=None) as fd,
    ):
        is_ledger = kind_of(os.pread(fd, 16, 0)) is Kind.VMEM
        seen = View(ledger=vmem.read(fd)) if is_ledger else View(budget=sm.read(fd))
    yield from _of_view(None, seen, this_boot=False)


def _of_view(owner: Owner | None, seen: View, *, this_boot: bool) -> Iterator[Row]:
    troubles = [
        f"{found.word}: {found.sentence}"
        for found in (seen.ledger, seen.budget)
        if isinstance(found, Trouble)
    ]
    base = _identity(owner) | {"trouble": "; ".join(troubles)}
    ledger = seen.ledger.devices if isinstance(seen.ledger, Ledger) else {}
    budget = seen.budget.devices if isinstance(seen.budget, Budget) else {}
    devices = sorted({*ledger, *budget, *seen.limits})
    for device in devices:
        yield Row(
            **base,
            device=device,
            **_memory(seen, ledger.get(device, Records()), device),
            **_limits(seen, device),
            **_budget(seen, budget.get(device), device, this_boot=this_boot),
        )
    if not devices:
        yield Row(**base)


def _identity(owner: Owner | None) -> dict[str, Any]:
    if owner is None:
        return {}
    pod = f"{owner.namespace}/{owner.pod}" if owner.pod else ""
    return {"pod": pod, "pod_uid": owner.id.uid, "container": owner.id.container}


def _memory(seen: View, records: Records, device: int) -> dict[str, Any]:
    if not isinstance(seen.ledger, Ledger):
        return {}
    return {
        "processes": len(records),
        "stale": None if seen.live is None else len(seen.suspects.get(device, Records())),
        "corrupt": len(records.corrupt),
        "used_bytes": records.total,
    }


def _limits(seen: View, device: int) -> dict[str, Any]:
    limits = seen.limits.get(device)
    return {"card": limits.uuid, "limit_bytes": limits.memory, "limit_cores": limits.cores} if limits else {}


def _budget(seen: View, found: SmDevice | None, device: int, *, this_boot: bool) -> dict[str, Any]:
    if found is None:
        return {}
    return {
        "sm_limit": found.limit,
        "sm_used": found.used,
        "tokens": found.tokens,
        "tokens_total": found.total,
        "refill_age_s": sm.age_s(found.last_refill_ns, now_ns=time.monotonic_ns()) if this_boot else None,
        "sampling_pid": found.leader_pid,
        "sampling_locked": device in seen.owners_locked
        if seen.ledger_file or seen.live is not None
        else None,
    }


def _this_boot(path: Path) -> bool:
    """True when the file was written since the machine started: only then its stamps are of this clock."""
    try:
        return path.lstat().st_mtime >= time.time() - time.monotonic()
    except OSError:
        return False
