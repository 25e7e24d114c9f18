import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from controllers.regions import layout, processes
from controllers.regions.fresh import Outcome
from controllers.regions.ground import Ground
from controllers.regions.layout import Kind, Record, Records
from controllers.regions.names import Owner
from controllers.regions.safefs import Reason
from controllers.regions.sm import Budget
from controllers.regions.sweep import Finding, Sweeper
from controllers.regions.view import Trouble, view
from controllers.regions.vmem import Ledger
from controllers.regions.volumes import Volumes
from tests.native.worker import Worker
from tests.unit.regions.conftest import eventually
from tests.unit.regions.test_vmem import ledger_file

GIB = 1 << 30
Begin = Callable[[], Worker]


@pytest.fixture
def kubelet(tmp_path: Path) -> Path:
    return tmp_path / "kubelet"


@pytest.fixture
def sweeper(ground: Ground, kubelet: Path) -> Sweeper:
    return Sweeper(ground, Volumes(ground, kubelet), kubelet)


@pytest.fixture
def folder(ground: Ground, owner: Owner) -> Path:
    ground.make(owner)
    return ground.root / str(owner.id)


@pytest.fixture
def container(folder: Path, binary: Path, tmp_path: Path) -> Iterator[Worker]:
    """The first process of the container; it has mapped its regions and charged 2 GiB on device 0."""
    with Worker.in_container(binary, folder, tmp_path / "view") as worker:
        assert worker("map") == "ok"
        assert worker(f"charge 0 {2 * GIB}") == str(2 * GIB)
        yield worker


def look(sweeper: Sweeper, owner: Owner) -> Finding:
    survey = sweeper.survey()
    assert survey.containers == (owner.id,)
    return sweeper.look(owner.id, survey)


def charge(folder: Path, *records: Record, device: int = 0) -> None:
    """Write records into the ledger as it is, beyond those that are there."""
    with (folder / "vmem_node" / "vmem_node.config").open("r+b") as file:
        start = layout.device_offset(Kind.VMEM, device)
        file.seek(start + layout.COUNT_OFFSET)
        count = layout.count_of(file.read(4))
        for slot, record in enumerate(records, count):
            file.seek(start + slot * 16)
            file.write(layout.RECORD.pack(record.pid, record.used))
        file.seek(start + layout.COUNT_OFFSET)
        file.write(layout.COUNT.pack(count + len(records)))


def test_records_of_the_dead_go_and_those_of_the_living_stay(
    sweeper: Sweeper, owner: Owner, folder: Path, container: Worker
) -> None:
    charge(folder, Record(77, GIB), Record(78, GIB))
    charge(folder, Record(79, GIB), device=15)
    found = look(sweeper, owner)
    assert found.pruned == 3
    assert isinstance(found.view.ledger, Ledger)
    assert found.view.ledger.devices == {0: Records.of([Record(1, 2 * GIB)])}
    assert (found.charged, found.records) == (2 * GIB, 1)
    assert container("charge 0 5") == str(2 * GIB + 5)


def test_a_killed_process_stops_counting_while_its_container_lives(
    sweeper: Sweeper, owner: Owner, folder: Path, container: Worker, binary: Path, tmp_path: Path
) -> None:
    enter = ["nsenter", f"--target={host_pid(container)}", "--mount", "--pid"]
    with Worker([*enter, binary, tmp_path / "view"]) as second:
        assert second("map") == "ok"
        assert second(f"charge 0 {GIB}") == str(GIB)
        inner = int(second("pid"))
        assert look(sweeper, owner).charged == 3 * GIB
    eventually(lambda: look(sweeper, owner).charged == 2 * GIB)
    assert inner != 1


def host_pid(container: Worker) -> int:
    """The first process itself: the child of the one that made its namespaces."""
    children = Path(f"/proc/{container.pid}/task/{container.pid}/children").read_text("utf-8")
    return int(children)


