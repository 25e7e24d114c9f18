import fcntl
import os
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from controllers.regions import fresh, locks, processes
from controllers.regions.fresh import Deserted, Outcome, Users
from controllers.regions.layout import Kind
from controllers.regions.names import ContainerId
from controllers.regions.safefs import FileId, Folder, Reason, RefusedError
from tests.native.worker import Worker
from tests.unit.regions.conftest import UID

CONTAINER = ContainerId(UID, "main")


def nobody(_: object) -> set[FileId]:
    return set()


def dead() -> list[ContainerId]:
    return [CONTAINER]


@pytest.fixture
def leaf(regions: Path) -> Iterator[Folder]:
    with Folder.trusted(regions / Kind.VMEM) as opened:
        yield opened


def remove(
    leaf: Folder, *, deserted: Deserted = dead, users: Users = processes.used
) -> Outcome | RefusedError:
    place = (CONTAINER, Kind.VMEM)
    return fresh.remove({place: leaf}, deserted=deserted, users=users)[place]


@pytest.mark.parametrize("kind", Kind)
def test_an_unused_region_goes_and_its_neighbours_stay(worker: Worker, regions: Path, kind: Kind) -> None:
    worker("map")
    worker("own 0")
    worker.kill()
    lock = (regions / "sm_node" / "sm_node.lock").stat().st_ino
    with Folder.trusted(regions / kind) as leaf:
        first, second = (
            fresh.remove({(CONTAINER, kind): leaf}, deserted=dead, users=nobody)[CONTAINER, kind]
            for _ in range(2)
        )
    assert (first, second) == (Outcome.REMOVED, Outcome.ABSENT)
    assert not (regions / kind / kind.file_name).exists()
    assert (regions / "sm_node" / "sm_node.lock").stat().st_ino == lock


def test_a_decoy_in_the_wrong_folder_is_left_and_the_real_file_goes(
    worker: Worker, regions: Path, leaf: Folder
) -> None:
    """Where another cleanup looked for it: below config/. It removed nothing there, for ever, without an error."""
    worker("map")
    worker.kill()
    decoy = regions / "config" / "vmem_node" / "vmem_node.config"
    decoy.parent.mkdir(parents=True)
    decoy.touch()
    assert remove(leaf) is Outcome.REMOVED
    assert decoy.exists()
    assert not (regions / "vmem_node" / "vmem_node.config").exists()


def test_a_mapped_region_stays(worker: Worker, leaf: Folder) -> None:
    worker("map")
    assert remove(leaf) is Outcome.IN_USE
    assert worker("same") == "same"


def test_a_region_that_is_open_and_not_yet_mapped_stays(worker: Worker, leaf: Folder) -> None:
    worker("open")
    assert remove(leaf) is Outcome.IN_USE
    assert worker("mapopened") == "ok"
    assert worker("same") == "same"


def test_a_region_of_a_living_container_stays_although_nobody_uses_it(
    worker: Worker, regions: Path, leaf: Folder
) -> None:
    worker("map")
    worker.kill()
    assert remove(leaf, deserted=list) is Outcome.IN_USE
    assert leaf.names() == ["vmem_node.config"]


def test_a_container_that_came_back_during_the_removal_keeps_its_file(worker: Worker, leaf: Folder) -> None:
    worker("map")
    worker.kill()
    seen = []

    def deserted() -> list[ContainerId]:
        seen.append(leaf.names())
        return []

    assert remove(leaf, deserted=deserted) is Outcome.IN_USE
    assert "vmem_node.config" not in seen[0]  # it was asked when a newcomer could no longer find the old file
    assert leaf.names() == ["vmem_node.config"]


