"""Regions under attack and under load: `make prove ONLY=regions_files`, `regions_pruner`, `regions_attack`."""

import os
import random
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

from controllers.regions import layout, locks, sm, syscalls, vgpu, view, vmem
from controllers.regions.ground import Ground
from controllers.regions.layout import Kind, NoDataError
from controllers.regions.names import ContainerId
from controllers.regions.safefs import RefusedError
from controllers.regions.sweep import Finding, Sweeper
from controllers.regions.volumes import Volumes
from tests.native.worker import Worker, build
from tests.prove.proofs import Run, proof

FIXTURES = Path(__file__).parents[1] / "fixtures"
CONTAINER = ContainerId("0a1b2c3d-0000-4000-8000-000000000001", "main")

FILES = 100_000
ATTACKS = 10_000
# Seconds: more than a look takes on a starved machine, less than the 45 that waiting for a tenant's lease would.
HANG_S = 20.0
PROCESSES = 16
CHURN_S = 30.0
DEVICES = 3


# Any bytes


@proof("regions_files")
def regions_files(run: Run) -> None:
    """Whatever a region file holds: a value or one of our own answers comes out, and a write stays in its device."""
    fd = os.memfd_create("region")
    for rng in run.trials(FILES):
        data = _mutated(rng)
        os.ftruncate(fd, 0)
        os.pwrite(fd, data, 0)
        try:
            _read_everything(fd, data)
            device = rng.randrange(layout.DEVICES)
            _prune(fd, device, keep={rng.randrange(8)})
            run.check(_same_outside(fd, data, device), f"a prune of device {device} wrote outside of it")
        except Exception as error:  # noqa: BLE001 - any error is what this proof looks for
            run.check(holds=False, otherwise=f"{type(error).__name__}: {error}")
    os.close(fd)


def _mutated(rng: random.Random) -> bytes:
    base = rng.choice(_BASES)
    match rng.randrange(6):
        case 0:
            return rng.randbytes(rng.randrange(0, 4096))
        case 1:
            return base[: rng.randrange(len(base) + 1)]
        case 2:
            return base + rng.randbytes(rng.randrange(64))
        case _:
            return _with_holes(rng, bytearray(base))


def _with_holes(rng: random.Random, data: bytearray) -> bytes:
    for _ in range(rng.randrange(1, 12)):
        at = rng.choice(_TENDER) if rng.randrange(3) else rng.randrange(len(data))
        noise = rng.choice((b"\xff" * 8, b"\0" * 8, struct.pack("<Q", rng.randrange(2048)), rng.randbytes(8)))
        data[at : at + 8] = noise
    return bytes(data)


def _ledger() -> bytes:
    data = bytearray(Kind.VMEM.file_size)
    struct.pack_into("<4I", data, 0, layout.VMEM_MAGIC, 1, layout.VMEM_REGION_SIZE, layout.DEVICES)
    for device in range(layout.DEVICES):
        start = layout.device_offset(Kind.VMEM, device)
        for slot in range(8):
            layout.RECORD.pack_into(data, start + slot * layout.RECORD.size, slot, slot << 20)
        layout.COUNT.pack_into(data, start + layout.COUNT_OFFSET, 8)
    return bytes(data)


_BASES = (
    (FIXTURES / "sm_node.v3.config").read_bytes(),
    (FIXTURES / "vmem_node.v1.config").read_bytes(),
    _ledger(),
    struct.pack("<4I", vgpu.MAGIC, 1, 2560, 16).ljust(vgpu.FILE_SIZE, b"\x01"),
)
_TENDER = (
    0,
    4,
    8,
    12,
    *(layout.device_offset(Kind.VMEM, d) + layout.COUNT_OFFSET for d in range(layout.DEVICES)),
)


def _read_everything(fd: int, data: bytes) -> None:
    for read in (vmem.read, sm.read):
        try:
            read(fd)
        except NoDataError:
            continue
    try:
        vgpu.limits_of(data)
        layout.kind_of(data)
    except NoDataError:
        return


