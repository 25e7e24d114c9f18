import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from controllers.regions import processes, safefs
from controllers.regions.ground import Ground
from controllers.regions.layout import Kind
from controllers.regions.names import ContainerId, Owner
from controllers.regions.processes import LivePids
from tests.native.worker import Worker
from tests.unit.regions.conftest import UID, eventually

Start = Callable[[], Worker]


@pytest.fixture
def start(ground: Ground, owner: Owner, binary: Path, tmp_path: Path) -> Iterator[Start]:
    """Starts processes in a container of their own each, with the owner's region folders."""
    ground.make(owner)
    started: list[Worker] = []

    def begin() -> Worker:
        view = tmp_path / "view" / str(len(started))
        worker = Worker.in_container(binary, ground.root / str(owner.id), view)
        started.append(worker)
        assert worker("map") == "ok"
        return worker

    yield begin
    for worker in started:
        worker.kill()


def file_of(ground: Ground, owner: Owner, kind: Kind) -> safefs.FileId:
    status = Path(ground.path(owner.id, kind), kind.file_name).stat()
    return status.st_dev, status.st_ino


def test_the_tests_run_where_every_pod_is_seen() -> None:
    assert processes.sees_every_pod() is None


def test_a_container_lives_as_long_as_a_mount_namespace_has_its_folder(
    ground: Ground, owner: Owner, start: Start
) -> None:
    assert ground.deserted(owner.id)
    worker = start()
    assert not ground.deserted(owner.id)
    assert 1 in map(processes.inner_pid, ground.inhabitants([owner.id])[owner.id])
    worker.kill()
    eventually(lambda: ground.deserted(owner.id))


def test_another_containers_processes_are_not_ours(ground: Ground, owner: Owner, start: Start) -> None:
    start()
    sibling = Owner(ContainerId(UID, "sibling"))
    ground.make(sibling)
    assert ground.deserted(sibling.id)


def test_a_system_service_with_its_own_mount_table_does_not_keep_a_container_alive(
    ground: Ground, owner: Owner
) -> None:
    ground.make(owner)
    with Worker(["unshare", "--mount", "--propagation", "slave", "cat"]) as service:
        service("ready")
        assert Path(f"/proc/{service.pid}/ns/mnt").readlink() != Path("/proc/self/ns/mnt").readlink()
        assert ground.deserted(owner.id)


def test_users_of_a_file_are_found_between_open_and_mmap_and_after(
    ground: Ground, owner: Owner, binary: Path, one_pod: None
) -> None:
    ground.make(owner)
    with Worker.on(binary, ground.root / str(owner.id)) as process:
        assert process("open") == "ok"
        file = file_of(ground, owner, Kind.VMEM)
        other = file_of(ground, owner, Kind.SM)
        assert processes.used({file: UID, other: UID}) == {file, other}
        assert process("mapopened") == "ok"
        assert processes.used({file: UID}) == {file}
    assert processes.used({file: UID, other: UID}) == set()


def test_the_pid_of_a_record_is_the_one_inside_the_container(
    ground: Ground, owner: Owner, start: Start
) -> None:
    first = start()
    file = file_of(ground, owner, Kind.VMEM)
    assert first("pid") == "1"
    live = LivePids(file, uid=UID)
    assert live({1, first.pid, 77}) == {1}
    first.kill()
    eventually(lambda: live({1}) == set())


def test_a_process_that_came_after_the_first_look_is_not_missed(
    ground: Ground, owner: Owner, start: Start
) -> None:
    first = start()
    file = file_of(ground, owner, Kind.VMEM)
    live = LivePids(file, uid=UID)
    first.kill()
    start()
    assert live({1}) == {1}


def test_a_process_that_mapped_after_the_first_look_is_not_missed(
    ground: Ground, owner: Owner, binary: Path
) -> None:
    ground.make(owner)
    with Worker.on(binary, ground.root / str(owner.id)) as process:
        assert process("open") == "ok"
        live = LivePids(file_of(ground, owner, Kind.VMEM), uid=UID)
        assert live({process.pid}) == set()
        assert process("mapopened") == "ok"
        assert live({process.pid}) == {process.pid}


def test_a_zombie_does_not_live(ground: Ground, owner: Owner, binary: Path) -> None:
    ground.make(owner)
    with Worker.on(binary, ground.root / str(owner.id)) as process:
        process("map")
        live = LivePids(file_of(ground, owner, Kind.VMEM), uid=UID)
        assert live({process.pid}) == {process.pid}
        os.kill(process.pid, signal.SIGKILL)  # and nobody waits for it
        eventually(lambda: "Z (zombie)" in Path(f"/proc/{process.pid}/status").read_text("utf-8"))
        os.kill(process.pid, 0)  # it still answers this
        assert live({process.pid}) == set()


@pytest.mark.parametrize(
    ("group", "used"),
    [
        (f"0::/kubepods/pod{UID}/c", True),
        (f"0::/kubepods-pod{UID.replace('-', '_')}.slice/x.scope", True),
        (None, True),
        ("0::/", False),
    ],
)
def test_a_process_that_may_not_be_inspected_counts_for_its_pod_only(
    monkeypatch: pytest.MonkeyPatch, group: str | None, *, used: bool
) -> None:
    def read(_: int, name: str) -> bytes | None:
        return group.encode() if name == "cgroup" and group is not None else None

    monkeypatch.setattr(processes, "_read", read)
    monkeypatch.setattr(processes, "_outside_our_namespace", lambda: [10])
    assert bool(processes.used({(1, 2): UID})) is used
