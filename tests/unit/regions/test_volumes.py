import os
import subprocess
from pathlib import Path

import pytest

from controllers.regions import mounts, syscalls
from controllers.regions.ground import Ground
from controllers.regions.layout import Kind
from controllers.regions.names import ContainerId, Owner
from controllers.regions.volumes import BadRequestError, ConflictError, Published, Volumes
from tests.native.worker import Worker
from tests.unit.regions.conftest import UID


@pytest.fixture
def volumes(ground: Ground, tmp_path: Path) -> Volumes:
    return Volumes(ground, tmp_path / "kubelet")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """Kubelet makes all of the path but the last folder."""
    target = tmp_path / "kubelet" / "pods" / UID / "volumes" / "kubernetes.io~csi" / "regions-main" / "mount"
    target.parent.mkdir(parents=True)
    return target


def points(below: Path) -> list[str]:
    return [m.point for m in mounts.own() if m.point == str(below) or m.point.startswith(f"{below}/")]


def test_a_volume_shows_just_the_two_region_folders(
    volumes: Volumes, ground: Ground, owner: Owner, target: Path
) -> None:
    (ground.root / str(owner.id) / "config").mkdir(parents=True)
    assert volumes.publish(owner, str(target))
    assert sorted(path.name for path in target.iterdir()) == ["sm_node", "vmem_node"]
    (target / "vmem_node" / "f").touch()
    assert (ground.root / str(owner.id) / "vmem_node" / "f").exists()
    assert volumes.published() == [Published(owner, str(target))]
    flags = {
        line.split(" ")[4]: line.split(" ")[5]
        for line in Path("/proc/self/mountinfo").read_text("utf-8").splitlines()
    }
    assert all({"nosuid", "nodev"} <= set(flags[f"{target}/{kind}"].split(",")) for kind in Kind)


def test_beside_the_two_folders_nobody_writes(volumes: Volumes, owner: Owner, target: Path) -> None:
    volumes.publish(owner, str(target))
    with pytest.raises(OSError, match="Read-only"):
        (target / "big").touch()


def test_publishing_again_leaves_one_mount_and_every_file(
    volumes: Volumes, ground: Ground, owner: Owner, target: Path, binary: Path
) -> None:
    volumes.publish(owner, str(target))
    before = points(target)
    with Worker.on(binary, target) as process:
        process("map")
    for _ in range(3):
        assert not volumes.publish(owner, str(target))
    assert points(target) == before == [str(target), f"{target}/sm_node", f"{target}/vmem_node"]
    assert (target / "vmem_node" / "vmem_node.config").exists()


def test_the_first_publish_finds_what_a_dead_container_left_and_removes_it(
    volumes: Volumes, ground: Ground, owner: Owner, target: Path, binary: Path
) -> None:
    ground.make(owner)
    with Worker.on(binary, ground.root / str(owner.id)) as process:
        process("map")
    volumes.publish(owner, str(target))
    assert list((target / "vmem_node").iterdir()) == []


def test_unpublish_takes_the_mounts_away_and_can_be_repeated(
    volumes: Volumes, owner: Owner, target: Path
) -> None:
    volumes.publish(owner, str(target))
    assert volumes.unpublish(str(target)) == owner.id
    assert points(target) == []
    assert not target.exists()
    assert volumes.unpublish(str(target)) is None


def test_a_volume_that_was_never_published_is_unpublished_without_complaint(
    volumes: Volumes, target: Path
) -> None:
    assert volumes.unpublish(str(target)) is None


def test_published_and_unpublished_in_the_middle_of_a_life_processes_stay_on_one_inode(
    volumes: Volumes, ground: Ground, owner: Owner, target: Path, binary: Path, tmp_path: Path
) -> None:
    """Field case D4: publish, map, unpublish, publish, within one pod's life."""
    volumes.publish(owner, str(target))
    with Worker.in_container(binary, target, tmp_path / "view") as process:
        process("map")
        assert volumes.unpublish(str(target)) == owner.id
        assert not ground.retire(owner.id)
        assert process("same") == "same"
        assert volumes.publish(owner, str(target))
        with Worker.on(binary, target) as later:
            later("map")
            inodes = [(target / kind / kind.file_name).stat().st_ino for kind in Kind]
            views = [(Path(f"/proc/{process.pid}/root{tmp_path}/view") / k / k.file_name) for k in Kind]
            assert inodes == [view.stat().st_ino for view in views]
        assert process("same") == "same"


@pytest.mark.parametrize("steps", range(8))
def test_a_publish_that_was_killed_at_any_step_is_completed_by_the_next(
    volumes: Volumes, owner: Owner, target: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    left = [steps]

    def dying(name: str) -> None:
        real = getattr(syscalls, name)

        def call(*args: object, **kwargs: object) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise KeyboardInterrupt
            real(*args, **kwargs)

        monkeypatch.setattr(syscalls, name, call)

    dying("mount")
    with pytest.raises(KeyboardInterrupt):
        volumes.publish(owner, str(target))
    monkeypatch.undo()
    volumes.publish(owner, str(target))
    assert points(target) == [str(target), f"{target}/sm_node", f"{target}/vmem_node"]
    with pytest.raises(OSError, match="Read-only"):
        (target / "big").touch()
    assert volumes.unpublish(str(target)) == owner.id
    assert points(target) == []


def test_stacked_mounts_are_taken_apart(volumes: Volumes, owner: Owner, target: Path) -> None:
    volumes.publish(owner, str(target))
    subprocess.run(["mount", "--bind", target / "sm_node", target / "sm_node"], check=True)
    assert volumes.publish(owner, str(target))
    assert points(target) == [str(target), f"{target}/sm_node", f"{target}/vmem_node"]


def test_a_dead_mount_at_the_target_is_replaced(volumes: Volumes, owner: Owner, target: Path) -> None:
    """Field case D4, step 6: stat() of the target gives ENOTCONN, as for a file system whose server died."""
    target.mkdir()
    fd = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={fd},rootmode=40000,user_id=0,group_id=0"
    subprocess.run(["mount", "-i", "-t", "fuse", "-o", options, "dead", target], check=True, pass_fds=[fd])
    os.close(fd)
    with pytest.raises(OSError, match="not connected"):
        target.stat()
    assert volumes.publish(owner, str(target))
    assert points(target) == [str(target), f"{target}/sm_node", f"{target}/vmem_node"]


def test_another_containers_volume_at_the_same_target_is_a_conflict(
    volumes: Volumes, owner: Owner, target: Path
) -> None:
    volumes.publish(owner, str(target))
    with pytest.raises(ConflictError, match=r"tenant/trainer-0/.*_main"):
        volumes.publish(Owner(ContainerId(UID, "other")), str(target))
    assert volumes.published() == [Published(owner, str(target))]


@pytest.mark.parametrize(
    "path",
    [
        "/etc", "{kubelet}", "{kubelet}/pods/{uid}/volumes/kubernetes.io~csi/v/mount/../../../../../..",
        "{kubelet}/pods/{uid}/volumes/kubernetes.io~csi/v/mount/", "{kubelet}/plugins/x/mount",
        "{kubelet}/pods/11111111-0000-4000-8000-000000000001/volumes/kubernetes.io~csi/v/mount", "relative", "",
    ],
)  # fmt: skip
def test_a_target_that_is_no_volume_of_the_pod_is_refused(
    volumes: Volumes, owner: Owner, tmp_path: Path, path: str
) -> None:
    with pytest.raises(BadRequestError):
        volumes.publish(owner, path.format(kubelet=tmp_path / "kubelet", uid=UID))
