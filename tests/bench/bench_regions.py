"""What a sweep over a full node costs: 500 containers, each with 8 devices of 64 records.

Every record belongs to a process that is taken to live, so that the cost of looking is measured, not of removing. CPU
time is that of the whole process.
"""

from __future__ import annotations

import statistics
import struct
import tempfile
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Final

from controllers.regions import layout
from controllers.regions.ground import Ground
from controllers.regions.layout import Kind
from controllers.regions.names import ContainerId
from controllers.regions.sweep import Survey, Sweeper
from controllers.regions.view import Mapped
from controllers.regions.volumes import Volumes
from tests.bench.figures import Reading, figure

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from controllers.regions.safefs import FileId

CONTAINERS: Final = 500
DEVICES: Final = 8
RECORDS: Final = 64
SWEEPS: Final = 7


class Peopled(Ground):
    """Every container has a process, after a look into all of them as usual."""

    def inhabitants(self, containers: Iterable[ContainerId]) -> Mapping[ContainerId, tuple[int, ...]]:
        """Process 1, everywhere."""
        asked = tuple(containers)
        super().inhabitants(asked)
        return dict.fromkeys(asked, (1,))


class AllLive(Mapped):
    """Every record's process maps its ledger."""

    def live(self, container: ContainerId, file: FileId) -> frozenset[int]:  # noqa: ARG002 - all alike
        """The pids that `_ledger` wrote."""
        return frozenset(range(1, RECORDS + 1))


@figure("regions_sweep_cpu_ms", unit="ms")
def regions_sweep() -> Reading:
    """Look at every container again and again; the median."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="tenure-bench-") as name:
        ground = Peopled(Path(name), kib=0)
        containers = tuple(ContainerId(str(uuid.UUID(int=n)), "main") for n in range(CONTAINERS))
        for container in containers:
            _fill(ground, container)
        sweeper = Sweeper(ground, Volumes(ground, Path(name)), Path(name))
        costs = [_sweep(sweeper, containers) for _ in range(SWEEPS)]
    return Reading(statistics.median(costs), n=SWEEPS)


def _sweep(sweeper: Sweeper, containers: tuple[ContainerId, ...]) -> float:
    began = time.process_time()
    sweeper.survey()
    inhabitants = dict.fromkeys(containers, (1,))
    survey = Survey(containers, inhabitants, AllLive(inhabitants), {}, {})
    found = [sweeper.look(container, survey) for container in containers]
    spent = (time.process_time() - began) * 1000
    if sum(finding.records for finding in found) != CONTAINERS * DEVICES * RECORDS:
        raise ValueError("not every record was read")
    return spent


def _fill(ground: Ground, container: ContainerId) -> None:
    for kind, content in ((Kind.VMEM, _ledger()), (Kind.SM, _budget())):
        folder = Path(ground.path(container, kind))
        folder.mkdir(parents=True)
        (folder / kind.file_name).write_bytes(content)


def _ledger() -> bytes:
    data = bytearray(Kind.VMEM.file_size)
    struct.pack_into("<4I", data, 0, layout.VMEM_MAGIC, 1, layout.VMEM_REGION_SIZE, layout.DEVICES)
    for device in range(DEVICES):
        start = layout.device_offset(Kind.VMEM, device)
        for slot in range(RECORDS):
            layout.RECORD.pack_into(data, start + slot * layout.RECORD.size, slot + 1, 1 << 20)
        layout.COUNT.pack_into(data, start + layout.COUNT_OFFSET, RECORDS)
    return bytes(data)


def _budget() -> bytes:
    return struct.pack("<4I", layout.SM_MAGIC, 3, layout.SM_REGION_SIZE, layout.DEVICES).ljust(
        Kind.SM.file_size, b"\0"
    )