def test_nobody_s_mappings_are_read_for_a_ledger_without_records(
    sweeper: Sweeper, owner: Owner, folder: Path, container: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []

    def maps(pid: int) -> set[tuple[bytes, bytes]]:
        read.append(pid)
        return set()

    monkeypatch.setattr(processes, "maps", maps)
    found = look(sweeper, owner)
    assert (found.records, bool(read)) == (
        0,
        True,
    )  # whoever shows no mapping is pruned, and was looked at for it
    read.clear()
    found = look(sweeper, owner)
    assert (found.records, found.view.live, read) == (0, frozenset(), [])


def test_an_amount_below_zero_is_left_out_of_the_sum_and_its_owner_is_left_alone(
    sweeper: Sweeper, owner: Owner, folder: Path, container: Worker
) -> None:
    """Field case D2: a double free wrapped the counter; the process lives and maps the file."""
    container(f"charge 1 {4096}")
    container("charge 1 -5000")
    found = look(sweeper, owner)
    (wrong,) = found.corrupt
    assert wrong == (owner.id, Record(1, 2**64 - 904))
    assert found.charged == 2 * GIB
    assert (found.pruned, found.records) == (0, 2)


def test_a_dead_containers_regions_go_and_its_sampling_lock_stays(
    sweeper: Sweeper, owner: Owner, folder: Path, container: Worker
) -> None:
    container("own 0")
    container.kill()
    eventually(lambda: sweeper.ground.deserted(owner.id))
    found = look(sweeper, owner)
    assert (found.pids, set(found.removed)) == ((), set(Kind))
    assert [path.name for path in folder.rglob("*.*")] == ["sm_node.lock"]


def test_a_container_that_only_its_supervisor_keeps_alive_is_pruned_and_nothing_is_removed(
    sweeper: Sweeper, owner: Owner, folder: Path, binary: Path, tmp_path: Path
) -> None:
    with Worker.on(binary, folder) as before:
        before("map")
        before(f"charge 0 {GIB}")
    with Worker.in_container(binary, folder, tmp_path / "view") as supervisor:
        assert supervisor("pid") == "1"  # it maps nothing itself
        inode = (folder / "vmem_node" / "vmem_node.config").stat().st_ino
        found = look(sweeper, owner)
        assert (found.removed, found.pruned, found.charged) == ((), 1, 0)
        assert (folder / "vmem_node" / "vmem_node.config").stat().st_ino == inode


def test_a_locked_ledger_is_left_for_the_next_look(
    sweeper: Sweeper, owner: Owner, folder: Path, container: Worker
) -> None:
    charge(folder, Record(77, GIB))
    container("lock 0")
    found = look(sweeper, owner)
    assert found.pruned == 0
    assert found.lost_tries > 0
    container("unlock 0")
    assert look(sweeper, owner).pruned == 1


@pytest.mark.parametrize(
    ("content", "word"),
    [(b"", Reason.SIZE), (b"x" * 8192, "foreign"), (bytes(8192), "unbuilt"), (b"x" * 8193, Reason.SIZE)],
)
def test_a_region_that_nobody_understands_is_no_data_and_is_named(
    sweeper: Sweeper, owner: Owner, folder: Path, container: Worker, content: bytes, word: str
) -> None:
    (folder / "sm_node" / "sm_node.config").write_bytes(content)
    budget = look(sweeper, owner).view.budget
    assert isinstance(budget, Trouble)
    assert budget.word == word


def test_what_a_tenant_put_in_place_of_its_regions_is_left_and_named(
    sweeper: Sweeper, owner: Owner, folder: Path, container: Worker, tmp_path: Path
) -> None:
    (tmp_path / "secret").touch()
    (folder / "vmem_node" / "vmem_node.config").unlink()
    (folder / "vmem_node" / "vmem_node.config").symlink_to(tmp_path / "secret")
    os.link(folder / "sm_node" / "sm_node.config", folder / "sm_node" / "second")
    assert set(look(sweeper, owner).refusals) == {Reason.LINK, Reason.HARD_LINK}


def test_the_sm_budget_is_read_and_its_sampling_owner_is_known(
    sweeper: Sweeper, owner: Owner, folder: Path, container: Worker
) -> None:
    container("own 3")
    container("refill 3 30")
    seen = view(sweeper.ground, owner.id, None, for_people=True)
    assert isinstance(seen.budget, Budget)
    assert seen.budget.version == 3
    device = seen.budget.devices[3]
    assert (device.limit, device.used, device.tokens, device.leader_pid) == (30, 29, 1000, 1)
    assert seen.owners_locked == {3}


def test_a_folder_is_unused_when_nobody_is_left_that_could_need_it(
    sweeper: Sweeper, owner: Owner, folder: Path, kubelet: Path
) -> None:
    assert look(sweeper, owner).unused
    (kubelet / "pods" / owner.id.uid).mkdir(parents=True)
    assert not look(sweeper, owner).unused


def test_a_published_volume_tells_whose_folder_it_is(
    ground: Ground, sweeper: Sweeper, owner: Owner, kubelet: Path
) -> None:
    target = kubelet / "pods" / owner.id.uid / "volumes" / "kubernetes.io~csi" / "v" / "mount"
    target.parent.mkdir(parents=True)
    Volumes(ground, kubelet).publish(owner, str(target))
    found = look(sweeper, owner)
    assert (found.owner, found.published) == (owner, True)


def test_a_ledger_swapped_between_look_and_prune_is_not_written(
    sweeper: Sweeper,
    ground: Ground,
    owner: Owner,
    folder: Path,
    container: Worker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    charge(folder, Record(77, GIB))
    prune = sweeper._prune

    def swapped(*args: object) -> int:
        (folder / "vmem_node" / "vmem_node.config").rename(folder / "vmem_node" / "old")
        ledger_file(folder / "vmem_node", Record(77, GIB))
        return prune(*args)  # type: ignore[arg-type]  # passed on as they came

    monkeypatch.setattr(sweeper, "_prune", swapped)
    found = look(sweeper, owner)
    assert (found.pruned, found.refusals) == (0, (Reason.SWAPPED,))
    assert ground.clean([owner.id])[owner.id][Kind.VMEM] is Outcome.IN_USE
