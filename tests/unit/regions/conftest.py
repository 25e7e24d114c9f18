"""Real files, processes and mounts on this machine; what needs root says so where there is none."""

import asyncio
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import uvloop

from controllers.regions import processes
from controllers.regions.ground import Ground
from controllers.regions.layout import Kind
from controllers.regions.names import ContainerId, Owner
from tests.lab.plugin import require_root
from tests.native.worker import Worker, build


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The product's loop: the CSI sockets must get along with it."""
    return {"uvloop": uvloop.new_event_loop}


FIXTURES = Path(__file__).parents[2] / "fixtures"
UID = "0a1b2c3d-0000-4000-8000-000000000001"


@pytest.fixture(scope="session")
def binary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled C helper."""
    return build(tmp_path_factory.mktemp("native"))


@pytest.fixture
def root() -> None:
    """Mounts and namespaces need root."""
    require_root()


def _others() -> list[int]:
    """Every process that may be inspected, but this one and the machine's first."""
    return [pid for pid in processes.pids() if pid not in (1, os.getpid())]


@pytest.fixture
def one_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes of a test have no pod's control group; here every process of this machine is in the pod."""
    monkeypatch.setattr(processes, "_names", lambda *_: True)
    monkeypatch.setattr(processes, "_outside_our_namespace", _others)


@pytest.fixture
def owner() -> Owner:
    return Owner(ContainerId(UID, "main"), "tenant", "trainer-0")


@pytest.fixture
def regions(tmp_path: Path) -> Path:
    """A container's folder with its two region folders, not mounted."""
    folder = tmp_path / "root" / f"{UID}_main"
    for kind in Kind:
        (folder / kind).mkdir(parents=True)
        (folder / kind).chmod(0o777)
    return folder


@pytest.fixture
def ground(root: None, tmp_path: Path) -> Iterator[Ground]:
    """A root folder with bounded region folders, unmounted afterwards."""
    yield Ground(tmp_path / "root", kib=1024)
    unmount_below(tmp_path)


@pytest.fixture
def worker(binary: Path, regions: Path) -> Iterator[Worker]:
    """A process with the two region folders, in the namespaces of the test."""
    with Worker.on(binary, regions) as process:
        yield process


def eventually(true: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait until something is true: the kernel takes a moment to end the processes of a container."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not become true"
        time.sleep(0.002)


def unmount_below(path: Path) -> None:
    """Take away every mount below a folder of the test."""
    table = Path("/proc/self/mountinfo").read_text("utf-8").splitlines()
    points = [line.split(" ")[4] for line in table]
    for point in reversed([p for p in points if p.startswith(f"{path}/")]):
        subprocess.run(["umount", "--lazy", point], check=True)
