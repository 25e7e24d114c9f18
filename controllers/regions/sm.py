"""The SM budget of a container, read only. It has no records of processes, so it is never pruned by pid."""

import os
from dataclasses import dataclass
from typing import Final

from controllers.regions import layout
from controllers.regions.layout import Kind, NoDataError, SmDevice

_DEVICES_AT: Final = tuple(layout.device_offset(Kind.SM, device) for device in range(layout.DEVICES))


@dataclass(frozen=True, slots=True)
class Budget:
    """What a region file says. Kept as the bytes of the file, for nearly all of them are only counted."""

    version: int
    region: bytes

    @property
    def devices(self) -> dict[int, SmDevice]:
        """The devices that were ever used."""
        found = {
            device: layout.sm_device_of(self.version, self.region[start : start + layout.SM_DEVICE_SIZE])
            for device, start in enumerate(_DEVICES_AT)
        }
        return {device: block for device, block in found.items() if not block.idle}


def read(fd: int) -> Budget:
    """Read the whole region. Raises NoDataError."""
    data = os.pread(fd, layout.SM_REGION_SIZE, 0)
    header = layout.check(Kind.SM, data)
    if len(data) < layout.SM_REGION_SIZE:
        raise NoDataError("truncated", f"{len(data)} bytes hold no {layout.DEVICES} devices")
    return Budget(header.version, data)


def age_s(stamp_ns: int, *, now_ns: int) -> float | None:
    """Seconds since a stamp of CLOCK_MONOTONIC; None for no stamp, and for one that a former boot left.

    The clock starts anew with the kernel, so a stamp ahead of it is older than this boot.
    """
    return (now_ns - stamp_ns) / 1e9 if 0 < stamp_ns <= now_ns else None
