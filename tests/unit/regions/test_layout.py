import struct
from pathlib import Path

import pytest

from controllers.regions import layout, sm
from controllers.regions.layout import Kind, NoDataError, Record, Records
from tests.native.worker import Worker
from tests.unit.regions.conftest import FIXTURES

SM = (FIXTURES / "sm_node.v3.config").read_bytes()
VMEM = (FIXTURES / "vmem_node.v1.config").read_bytes()


def test_the_numbers_of_the_abi_are_these() -> None:
    assert (layout.DEVICES_OFFSET, layout.VMEM_DEVICE_SIZE, layout.LOCK_OFFSET) == (128, 16392, 16388)
    assert (layout.VMEM_REGION_SIZE, Kind.VMEM.file_size) == (262400, 327680)
    assert (layout.SM_DEVICE_SIZE, layout.SM_REGION_SIZE, Kind.SM.file_size) == (128, 2176, 8192)
    assert [layout.lock_offset(device) for device in (0, 1, 2, 15)] == [16516, 32908, 49300, 262396]


def test_the_c_compiler_lays_the_structs_out_the_same_way(worker: Worker) -> None:
    locks = " ".join(str(layout.lock_offset(device)) for device in range(16))
    assert worker("layout") == f"vmem 128 16392 16384 262400 sm 128 2176 locks {locks}"


def test_a_recorded_sm_region_is_read_field_by_field() -> None:
    header = layout.check(Kind.SM, SM)
    device = layout.sm_device_of(header.version, SM[128:])
    assert header == layout.Header(0x534D4E44, 3, 2176, 16)
    assert device == layout.SmDevice(
        tokens=382367, total=8650752, last_refill_ns=118515829110, share=1486546, limit=30, throttled=False,
        sample_published_ns=118515829110, used=5, device_used=5, leader_pid=705, sample_interval_ns=100000006,
    )  # fmt: skip
    assert layout.sm_device_of(3, SM[256:]).idle


def test_a_recorded_ledger_without_charges_has_a_known_layout_and_no_records() -> None:
    assert layout.check(Kind.VMEM, VMEM).version == 1
    assert layout.count_of(VMEM[128 + 16384 :]) == 0


def test_version_2_is_version_3_without_the_interval() -> None:
    assert layout.sm_device_of(2, SM[128:232]).leader_pid == 705
    assert layout.sm_device_of(2, SM[128:232]).sample_interval_ns is None


def test_version_1_has_the_token_bucket_and_no_sample() -> None:
    block = struct.pack("<4q9i", 5, 100, 7, 3, 40, 0, 0, 0, 0, 0, 0, 0, 1)
    device = layout.sm_device_of(1, block.ljust(128, b"\0"))
    assert (device.tokens, device.limit, device.throttled, device.used) == (5, 40, True, None)


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b"", "truncated"),
        (b"DNMS" + b"\0" * 11, "truncated"),
        (bytes(8192), "unbuilt"),
        (struct.pack("<4I", 0x7F454C46, 1, 1, 1), "foreign"),
        (struct.pack("<4I", layout.VMEM_MAGIC, 1, 262400, 16), "foreign"),
        (struct.pack("<4I", layout.SM_MAGIC, 4, 2176, 16), "unknown"),
        (struct.pack("<4I", layout.SM_MAGIC, 0, 2176, 16), "unknown"),
        (struct.pack("<4I", layout.SM_MAGIC, 3, 2177, 16), "mismatch"),
        (struct.pack("<4I", layout.SM_MAGIC, 3, 2176, 32), "mismatch"),
    ],
)
def test_a_header_that_is_not_ours_is_no_data(data: bytes, word: str) -> None:
    with pytest.raises(NoDataError) as caught:
        layout.check(Kind.SM, data)
    assert caught.value.layout == word


def test_a_count_beyond_the_table_is_clamped() -> None:
    assert layout.count_of(struct.pack("<I", 5000)) == 1024
    assert layout.count_of(struct.pack("<I", 0xFFFFFFFF)) == 1024


def test_records_cut_off_are_no_data() -> None:
    with pytest.raises(NoDataError, match="hold no 2 records"):
        layout.records_of(bytes(16), 2)


def test_an_amount_that_no_process_can_hold_is_corrupt() -> None:
    assert [Record(37, used).corrupt for used in (2 << 30, 1 << 56, 18446744073707737660)] == [
        False,
        True,
        True,
    ]


def test_records_of_a_device_find_the_corrupt_ones_at_the_limit_and_leave_them_out_of_the_sum() -> None:
    most = Record(1, (1 << 56) - 1)
    wrong = [Record(2, 1 << 56), Record(3, (1 << 64) - 1)]
    records = Records.of([most, *wrong])
    assert records.corrupt == tuple(wrong)
    assert (records.total, list(records.pids), len(records)) == (most.used, [1, 2, 3], 3)
    assert Records.of([most]).corrupt == ()


def test_an_sm_region_cut_off_behind_its_header_is_no_data(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(SM[:2175])
    with (tmp_path / "f").open("rb") as file, pytest.raises(NoDataError, match="hold no 16 devices"):
        sm.read(file.fileno())


def test_a_stamp_ahead_of_the_clock_has_no_age() -> None:
    assert sm.age_s(118515829110, now_ns=118515829110 + 2_000_000_000) == 2.0
    assert sm.age_s(118515829110, now_ns=5) is None
    assert sm.age_s(0, now_ns=5) is None
