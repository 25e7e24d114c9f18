import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from controllers.regions import layout, locks
from tests.native.worker import Worker


@pytest.fixture
def fd(worker: Worker, regions: Path) -> Iterator[int]:
    assert worker("map") == "ok"
    fd = os.open(regions / "vmem_node" / "vmem_node.config", os.O_RDWR)
    yield fd
    os.close(fd)


@pytest.mark.parametrize("device", range(16))
def test_a_device_locked_by_the_c_library_is_locked_for_us_and_its_neighbour_is_not(
    worker: Worker, fd: int, device: int
) -> None:
    assert worker(f"lock {device}") == "ok"
    with pytest.raises(locks.BusyError), locks.held(fd, (layout.lock_offset(device), 1)):
        pass
    with locks.held(fd, (layout.lock_offset((device + 1) % 16), 1), write=True) as lost:
        assert lost == 0
    worker(f"unlock {device}")
    with locks.held(fd, (layout.lock_offset(device), 1), write=True):
        pass


def test_an_offset_without_the_header_is_granted_beside_the_real_lock(worker: Worker, fd: int) -> None:
    """What the wrong offset did to others: no error, and no exclusion. Were ours wrong, the tests around would fail."""
    assert worker("lock 3") == "ok"
    wrong = layout.lock_offset(3) - layout.DEVICES_OFFSET
    with locks.held(fd, (wrong, 1), write=True):
        pass


def test_what_we_lock_is_locked_for_the_c_library(worker: Worker, fd: int) -> None:
    offset = layout.lock_offset(5)
    with locks.held(fd, (offset, 1), write=True):
        assert worker(f"try {offset} 1") == "denied"
        assert worker(f"try {layout.lock_offset(6)} 1") == "granted"
    assert worker(f"try {offset} 1") == "granted"


def test_two_readers_share_a_lock(worker: Worker, fd: int, regions: Path) -> None:
    other = os.open(regions / "vmem_node" / "vmem_node.config", os.O_RDONLY)
    span = (layout.lock_offset(0), 1)
    with locks.held(fd, span), locks.held(other, span):
        assert worker(f"try {span[0]} 1") == "denied"
    os.close(other)


def test_a_sampling_owner_is_seen_by_its_lock_and_its_death_too(worker: Worker, regions: Path) -> None:
    assert worker("own 3") == "ok"
    fd = os.open(regions / "sm_node" / "sm_node.lock", os.O_RDONLY)
    assert [device for device in range(16) if locks.taken(fd, (device, 1))] == [3]
    worker.kill()
    assert not locks.taken(fd, (3, 1))
    os.close(fd)


def test_a_lease_is_refused_while_the_file_is_open_or_mapped(worker: Worker, fd: int, regions: Path) -> None:
    os.close(os.dup(fd))
    with pytest.raises(locks.BusyError), locks.Lease(fd):
        pass
    worker.kill()
    with locks.Lease(fd) as lease:
        assert lease.undisturbed


def test_a_newcomer_waits_for_the_lease_and_is_seen(
    binary: Path, worker: Worker, fd: int, regions: Path
) -> None:
    worker.kill()
    with Worker.on(binary, regions) as newcomer:
        with locks.Lease(fd) as lease:
            newcomer.send("open")
            while lease.undisturbed:
                os.sched_yield()
        assert newcomer.answer() == "ok"
