"""What the bytes of a region file mean. Pure: bytes in, values out.

Format: vgpu-manager, library/include/hook.h (`device_vmemory_t`, `sm_node_region_t`), x86-64 and little-endian. The
first 16 bytes of both regions are frozen for ever: magic, layout version, size of the region, number of devices.
Everything behind them belongs to the version, so a reader that does not know the version has no data. It never
guesses, never repairs.

Layouts of `sm_node`: version 3 is the released one. Version 2 is version 3 without the sample's interval, version 1
has the token bucket and the controller only (vgpu-manager, design note on the shared token bucket, sections 4.1 and
4.3.1); both were written by development builds.

Whoever wrote the bytes may lie: counts are clamped, and an amount that no process can hold is corrupt, not large.
"""

import struct
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple, Self

import msgspec


class Kind(StrEnum):
    """A region, by the name of its folder."""

    SM = "sm_node"
    VMEM = "vmem_node"

    @property
    def file_name(self) -> str:
        """The region's file in that folder."""
        return f"{self}.config"

    @property
    def file_size(self) -> int:
        """Bytes. Permanent: newer versions grow inside it."""
        return 8192 if self is Kind.SM else 327680


DEVICES: Final = 16
HEADER: Final = struct.Struct("<4I")
# The header is padded to one cache line; the devices follow.
DEVICES_OFFSET: Final = 128

VMEM_MAGIC: Final = 0x564D4E44
VMEM_REGION_SIZE: Final = 262400
RECORDS: Final = 1024
RECORD: Final = struct.Struct("<i4xQ")
COUNT: Final = struct.Struct("<I")
VMEM_DEVICE_SIZE: Final = 16392
COUNT_OFFSET: Final = RECORDS * RECORD.size
LOCK_OFFSET: Final = COUNT_OFFSET + COUNT.size
# No process can have more: user addresses on x86-64 have 56 bits at most. A double free wraps to just below 2**64.
# `Records.corrupt` counts on it that this is one bit above seven bytes.
MOST_BYTES: Final = 1 << 56

SM_MAGIC: Final = 0x534D4E44
SM_REGION_SIZE: Final = 2176
SM_DEVICE_SIZE: Final = 128
_WITH_INTERVAL: Final = 3
_SM_V1: Final = struct.Struct("<4q9i")
_SM_V2: Final = struct.Struct("<5q14i")
_SM_V3: Final = struct.Struct("<5q14iq")


class NoDataError(Exception):
    """There is nothing to read in this file, this round; `layout` names why in one word (for metrics)."""

    def __init__(self, layout: str, sentence: str) -> None:
        super().__init__(sentence)
        self.layout = layout


@dataclass(frozen=True, slots=True)
class Header:
    """The frozen 16 bytes."""

    magic: int
    version: int
    region_size: int
    devices: int


class Record(NamedTuple):
    """What one process charged on one device: `pid` in the container's namespace, `used` in bytes."""

    pid: int
    used: int

    @property
    def corrupt(self) -> bool:
        """The amount is impossible, as after a double free (Project-HAMi/HAMi 1181)."""
        return self.used >= MOST_BYTES


class Records(msgspec.Struct, frozen=True, gc=False):
    """The records of one device; they iterate as records.

    Kept as the bytes of the file: a node has hundreds of thousands of records, and nearly all of them are only counted.
    """

    table: bytes = b""

    @classmethod
    def of(cls, records: Iterable[Record]) -> Self:
        """The same records, as a file has them."""
        return cls(b"".join(RECORD.pack(*record) for record in records))

    def __len__(self) -> int:
        return len(self.table) // RECORD.size

    def __iter__(self) -> Iterator[Record]:
        return map(Record._make, RECORD.iter_unpack(self.table))

    @property
    def pids(self) -> Sequence[int]:
        """Whose they are."""
        return array("i", self.table)[::4]

    @property
    def corrupt(self) -> tuple[Record, ...]:
        """Records whose amount is impossible: none where the highest byte of every amount is zero."""
        if not any(self.table[RECORD.size - 1 :: RECORD.size]):
            return ()
        return tuple(record for record in self if record.corrupt)

    @property
    def total(self) -> int:
        """Bytes of all records that can be true."""
        return sum(array("Q", self.table)[1::2]) - sum(record.used for record in self.corrupt)


