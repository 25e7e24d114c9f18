"""The SM budget of a container, read only. It has no records of processes, so it is never pruned by pid."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from controllers.regions import layout
from controllers.regions.layout import Kind, SmDevice

_NEVER_USED: Final = bytes(layout.SM_DEVICE_SIZE)


@dataclass(frozen=True, slots=True)
class Budget:
    """What a region file says, per device that was ever used."""

    version: int
    devices: Mapping[int, SmDevice]


def read(fd: int) -> Budget:
    """Read the whole region. Raises NoDataError."""
    data = os.pread(fd, layout.SM_REGION_SIZE, 0)
    header = layout.check(Kind.SM, data)
    blocks = {
        device: layout.sm_device_of(header.version, block)
        for device in range(layout.DEVICES)
        if (block := _block(data, device)) != _NEVER_USED[: len(block)]
    }
    return Budget(header.version, {device: block for device, block in blocks.items() if not block.idle})


def _block(data: bytes, device: int) -> bytes:
    start = layout.device_offset(Kind.SM, device)
    return data[start : start + layout.SM_DEVICE_SIZE]


def age_s(stamp_ns: int, *, now_ns: int) -> float | None:
    """Seconds since a stamp of CLOCK_MONOTONIC; None for no stamp, and for one that a former boot left.

    The clock starts anew with the kernel, so a stamp ahead of it is older than this boot.
    """
    return (now_ns - stamp_ns) / 1e9 if 0 < stamp_ns <= now_ns else None


def left_over(budget: Budget, *, now_ns: int) -> bool:
    """True when a stamp lies ahead of the clock: a former boot wrote it, and the library would trust it for hours."""
    return any(
        stamp > now_ns
        for device in budget.devices.values()
        for stamp in (device.last_refill_ns, device.sample_published_ns or 0)
    )
