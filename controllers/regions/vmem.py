"""The memory ledger: read it, and take out what dead processes left. Never mapped, never rebuilt, never waited for.

The vGPU library keeps the first `count` records of a device valid and unordered. Whoever removes one moves the last
record into the hole, clears the last slot and counts down, under the device's write lock (vgpu-manager,
library/src/loader.c). A region is rebuilt under a write lock on byte 0, so we hold a read lock there while we write.
"""

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from controllers.regions import layout, locks
from controllers.regions.layout import Kind, NoDataError, Record, Records

# Answers which of these pids, as the container numbers them, map the file now.
Live = Callable[[Collection[int]], set[int]]
_EMPTY: Final = layout.RECORD.pack(0, 0)
_NONE: Final = layout.COUNT.pack(0)
# From the first device's lock byte to the last one's: whoever holds it all, reads what no writer changes.
_ALL_DEVICES: Final = (
    layout.lock_offset(0),
    layout.lock_offset(layout.DEVICES - 1) + 1 - layout.lock_offset(0),
)
_DEVICES_AT: Final = tuple(layout.device_offset(Kind.VMEM, device) for device in range(layout.DEVICES))
_COUNTS_AT: Final = tuple(start + layout.COUNT_OFFSET for start in _DEVICES_AT)


@dataclass(frozen=True, slots=True)
class Ledger:
    """What a region file says, per device with records; `locked` are the devices that somebody kept locked."""

    version: int
    devices: Mapping[int, Records]
    locked: tuple[int, ...] = ()
    lost_tries: int = 0

    @property
    def pids(self) -> Sequence[int]:
        """Every pid that has a record, once for each device."""
        return Records(b"".join(records.table for records in self.devices.values())).pids


def read(fd: int) -> Ledger:
    """Read the whole ledger. Raises NoDataError; also when the region was rebuilt or cut off meanwhile."""
    raw = os.pread(fd, layout.HEADER.size, 0)
    version = layout.check(Kind.VMEM, raw).version
    try:
        with locks.held(fd, _ALL_DEVICES, tries=1):
            ledger = Ledger(version, _all_records(fd))
    except locks.BusyError:
        ledger = _read_one_by_one(fd, version)
    if os.pread(fd, layout.HEADER.size, 0) != raw:
        raise NoDataError("rebuilt", "the region was rebuilt while it was read")
    return ledger


def _all_records(fd: int) -> dict[int, Records]:
    """In pieces: most of the file is empty slots, and copying 256 KiB costs more than asking two dozen times."""
    devices: dict[int, Records] = {}
    for device, at in enumerate(_COUNTS_AT):
        count = os.pread(fd, layout.COUNT.size, at)
        if count != _NONE:
            devices[device] = _first(fd, device, count)
    return devices


def _read_one_by_one(fd: int, version: int) -> Ledger:
    """While a process charges one device, the others can be read."""
    devices: dict[int, Records] = {}
    locked: list[int] = []
    lost = 1
    for device, at in enumerate(_COUNTS_AT):
        if os.pread(fd, layout.COUNT.size, at) == _NONE:
            continue
        try:
            with locks.held(fd, (layout.lock_offset(device), 1)) as tries:
                devices[device] = _records(fd, device)
                lost += tries
        except locks.BusyError:
            locked.append(device)
            lost += locks.TRIES
    return Ledger(version, devices, tuple(locked), lost)


def prune(fd: int, device: int, *, live: Live) -> int:
    """Remove the records whose owner does not map the file any more; how many. Raises BusyError, NoDataError.

    `live` is asked under the device's lock, when no record can be added.
    """
    with ExitStack() as stack:
        stack.enter_context(locks.held(fd, locks.INIT_BYTE))
        layout.check(Kind.VMEM, os.pread(fd, layout.HEADER.size, 0))
        stack.enter_context(locks.held(fd, (layout.lock_offset(device), 1), write=True))
        before = _records(fd, device)
        alive = live(set(before.pids))
        after = without(before, keep=alive)
        if len(after) < len(before):
            _write(fd, device, after, before)
        return len(before) - len(after)


def without(records: Iterable[Record], *, keep: Collection[int]) -> Records:
    """The records of these pids, compacted as the library does: the last one moves into the hole."""
    left = list(records)
    slot = 0
    while slot < len(left):
        if left[slot].pid in keep:
            slot += 1
            continue
        last = left.pop()
        if slot < len(left):
            left[slot] = last
    return Records.of(left)


def _write(fd: int, device: int, after: Records, before: Records) -> None:
    """Two writes, records before the count: an end between them leaves slots that count nothing twice for long."""
    data = after.table + _EMPTY * (len(before) - len(after))
    os.pwrite(fd, data, _DEVICES_AT[device])
    os.pwrite(fd, layout.COUNT.pack(len(after)), _COUNTS_AT[device])


def _records(fd: int, device: int) -> Records:
    return _first(fd, device, os.pread(fd, layout.COUNT.size, _COUNTS_AT[device]))


def _first(fd: int, device: int, raw_count: bytes) -> Records:
    if len(raw_count) < layout.COUNT.size:
        raise NoDataError("truncated", "the file ends inside a device")
    count = layout.count_of(raw_count)
    data = os.pread(fd, count * layout.RECORD.size, _DEVICES_AT[device])
    return layout.records_of(data, count)