@dataclass(frozen=True, slots=True)
class SmDevice:
    """One device's token bucket and controller. Stamps are nanoseconds of CLOCK_MONOTONIC; limits are percent."""

    tokens: int
    total: int
    last_refill_ns: int
    share: int
    limit: int
    throttled: bool
    sample_published_ns: int | None = None
    used: int | None = None
    device_used: int | None = None
    leader_pid: int | None = None
    sample_interval_ns: int | None = None

    @property
    def idle(self) -> bool:
        """No process ever used this device here."""
        return self.total == 0 and self.last_refill_ns == 0


def header_of(data: bytes) -> Header:
    """The header of a region. Raises NoDataError when there are fewer than 16 bytes."""
    if len(data) < HEADER.size:
        raise NoDataError("truncated", f"{len(data)} bytes are no region header")
    return Header(*HEADER.unpack_from(data))


def kind_of(data: bytes) -> Kind:
    """Which region this is, by its magic. Raises NoDataError for anything else."""
    return _kind(header_of(data).magic)


def _kind(magic: int) -> Kind:
    match magic:
        case 0x534D4E44:
            return Kind.SM
        case 0x564D4E44:
            return Kind.VMEM
        case 0:
            raise NoDataError("unbuilt", "the region has no header yet")
        case _:
            raise NoDataError("foreign", f"magic {magic:#010x} is neither SMND nor VMND")


def check(kind: Kind, data: bytes) -> Header:
    """The header of a region whose layout we know. Raises NoDataError for any other."""
    header = header_of(data)
    if _kind(header.magic) is not kind:
        raise NoDataError("foreign", f"this is no {kind} region")
    versions, size = _KNOWN[kind]
    if header.version not in versions:
        raise NoDataError("unknown", f"{kind} layout version {header.version} is unknown")
    if header.region_size != size or header.devices != DEVICES:
        raise NoDataError(
            "mismatch",
            f"{kind} version {header.version} with {header.region_size} bytes and {header.devices} devices",
        )
    return header


_KNOWN: Final = {
    Kind.SM: (frozenset({1, 2, 3}), SM_REGION_SIZE),
    Kind.VMEM: (frozenset({1}), VMEM_REGION_SIZE),
}


def device_offset(kind: Kind, device: int) -> int:
    """Where a device's block begins in the file."""
    size = SM_DEVICE_SIZE if kind is Kind.SM else VMEM_DEVICE_SIZE
    return DEVICES_OFFSET + size * device


def lock_offset(device: int) -> int:
    """The byte of `vmem_node.config` whose record lock guards this device's records."""
    return device_offset(Kind.VMEM, device) + LOCK_OFFSET


def count_of(data: bytes) -> int:
    """How many records are valid; a larger number than the table holds is clamped."""
    return min(int.from_bytes(data[: COUNT.size], "little"), RECORDS)


def records_of(data: bytes, count: int) -> Records:
    """The first `count` records of a device's block. Raises NoDataError when the block is shorter."""
    if len(data) < count * RECORD.size:
        raise NoDataError("truncated", f"{len(data)} bytes hold no {count} records")
    return Records(data[: count * RECORD.size])


def sm_device_of(version: int, data: bytes) -> SmDevice:
    """A device's block of `sm_node`. Raises NoDataError when it is shorter, ValueError for an unknown version."""
    layout = {1: _SM_V1, 2: _SM_V2, 3: _SM_V3}.get(version)
    if layout is None:
        raise ValueError(f"there is no sm_node version {version}")
    if len(data) < layout.size:
        raise NoDataError("truncated", f"{len(data)} bytes hold no sm_node device")
    values = layout.unpack_from(data)
    tokens, total, refill, share = values[:4]
    if version == 1:
        return SmDevice(tokens, total, refill, share, limit=values[4], throttled=bool(values[12]))
    return SmDevice(
        tokens,
        total,
        refill,
        share,
        limit=values[5],
        throttled=bool(values[13]),
        sample_published_ns=values[4],
        used=values[14],
        device_used=values[15],
        leader_pid=values[18],
        sample_interval_ns=values[19] if version == _WITH_INTERVAL else None,
    )
