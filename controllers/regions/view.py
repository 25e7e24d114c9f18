"""What the regions of a container say, and which of its processes say it. Reads only."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from controllers.regions import layout, locks, processes, safefs, sm, vgpu, vmem
from controllers.regions.ground import Ground
from controllers.regions.layout import Kind, NoDataError, Records
from controllers.regions.names import ContainerId
from controllers.regions.safefs import FileId, Folder, RefusedError
from controllers.regions.sm import Budget
from controllers.regions.vgpu import Limits
from controllers.regions.vmem import Ledger

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why there is no answer: one word for metrics, a sentence for people."""

    word: str
    sentence: str


@dataclass(frozen=True, slots=True)
class View:
    """One container. `live`: pids, as the container numbers them, that map the ledger; None: nobody could look."""

    ledger: Ledger | Trouble | None = None
    budget: Budget | Trouble | None = None
    live: frozenset[int] | None = None
    ledger_file: FileId | None = None
    limits: Mapping[int, Limits] = field(default_factory=dict)
    owners_locked: frozenset[int] = frozenset()
    """Devices whose sampling owner holds its lock. This and `limits` are looked up for people only."""

    @property
    def suspects(self) -> dict[int, Records]:
        """Records whose owner was not seen, by device."""
        if not isinstance(self.ledger, Ledger) or self.live is None:
            return {}
        live = self.live
        if live.issuperset(self.ledger.pids):
            return {}
        return {
            device: Records.of(record for record in records if record.pid not in live)
            for device, records in self.ledger.devices.items()
            if not live.issuperset(records.pids)
        }


class Mapped:
    """What the processes of all containers map, read once for a whole sweep."""

    def __init__(self, inhabitants: Mapping[ContainerId, tuple[int, ...]]) -> None:
        self._inhabitants = inhabitants
        self._maps: dict[int, set[tuple[bytes, bytes]] | None] = {}

    def live(self, container: ContainerId, file: FileId) -> frozenset[int]:
        """Inner pids of the container's processes that map the file, or may."""
        wanted = processes.as_in_maps(file)
        members = (pid for pid in self._inhabitants.get(container, ()) if self._may_map(pid, wanted))
        return frozenset(inner for pid in members if (inner := processes.inner_pid(pid)) is not None)

    def _may_map(self, pid: int, wanted: tuple[bytes, bytes]) -> bool:
        if pid not in self._maps:
            self._maps[pid] = processes.maps(pid)
        mapped = self._maps[pid]
        return mapped is None or wanted in mapped


def view(ground: Ground, container: ContainerId, mapped: Mapped | None, *, for_people: bool = False) -> View:
    """Read the regions of one container; `for_people`: everything that its folder has."""
    try:
        with ground.folder(container) as folder:
            seen = _view(folder, container, mapped)
            return _completed(seen, folder) if for_people else seen
    except FileNotFoundError:
        return View()
    except RefusedError as refusal:
        trouble = Trouble(refusal.reason, str(refusal))
        return View(ledger=trouble, budget=trouble)


def _view(folder: Folder, container: ContainerId, mapped: Mapped | None) -> View:
    seen: list[FileId] = []

    def read_ledger(leaf: Folder) -> Ledger:
        with leaf.regular(Kind.VMEM.file_name, size=Kind.VMEM.file_size) as fd:
            seen.append(safefs.file_id(fd))
            return vmem.read(fd)

    ledger = _region(folder, Kind.VMEM, read_ledger)
    return View(
        ledger=ledger,
        budget=_region(folder, Kind.SM, _read_budget),
        live=_live(ledger, mapped, container, seen[0]) if mapped and seen else None,
        ledger_file=seen[0] if seen else None,
    )


def _live(
    ledger: Ledger | Trouble | None, mapped: Mapped, container: ContainerId, file: FileId
) -> frozenset[int]:
    """Who maps the ledger; nobody is looked for where nobody has a record: a CUDA process has thousands of mappings."""
    has_records = isinstance(ledger, Ledger) and ledger.devices
    return mapped.live(container, file) if has_records else frozenset()


def _read_budget(leaf: Folder) -> Budget:
    with leaf.regular(Kind.SM.file_name, size=Kind.SM.file_size) as fd:
        return sm.read(fd)


def _completed(seen: View, folder: Folder) -> View:
    owners = _region(folder, Kind.SM, _owners_locked)
    locked = owners if isinstance(owners, frozenset) else frozenset()
    return replace(seen, limits=_limits(folder), owners_locked=locked)


def _region(folder: Folder, kind: Kind, read: Callable[[Folder], T]) -> T | Trouble | None:
    try:
        with folder.mount_point(kind) as leaf:
            return read(leaf)
    except FileNotFoundError:
        return None
    except NoDataError as error:
        return Trouble(error.layout, str(error))
    except RefusedError as refusal:
        return Trouble(refusal.reason, str(refusal))


def _limits(folder: Folder) -> dict[int, Limits]:
    try:
        with folder.regular("config/vgpu.config", size=vgpu.FILE_SIZE) as fd:
            return vgpu.limits_of(os.pread(fd, vgpu.FILE_SIZE, 0))
    except (FileNotFoundError, NoDataError, RefusedError):
        return {}


def _owners_locked(leaf: Folder) -> frozenset[int]:
    """Devices whose byte of `sm_node.lock` is locked: a process samples for all (vgpu-manager, `sm_sampling_claim`)."""
    with leaf.regular("sm_node.lock", size=None) as fd:
        return frozenset(device for device in range(layout.DEVICES) if locks.taken(fd, (device, 1)))
