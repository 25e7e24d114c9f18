"""Limits of a container as its device plugin wrote them: `config/vgpu.config`. Pure.

Format: vgpu-manager, library/include/hook.h (`resource_data_t`), version 1. With a plain device plugin the file is
read-only for the container; with DRA the container writes it, so it is shown and never trusted.
"""

import struct
from dataclasses import dataclass
from typing import Final

from controllers.regions import layout

FILE_SIZE: Final = 8192
MAGIC: Final = 0x56474346
_HEADER: Final = struct.Struct("<4I")
_DEVICES_OFFSET: Final = 512
# seq, uuid, total and real memory, hard and soft core, core, hard and memory limit, oversold, activate.
_DEVICE: Final = struct.Struct("<II48sQQ7i28x")
_EXPECTED: Final = (MAGIC, 1, 2560, layout.DEVICES)


@dataclass(frozen=True, slots=True)
class Limits:
    """One card of a container. `memory` in bytes, `cores` in percent; None: no limit."""

    uuid: str
    memory: int | None
    cores: int | None


def limits_of(data: bytes) -> dict[int, Limits]:
    """Limits by host device index. Raises NoDataError when this is not a vgpu.config that we know.

    A device whose sequence number is odd is being written: it is left out, this round.
    """
    if len(data) < FILE_SIZE:
        raise layout.NoDataError("truncated", f"{len(data)} bytes are no vgpu.config")
    if _HEADER.unpack_from(data) != _EXPECTED:
        raise layout.NoDataError("foreign", "not a vgpu.config of version 1")
    found = {}
    for device in range(layout.DEVICES):
        block = _DEVICE.unpack_from(data, _DEVICES_OFFSET + device * _DEVICE.size)
        seq, _, uuid, total, _, hard, _, core_limited, _, memory_limited, _, active = block
        if active and seq % 2 == 0:
            found[device] = Limits(
                uuid=uuid.split(b"\0", 1)[0].decode("ascii", "replace"),
                memory=total if memory_limited else None,
                cores=hard if core_limited else None,
            )
    return found