def _prune(fd: int, device: int, *, keep: Collection[int]) -> None:
    try:
        vmem.prune(fd, device, live=lambda asked: set(keep) & set(asked))
    except (NoDataError, locks.BusyError):
        return


def _same_outside(fd: int, before: bytes, device: int) -> bool:
    after = os.pread(fd, len(before) + 1, 0)
    start = layout.device_offset(Kind.VMEM, device)
    end = start + layout.VMEM_DEVICE_SIZE
    return len(after) == len(before) and after[:start] == before[:start] and after[end:] == before[end:]


# A living ledger


@proof("regions_pruner")
def regions_pruner(run: Run) -> None:
    """Processes charge, free and die at random while the pruner runs: in the end the ledger says exactly the truth."""
    for rng in run.trials(1):
        with _workplace() as folder, Crowd(folder, rng) as crowd:
            sweeper = _sweeper(folder)
            end = time.monotonic() + CHURN_S
            looks = pruned = 0
            while time.monotonic() < end:
                crowd.kill_some()
                pruned += _look(sweeper).pruned
                looks += 1
            truth = crowd.stop()
            found = _settled(sweeper)
            print(f"{looks} looks, {pruned} records pruned, {crowd.killed} processes killed", file=sys.stderr)
            run.check(pruned > 0 and crowd.killed > 0, "nothing was pruned: the proof did not try anything")
            run.check(found == truth, f"the ledger says {found}, the processes hold {truth}")