def test_a_newcomer_that_found_the_name_just_before_gets_the_file_back(
    binary: Path, regions: Path, worker: Worker, leaf: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker("map")
    worker.kill()
    with Worker.on(binary, regions) as newcomer:

        def in_the_middle(_: object) -> set[FileId]:
            newcomer.send("open")  # it waits for the lease, on the inode that is about to lose its name
            while Path(f"/proc/{newcomer.pid}/wchan").read_text("utf-8") != "__break_lease":
                os.sched_yield()
            return set()

        monkeypatch.setattr("controllers.regions.locks.Lease.undisturbed", Disturbed())
        assert remove(leaf, users=in_the_middle) is Outcome.IN_USE
        assert newcomer.answer() == "ok"
        assert newcomer("mapopened") == "ok"
        assert newcomer("same") == "same"


class Disturbed:
    """The first look finds the lease undisturbed, although a newcomer waits already: the second one must see it."""

    def __init__(self) -> None:
        self._looks = 0

    def __get__(self, lease: locks.Lease, _: type) -> bool:
        self._looks += 1
        return self._looks == 1 or fcntl.fcntl(lease._fd, fcntl.F_GETLEASE) == fcntl.F_WRLCK


def test_without_a_lease_the_open_descriptor_alone_keeps_the_file(
    worker: Worker, leaf: Folder, monkeypatch: pytest.MonkeyPatch, one_pod: None
) -> None:
    """The third guard by itself: the kernel's lease is taken out, the look at maps and descriptors must suffice."""
    monkeypatch.setattr("controllers.regions.locks.Lease.__init__", lambda *_: None)
    monkeypatch.setattr("controllers.regions.locks.Lease.__exit__", lambda *_: None)
    monkeypatch.setattr("controllers.regions.locks.Lease.undisturbed", True)
    worker("open")
    assert remove(leaf) is Outcome.IN_USE
    worker("mapopened")
    assert remove(leaf) is Outcome.IN_USE
    assert worker("same") == "same"


def test_a_link_in_place_of_the_file_is_refused_and_its_target_stays(regions: Path, leaf: Folder) -> None:
    (regions / "secret").touch()
    (regions / "vmem_node" / "vmem_node.config").symlink_to(regions / "secret")
    refusal = remove(leaf)
    assert isinstance(refusal, RefusedError)
    assert refusal.reason is Reason.LINK
    assert (regions / "secret").exists()


def test_a_file_of_any_size_goes_with_its_dead_container(regions: Path, leaf: Folder) -> None:
    (regions / "vmem_node" / "vmem_node.config").touch()
    assert remove(leaf) is Outcome.REMOVED
    os.truncate(os.open(regions / "vmem_node" / "vmem_node.config", os.O_CREAT | os.O_RDWR), 1 << 40)


def test_what_a_killed_agent_had_put_aside_is_removed(regions: Path, leaf: Folder) -> None:
    (regions / "vmem_node" / f"{fresh.PARKED_PREFIX}0011223344556677").touch()
    assert remove(leaf) is Outcome.ABSENT
    assert leaf.names() == []


def test_an_opener_paused_between_open_and_mmap_is_never_left_on_an_orphaned_inode(
    binary: Path, regions: Path, leaf: Folder
) -> None:
    """1,000 rounds, the removal at every distance from the opener's steps; the finding "dead" is wrong each time."""
    pauses = random.Random(6)
    least = 0
    outcomes = Counter[object]()
    (regions / "vmem_node" / "vmem_node.config").touch()
    for _ in range(1000):
        with Worker.on(binary, regions) as opener:
            opener("pid")
            opener.send("open")
            for _ in range(least + pauses.randrange(0, 2000)):
                pass
            outcome = remove(leaf, users=nobody)
            outcomes[outcome] += 1
            # On any machine near the moment of the race: who came too early waits longer, and the other way round.
            least = max(0, least + (500 if outcome is Outcome.REMOVED else -500))
            assert opener.answer() == "ok"
            assert remove(leaf, users=nobody) is Outcome.IN_USE
            assert opener("mapopened") == "ok"
            assert opener("same") == "same"
    assert min(outcomes[Outcome.REMOVED], outcomes[Outcome.IN_USE]) > 100  # the race was run from both sides
