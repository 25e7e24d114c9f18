import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from controllers.regions import layout, vgpu
from controllers.regions.ground import Ground
from controllers.regions.layout import Record
from controllers.regions.names import Owner
from controllers.regions.report import Row
from service import regions_command as command
from service.asking import NoAccessError
from service.settings import RegionSettings
from tests.native.worker import Worker
from tests.unit.regions.conftest import FIXTURES, UID
from tests.unit.regions.test_sweep import charge
from tests.unit.regions.test_vmem import ledger_file

GIB = 1 << 30


def shown(rows: list[Row]) -> str:
    console = Console(width=260, highlight=False)
    with console.capture() as captured:
        console.print(command.table(rows))
    return captured.get()


def of(path: Path) -> list[Row]:
    return command.rows(RegionSettings(root=path, kubelet_root=path.parent / "kubelet"), path)


@pytest.fixture
def container(ground: Ground, owner: Owner, binary: Path, tmp_path: Path) -> Iterator[Worker]:
    ground.make(owner)
    with Worker.in_container(binary, ground.root / str(owner.id), tmp_path / "view") as worker:
        assert worker("map") == "ok"
        assert worker(f"charge 0 {2 * GIB}") == str(2 * GIB)
        yield worker


@pytest.fixture
def folder(container: Worker, ground: Ground, owner: Owner) -> Path:
    return ground.root / str(owner.id)


def test_a_recorded_sm_region_is_shown_without_processes_and_without_age(tmp_path: Path) -> None:
    copy = tmp_path / "copied"
    shutil.copy(FIXTURES / "sm_node.v3.config", copy)
    (row,) = of(copy)
    assert (row.device, row.sm_limit, row.sm_used, row.tokens, row.tokens_total) == (
        0,
        30,
        5,
        382367,
        8650752,
    )
    assert (row.sampling_pid, row.sampling_locked, row.refill_age_s) == (705, None, None)
    assert "pid 705, lock unknown" in shown([row])


def test_a_recorded_ledger_is_shown(tmp_path: Path) -> None:
    assert of(FIXTURES / "vmem_node.v1.config") == [Row()]
    (row,) = of(ledger_file(tmp_path, Record(37, GIB)))
    assert (row.processes, row.used_bytes, row.stale) == (1, GIB, None)
    assert "unknown" in shown([row])


def test_a_node_is_shown_with_who_lives_and_who_does_not(
    container: Worker, folder: Path, ground: Ground
) -> None:
    charge(folder, Record(77, GIB))
    container("own 0")
    container("refill 0 30")
    (row,) = of(ground.root)
    assert (row.pod_uid, row.container, row.device) == (UID, "main", 0)
    assert (row.processes, row.stale, row.used_bytes) == (2, 1, 3 * GIB)
    assert row.refill_age_s is not None
    assert 0 <= row.refill_age_s < 60
    assert (row.sampling_pid, row.sampling_locked) == (1, True)
    assert not command.passed([row])
    assert "3072.0 MiB" in shown([row])


def test_one_containers_folder_is_shown_alone(container: Worker, folder: Path) -> None:
    (row,) = of(folder)
    assert (row.stale, row.used_bytes) == (0, 2 * GIB)
    assert command.passed([row])


def test_looking_changes_nothing(container: Worker, folder: Path, ground: Ground) -> None:
    charge(folder, Record(77, GIB))
    before = (folder / "vmem_node" / "vmem_node.config").read_bytes()
    of(ground.root)
    assert (folder / "vmem_node" / "vmem_node.config").read_bytes() == before


def test_a_corrupt_record_makes_the_sum_at_least(container: Worker, ground: Ground) -> None:
    container("charge 0 -5000000000")
    (row,) = of(ground.root)
    assert (row.corrupt, row.used_bytes) == (1, 0)
    assert "at least 0.0 MiB" in shown([row])
    assert not command.passed([row])


def test_limits_come_from_the_device_plugins_file(container: Worker, folder: Path, ground: Ground) -> None:
    (folder / "config").mkdir()
    (folder / "config" / "vgpu.config").write_bytes(limits_file())
    (row,) = of(ground.root)
    assert (row.card, row.limit_bytes, row.limit_cores) == ("GPU-1", 4 * GIB, 30)


def limits_file() -> bytes:
    data = bytearray(vgpu.FILE_SIZE)
    struct.pack_into("<4I", data, 0, vgpu.MAGIC, 1, 2560, layout.DEVICES)
    struct.pack_into("<II48sQQ7i", data, 512, 2, 0, b"GPU-1", 4 * GIB, 4 * GIB, 30, 0, 1, 1, 1, 0, 1)
    struct.pack_into("<II48sQQ7i", data, 640, 3, 0, b"GPU-2", 4 * GIB, 4 * GIB, 30, 0, 1, 1, 1, 0, 1)
    return bytes(data)


def test_a_device_that_is_being_written_is_left_out() -> None:
    assert list(vgpu.limits_of(limits_file())) == [0]


def test_an_unreadable_region_is_a_finding_with_its_reason(
    container: Worker, folder: Path, ground: Ground
) -> None:
    (folder / "sm_node" / "sm_node.config").write_bytes(
        struct.pack("<4I", layout.SM_MAGIC, 9, 2176, 16).ljust(8192)
    )
    (row,) = of(ground.root)
    assert row.trouble == "unknown: sm_node layout version 9 is unknown"
    assert not command.passed([row])


def test_an_empty_root_is_a_sentence(ground: Ground) -> None:
    ground.root.mkdir()
    assert of(ground.root) == []
    assert "No container has regions here." in shown([])


@pytest.mark.parametrize(
    ("name", "sentence"), [("none", "there is nothing at"), ("text", "is no region file")]
)
def test_a_path_that_is_no_region_is_one_sentence(tmp_path: Path, name: str, sentence: str) -> None:
    (tmp_path / "text").write_text("this is no region file at all")
    with pytest.raises(NoAccessError, match=sentence):
        of(tmp_path / name)
