"""pytest fixtures: a host of the test's own for scans of its cards, with device nodes, processes and control groups."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.occupancy.ground import Cgroups, Ground, Programs, devices_to_oneself


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    with devices_to_oneself():
        yield Ground(tmp_path / "host")


@pytest.fixture
def programs() -> Iterator[Programs]:
    started = Programs()
    yield started
    started.close()


@pytest.fixture
def cgroups() -> Iterator[Cgroups]:
    made = Cgroups()
    yield made
    made.close()
