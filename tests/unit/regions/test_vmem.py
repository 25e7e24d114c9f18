import os
import struct
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controllers.regions import layout, locks, vmem
from controllers.regions.layout import Kind, NoDataError, Record, Records
from tests.native.worker import Worker

GIB = 1 << 30


def ledger_file(folder: Path, *records: Record, device: int = 0, count: int | None = None) -> Path:
    data = bytearray(Kind.VMEM.file_size)
    struct.pack_into("<4I", data, 0, layout.VMEM_MAGIC, 1, layout.VMEM_REGION_SIZE, 16)
    start = layout.device_offset(Kind.VMEM, device)
    for slot, record in enumerate(records):
        layout.RECORD.pack_into(data, start + slot * 16, record.pid, record.used)
    struct.pack_into("<I", data, start + 16384, len(records) if count is None else count)
    path = folder / "vmem_node.config"
    path.write_bytes(data)
    return path


@contextmanager
def opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDWR)
    yield fd
    os.close(fd)


def keep(*pids: int) -> vmem.Live:
    def live(asked: Collection[int]) -> set[int]:
        return set(pids) & set(asked)

    return live


def test_what_c_processes_charged_is_read(worker: Worker, binary: Path, regions: Path) -> None:
    with Worker.on(binary, regions) as other:
        for process, amount in ((worker, 3 * GIB), (other, GIB)):
            assert process("map") == "ok"
            assert process(f"charge 7 {amount}") == str(amount)
        with opened(regions / "vmem_node" / "vmem_node.config") as fd:
            ledger = vmem.read(fd)
    assert ledger.devices == {7: Records.of([Record(worker.pid, 3 * GIB), Record(other.pid, GIB)])}


def test_the_last_record_moves_into_the_hole_and_its_slot_is_cleared(tmp_path: Path) -> None:
    path = ledger_file(tmp_path, Record(1, 10), Record(2, 20), Record(3, 30), Record(4, 40))
    with opened(path) as fd:
        assert vmem.prune(fd, 0, live=keep(1, 3, 4)) == 1
        assert vmem.read(fd).devices == {0: Records.of([Record(1, 10), Record(4, 40), Record(3, 30)])}
    assert path.read_bytes()[128 + 48 : 128 + 64] == bytes(16)


def test_a_table_of_dead_records_becomes_empty(tmp_path: Path) -> None:
    with opened(ledger_file(tmp_path, *(Record(pid, 1) for pid in range(1, 1025)))) as fd:
        assert vmem.prune(fd, 0, live=keep()) == 1024
        assert vmem.read(fd).devices == {}


def test_records_of_living_processes_are_not_written_at_all(tmp_path: Path) -> None:
    path = ledger_file(tmp_path, Record(1, 10), Record(2, 20))
    before = path.stat().st_mtime_ns
    with opened(path) as fd:
        assert vmem.prune(fd, 0, live=keep(1, 2)) == 0
    assert path.stat().st_mtime_ns == before


def test_nothing_is_pruned_while_a_process_holds_the_devices_lock(worker: Worker, regions: Path) -> None:
    worker("map")
    worker("charge 2 100")
    worker("lock 2")
    with opened(regions / "vmem_node" / "vmem_node.config") as fd:
        with pytest.raises(locks.BusyError):
            vmem.prune(fd, 2, live=keep())
        assert vmem.read(fd).locked == (2,)
        worker("unlock 2")
        assert vmem.read(fd).devices == {2: Records.of([Record(worker.pid, 100)])}


def test_nothing_is_pruned_while_the_region_is_being_rebuilt(worker: Worker, regions: Path) -> None:
    worker("map")
    worker("charge 0 100")
    with opened(regions / "vmem_node" / "vmem_node.config") as fd, opened(
        regions / "vmem_node" / "vmem_node.config"
    ) as rebuilder, locks.held(rebuilder, locks.INIT_BYTE, write=True), pytest.raises(locks.BusyError):  # fmt: skip
        vmem.prune(fd, 0, live=keep())


def test_the_question_who_lives_is_asked_under_the_lock(worker: Worker, regions: Path) -> None:
    worker("map")
    worker("charge 4 100")
    answers = []

    def live(asked: Collection[int]) -> set[int]:
        answers.append(worker(f"try {layout.lock_offset(4)} 1"))
        return set(asked)

    with opened(regions / "vmem_node" / "vmem_node.config") as fd:
        vmem.prune(fd, 4, live=live)
    assert answers == ["denied"]


def test_a_count_beyond_the_table_is_clamped_and_stays_inside_the_device(tmp_path: Path) -> None:
    with opened(ledger_file(tmp_path, Record(9, 1), count=5000)) as fd:
        assert len(vmem.read(fd).devices[0]) == 1024


@pytest.mark.parametrize("size", [0, 8, 16, 100, 128 + 16384, 128 + 16386, 262390])
def test_a_file_that_was_cut_off_is_no_data(tmp_path: Path, size: int) -> None:
    path = ledger_file(tmp_path, *(Record(pid, 1) for pid in range(1, 9)), device=15)
    os.truncate(path, size)
    with opened(path) as fd, pytest.raises(NoDataError):
        vmem.read(fd)


def test_a_region_without_header_is_never_written(tmp_path: Path) -> None:
    path = ledger_file(tmp_path, Record(1, 10))
    with opened(path) as fd:
        os.pwrite(fd, bytes(4), 0)
        before = path.read_bytes()
        with pytest.raises(NoDataError):
            vmem.prune(fd, 0, live=keep())
    assert path.read_bytes() == before


@given(
    records=st.lists(st.builds(Record, st.integers(1, 40), st.integers(0, GIB)), max_size=64),
    alive=st.sets(st.integers(1, 40)),
)
def test_what_is_left_are_exactly_the_records_of_the_living(records: list[Record], alive: set[int]) -> None:
    left = vmem.without(records, keep=alive)
    assert sorted(left, key=repr) == sorted((r for r in records if r.pid in alive), key=repr)
