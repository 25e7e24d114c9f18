import os
import subprocess
from pathlib import Path

import pytest

from controllers.regions import ground as ground_module
from controllers.regions.fresh import Outcome
from controllers.regions.ground import Ground
from controllers.regions.layout import Kind
from controllers.regions.names import ContainerId, Owner
from controllers.regions.safefs import Reason, RefusedError
from tests.native.worker import Worker
from tests.unit.regions.conftest import UID


@pytest.fixture
def folder(ground: Ground, owner: Owner) -> Path:
    """The folder of a container that a device plugin prepared, and that we made ready."""
    config = ground.root / str(owner.id) / "config"
    config.mkdir(parents=True)
    (config / "vgpu.config").touch()
    ground.make(owner)
    return ground.root / str(owner.id)


def fill(binary: Path, folder: Path) -> None:
    """A container ran here and left its regions."""
    with Worker.on(binary, folder) as process:
        assert process("map") == "ok"
        assert process("own 0") == "ok"


def flood(leaf: Path) -> None:
    for number in range(100):
        (leaf / str(number)).touch()


def test_a_region_folder_is_open_to_every_user_and_bounded(folder: Path) -> None:
    for kind in Kind:
        leaf = folder / kind
        assert leaf.stat().st_mode & 0o7777 == 0o777
        room = os.statvfs(leaf)
        assert room.f_blocks * room.f_bsize == 1024 * 1024
        with pytest.raises(OSError, match="No space left"):
            (leaf / "big").write_bytes(bytes(2 * 1024 * 1024))
        with pytest.raises(OSError, match="No space left"):
            flood(leaf)
    assert folder.stat().st_mode & 0o7777 == 0o1755
    assert (folder.parent).stat().st_mode & 0o022 == 0


def test_nothing_in_a_region_folder_runs_or_opens_a_device(folder: Path) -> None:
    table = Path("/proc/self/mountinfo").read_text("utf-8").splitlines()
    lines = [line for line in table if f" {folder}/" in line]
    assert len(lines) == 2
    assert all({"nosuid", "nodev", "noexec"} <= set(line.split(" ")[5].split(",")) for line in lines)


def test_making_twice_makes_once(ground: Ground, owner: Owner, folder: Path) -> None:
    (folder / "vmem_node" / "f").touch()
    ground.make(owner)
    assert (folder / "vmem_node" / "f").exists()
    assert Path("/proc/self/mountinfo").read_text("utf-8").count(f" {folder}/vmem_node ") == 1


def test_cleaning_a_dead_container_removes_both_files_where_they_are(
    ground: Ground, owner: Owner, folder: Path, binary: Path
) -> None:
    fill(binary, folder)
    lock = (folder / "sm_node" / "sm_node.lock").stat().st_ino
    for kind in Kind:
        decoy = folder / "config" / kind / kind.file_name  # where the historic cleanup looked
        decoy.parent.mkdir(parents=True)
        decoy.touch()
    assert ground.clean([owner.id])[owner.id] == {Kind.SM: Outcome.REMOVED, Kind.VMEM: Outcome.REMOVED}
    assert [p.name for p in (folder / "sm_node").iterdir()] == ["sm_node.lock"]
    assert list((folder / "vmem_node").iterdir()) == []
    assert (folder / "sm_node" / "sm_node.lock").stat().st_ino == lock
    assert (folder / "config" / "vmem_node" / "vmem_node.config").exists()
    assert (folder / "config" / "vgpu.config").exists()


def test_cleaning_a_living_container_removes_nothing_even_when_no_process_maps(
    ground: Ground, owner: Owner, folder: Path, binary: Path, tmp_path: Path
) -> None:
    fill(binary, folder)
    with Worker.in_container(binary, folder, tmp_path / "view") as process:
        assert process("pid") == "1"
        assert set(ground.clean([owner.id])[owner.id].values()) == {Outcome.IN_USE}
    assert (folder / "vmem_node" / "vmem_node.config").exists()