class Crowd:
    """Processes of one container that charge and free; `kill_some` ends a few and starts others."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self.killed = 0
        self._rng = rng
        self._view = folder / "view"
        self._binary = build(folder)
        regions = folder / "root" / str(CONTAINER)
        self._first = Worker.in_container(self._binary, regions, self._view)
        assert self._first("pid") == "1"
        self._workers = [self._begin() for _ in range(PROCESSES)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in (*self._workers, self._first):
            worker.kill()

    def kill_some(self) -> None:
        for number in range(PROCESSES):
            if self._rng.random() < 0.02:
                self._workers[number].kill()
                self._workers[number] = self._begin()
                self.killed += 1

    def stop(self) -> dict[int, dict[int, int]]:
        """End the churn; what each process holds, by device and inner pid."""
        truth: dict[int, dict[int, int]] = {}
        for worker in self._workers:
            worker.send("")
            held = [int(text) for text in worker.answer().split()[1:]]
            pid = int(worker("pid"))
            for device, bytes_ in enumerate(held):
                if bytes_:
                    truth.setdefault(device, {})[pid] = bytes_
        return truth

    def _begin(self) -> Worker:
        inside = (
            Path(f"/proc/{self._first.pid}/task/{self._first.pid}/children").read_text("utf-8").split()[0]
        )
        worker = Worker(["nsenter", f"--target={inside}", "--mount", "--pid", self._binary, self._view])
        assert worker("map") == "ok"
        worker.send(f"churn {DEVICES} {self._rng.randrange(1 << 30)}")
        return worker


def _look(sweeper: Sweeper) -> Finding:
    return sweeper.look(CONTAINER, sweeper.survey())


def _settled(sweeper: Sweeper) -> dict[int, dict[int, int]]:
    """The ledger after the last dead process was pruned; duplicates would show as a wrong sum."""
    while _look(sweeper).pruned:
        continue
    ledger = _look(sweeper).view.ledger
    assert isinstance(ledger, vmem.Ledger)
    said: dict[int, dict[int, int]] = {}
    for device, records in ledger.devices.items():
        for record in records:
            of = said.setdefault(device, {})
            of[record.pid] = of.get(record.pid, 0) + record.used
    return said


# A hostile folder


@proof("regions_attack")
def regions_attack(run: Run) -> None:
    """A tenant swaps, links, cuts and floods while we look: nothing outside is opened, written or removed."""
    with _workplace() as folder, ExitStack() as stack:
        ground = DesertedGround(folder / "root", kib=0)
        outside = Outside(folder / "outside")
        attacker = stack.enter_context(_attacker(ground.root / str(CONTAINER), outside.folder))
        outside.watch()
        for rng in run.trials(ATTACKS):
            began = time.monotonic()
            try:
                _touch(ground, rng)
            except (RefusedError, FileNotFoundError):
                pass
            except Exception as error:  # noqa: BLE001 - any other error is what this proof looks for
                run.check(holds=False, otherwise=f"{type(error).__name__}: {error}")
            run.check(time.monotonic() - began < HANG_S, "a look hung")
            run.check(outside.untouched(), f"outside: {outside.seen}")
        run.check(attacker.poll() is None, "the attacker gave up: nothing was attacked")


class DesertedGround(Ground):
    """Always finds the container dead: the guard that would stop most removals is taken out."""

    def inhabitants(self, containers: Iterable[ContainerId]) -> dict[ContainerId, tuple[int, ...]]:
        """Nobody, anywhere."""
        return dict.fromkeys(set(containers) - {CONTAINER}, ())


def _touch(ground: Ground, rng: random.Random) -> None:
    match rng.randrange(8):
        case 0:
            ground.retire(CONTAINER)
        case 1:
            ground.retire(CONTAINER, everything=True)
        case 2 | 3:
            ground.clean([CONTAINER])
        case 4 | 5:
            _prune_all(ground)
        case _:
            view.view(ground, CONTAINER, None)


def _prune_all(ground: Ground) -> None:
    with (
        ground.leaf(CONTAINER, Kind.VMEM) as leaf,
        leaf.regular(Kind.VMEM.file_name, size=Kind.VMEM.file_size, write=True) as fd,
    ):
        for device in range(layout.DEVICES):
            _prune(fd, device, keep=())


class Outside:
    """Files that a link of the attacker leads to. The kernel tells of every open, write and removal there."""

    _MASK = (
        0x1 | 0x2 | 0x20 | 0x40 | 0x80 | 0x100 | 0x200 | 0x400 | 0x800
    )  # access, modify, open, moves, create, delete

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seen = ""
        for kind in Kind:
            (folder / kind).mkdir(parents=True)
            (folder / kind / kind.file_name).write_bytes(_ledger() if kind is Kind.VMEM else _BASES[0])
        self._inotify = -1
        self._before = self._state()

    def watch(self) -> None:
        """From now on nothing may happen here."""
        self._inotify = syscalls.inotify_open()
        for watched in (self.folder, *(self.folder / kind for kind in Kind)):
            syscalls.inotify_watch(self._inotify, str(watched), self._MASK)

    def untouched(self) -> bool:
        """Nothing was opened by its name here, and nothing changed, by whatever name."""
        self.seen = self._events() or (
            "" if self._state() == self._before else f"{self._before} became {self._state()}"
        )
        return not self.seen

    def _events(self) -> str:
        try:
            return os.read(self._inotify, 4096).hex()
        except BlockingIOError:
            return ""

    def _state(self) -> list[tuple[int, int, int]]:
        found = [(self.folder / kind / kind.file_name).stat() for kind in Kind]
        return [(status.st_ino, status.st_size, status.st_mtime_ns) for status in found]


@contextmanager
def _attacker(folder: Path, outside: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "tests.prove.regions_attacker", str(folder), str(outside)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


# What they share


@contextmanager
def _workplace() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tenure-regions-") as name:
        folder = Path(name)
        for kind in Kind:
            (folder / "root" / str(CONTAINER) / kind).mkdir(parents=True)
        yield folder


def _sweeper(folder: Path) -> Sweeper:
    ground = Ground(folder / "root", kib=0)
    return Sweeper(ground, Volumes(ground, folder / "kubelet"), folder / "kubelet")