def test_nothing_is_removed_on_a_file_system_that_is_not_known(
    ground: Ground, owner: Owner, folder: Path, binary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(binary, folder)
    monkeypatch.setattr(ground_module, "KNOWN_FILE_SYSTEMS", frozenset({"ext4"}))
    outcome = ground.clean([owner.id])[owner.id][Kind.VMEM]
    assert isinstance(outcome, RefusedError)
    assert outcome.reason is Reason.FILE_SYSTEM
    with pytest.raises(RefusedError):
        ground.retire(owner.id)
    assert (folder / "vmem_node" / "vmem_node.config").exists()


def test_retiring_removes_our_folders_and_leaves_the_device_plugins(
    ground: Ground, owner: Owner, folder: Path, binary: Path
) -> None:
    fill(binary, folder)
    (folder / "vmem_node" / "more").mkdir()
    assert ground.retire(owner.id)
    assert [p.name for p in folder.iterdir()] == ["config"]
    assert ground.retire(owner.id)


def test_retiring_an_empty_folder_removes_it(ground: Ground, owner: Owner) -> None:
    ground.make(owner)
    assert ground.retire(owner.id)
    assert ground.containers() == []
    assert ground.retire(owner.id)


def test_retiring_waits_for_the_last_user(ground: Ground, owner: Owner, folder: Path, binary: Path) -> None:
    with Worker.on(binary, folder) as process:
        process("map")
        assert not ground.retire(owner.id)
        assert process("same") == "same"
    assert ground.retire(owner.id)


def test_a_leftover_goes_with_everything_in_it_and_nothing_outside(
    ground: Ground, owner: Owner, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "precious").touch()
    (folder / "config" / "out").symlink_to(tmp_path)
    assert ground.retire(owner.id, everything=True)
    assert ground.containers() == []
    assert (tmp_path / "precious").exists()


def test_somebody_elses_mount_below_a_leftover_stops_the_removal(
    ground: Ground, owner: Owner, folder: Path
) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "theirs", folder / "config"], check=True)
    (folder / "config" / "precious").touch()
    with pytest.raises(RefusedError) as caught:
        ground.retire(owner.id, everything=True)
    assert caught.value.reason is Reason.MOUNT
    assert (folder / "config" / "precious").exists()


def test_only_names_of_containers_are_looked_at(ground: Ground) -> None:
    for name in ("checkpoints", "watcher", "my_folder", f"{UID}_main"):
        (ground.root / name).mkdir(parents=True)
    assert ground.containers() == [ContainerId(UID, "main")]


def test_a_root_that_is_missing_has_no_containers(tmp_path: Path) -> None:
    assert Ground(tmp_path / "none", kib=0).containers() == []


def test_without_a_bound_the_folders_are_plain(root: None, tmp_path: Path, owner: Owner) -> None:
    ground = Ground(tmp_path / "root", kib=0)
    ground.make(owner)
    assert not Path(ground.path(owner.id, Kind.SM)).is_mount()
    assert ground.retire(owner.id)
    assert ground.containers() == []


def test_a_living_container_is_seen_also_where_paths_have_blanks(
    root: None, tmp_path: Path, owner: Owner, binary: Path
) -> None:
    ground = Ground(tmp_path / "with a blank", kib=0)
    ground.make(owner)
    with Worker.in_container(binary, ground.root / str(owner.id), tmp_path / "view") as process:
        assert process("pid") == "1"
        assert not ground.deserted(owner.id)


def test_no_bound_is_put_over_a_folder_that_a_living_container_uses(
    ground: Ground, owner: Owner, regions: Path, binary: Path, tmp_path: Path
) -> None:
    with Worker.in_container(binary, regions, tmp_path / "view") as process:
        process("map")
        ground.make(owner)
        inode = (regions / "vmem_node" / "vmem_node.config").stat().st_ino
        assert inode == (tmp_path / "root" / str(owner.id) / "vmem_node" / "vmem_node.config").stat().st_ino
        assert not (regions / "vmem_node").is_mount()
