"""The keeper on real folders and processes; the API server is one that cannot be reached, or is not asked."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from controllers.regions import sweep
from controllers.regions.ground import Ground
from controllers.regions.iothread import IoThread
from controllers.regions.keeper import Keeper
from controllers.regions.names import ContainerId, Owner
from controllers.regions.sweep import Sweeper
from controllers.regions.volumes import Volumes
from service.kube.client import KubeClient
from service.kube.errors import Unreachable
from service.metrics import MetricSet
from service.settings import RegionSettings
from tests.native.worker import Worker

NOBODY_ANSWERS = cast("KubeClient", None)  # no test here gets as far as to ask
Start = Callable[[], Awaitable[Worker]]


@pytest.fixture
def metrics() -> MetricSet:
    return MetricSet()


@pytest.fixture
async def keeper(ground: Ground, tmp_path: Path, metrics: MetricSet) -> AsyncIterator[Keeper]:
    """Running: watcher and sweeps, which are too far apart to help."""
    io = IoThread()
    kubelet = tmp_path / "kubelet"
    sweeper = Sweeper(ground, Volumes(ground, kubelet), kubelet)
    settings = RegionSettings(sweep_s=3600, leftover_grace_s=0.001)
    made = Keeper(settings, NOBODY_ANSWERS, metrics, io=io, sweeper=sweeper, node="node-1")
    await made.begin()
    task = asyncio.create_task(made.watching())
    yield made
    task.cancel()
    made.close()
    io.close()


async def until(true: Callable[[], bool], seconds: float = 20.0) -> None:
    end = asyncio.get_running_loop().time() + seconds
    while not true():
        assert asyncio.get_running_loop().time() < end, "it did not become true"
        await asyncio.sleep(0.005)


@pytest.fixture
def folder(ground: Ground, owner: Owner) -> Path:
    ground.make(owner)
    return ground.root / str(owner.id)


@pytest.fixture
def start(folder: Path, binary: Path, tmp_path: Path) -> Start:
    async def begin() -> Worker:
        worker = await asyncio.to_thread(Worker.in_container, binary, folder, tmp_path / "view")
        assert await asyncio.to_thread(worker, "map") == "ok"
        return worker

    return begin


def configs(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*.config"))


def cleaned(metrics: MetricSet, times: int) -> bool:
    return metrics.registry.get_sample_value("tenure_region_clean_seconds_count") == times


async def test_a_containers_end_is_seen_at_once_and_its_files_are_gone(
    keeper: Keeper, owner: Owner, folder: Path, start: Start, metrics: MetricSet
) -> None:
    keeper.look_at(owner.id)
    sample = metrics.registry.get_sample_value
    for life in (1, 2, 3):
        worker = await start()
        await asyncio.to_thread(worker, "own 0")
        await asyncio.to_thread(worker.kill)
        await until(partial(cleaned, metrics, life))
        assert configs(folder) == []
    assert (folder / "sm_node" / "sm_node.lock").exists()
    assert sample("tenure_region_removed_files_total", {"kind": "vmem_node", "cause": "death"}) == 3


async def test_a_container_that_ended_before_anybody_saw_a_process_is_cleaned_too(
    keeper: Keeper, owner: Owner, folder: Path, binary: Path
) -> None:
    keeper.look_at(owner.id)
    await asyncio.sleep(0.2)
    with Worker([binary, folder, "map"]) as shot:  # it maps and ends
        assert await asyncio.to_thread(shot.answer) == "ok"
    await until(lambda: configs(folder) == [])


async def test_nothing_is_removed_while_one_process_of_the_container_lives(
    keeper: Keeper, owner: Owner, folder: Path, start: Start, ground: Ground
) -> None:
    keeper.look_at(owner.id)
    worker = await start()
    for _ in range(20):
        keeper.look_at(owner.id)
        await asyncio.sleep(0.02)
    assert configs(folder) == ["sm_node.config", "vmem_node.config"]
    assert await asyncio.to_thread(worker, "same") == "same"
    await asyncio.to_thread(worker.kill)
    await until(lambda: configs(folder) == [])


async def test_what_dead_containers_left_is_gone_when_the_keeper_has_begun(
    ground: Ground, owner: Owner, folder: Path, binary: Path, tmp_path: Path, metrics: MetricSet
) -> None:
    with Worker.on(binary, folder) as before:
        await asyncio.to_thread(before, "map")
    io = IoThread()
    sweeper = Sweeper(ground, Volumes(ground, tmp_path), tmp_path)
    keeper = Keeper(RegionSettings(), NOBODY_ANSWERS, metrics, io=io, sweeper=sweeper, node="node-1")
    await keeper.begin()
    assert configs(folder) == []
    keeper.close()
    io.close()


async def test_series_of_a_container_vanish_with_it(
    keeper: Keeper, ground: Ground, owner: Owner, folder: Path, start: Start, metrics: MetricSet
) -> None:
    worker = await start()
    await asyncio.to_thread(worker, "charge 0 4096")
    await keeper.begin()
    identity = {"namespace": "", "pod": "", "container": "main", "pod_uid": owner.id.uid}
    sample = metrics.registry.get_sample_value
    assert sample("tenure_region_ledger_bytes", identity) == 4096
    assert sample("tenure_region_ledger_records", identity) == 1
    assert sample("tenure_regions", {"kind": "vmem_node", "layout": "v1"}) == 1
    await asyncio.to_thread(worker.kill)
    await until(lambda: configs(folder) == [])
    await asyncio.to_thread(ground.retire, owner.id)
    await keeper.begin()
    assert sample("tenure_region_ledger_bytes", identity) is None
    assert sample("tenure_regions", {"kind": "vmem_node", "layout": "v1"}) is None


@pytest.mark.parametrize("seconds", [0.0, 60.0], ids=["one-by-one", "all-at-once"])
async def test_a_sweep_looks_at_every_container_however_many_it_takes_at_once(
    keeper: Keeper, ground: Ground, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    monkeypatch.setattr(sweep, "SLICE_S", seconds)
    owners = [Owner(ContainerId(str(uuid.UUID(int=n)), "main")) for n in range(5)]
    for owner in owners:
        (ground.root / str(owner.id)).mkdir(parents=True)
    await keeper._sweep(cast("Any", keeper._watch))
    assert [finding.owner for finding in keeper._findings] == owners


async def test_a_corrupt_record_is_counted_once_and_gives_no_absurd_sample(
    keeper: Keeper, owner: Owner, start: Start, metrics: MetricSet
) -> None:
    worker = await start()
    await asyncio.to_thread(worker, "charge 0 4096")
    await asyncio.to_thread(worker, "charge 0 -5000")
    await asyncio.to_thread(worker, "charge 1 2048")
    for _ in range(3):
        await keeper._sweep(cast("Any", keeper._watch))
    sample = metrics.registry.get_sample_value
    assert sample("tenure_region_corrupt_records_total") == 1
    identity = {"namespace": "", "pod": "", "container": "main", "pod_uid": owner.id.uid}
    assert sample("tenure_region_ledger_bytes", identity) == 2048
    await asyncio.to_thread(worker.kill)


async def unused_for_a_while(keeper: Keeper) -> None:
    """Two looks find the folder unused, with the grace time between them."""
    await keeper._sweep(cast("Any", keeper._watch))
    await keeper._remove_leftovers()
    await asyncio.sleep(0.01)


async def test_an_api_server_that_cannot_be_asked_removes_nothing(
    keeper: Keeper, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nobody() -> tuple[()]:
        raise Unreachable("connection refused")

    monkeypatch.setattr(keeper, "_pods", nobody)
    await unused_for_a_while(keeper)
    with pytest.raises(Unreachable):
        await keeper._remove_leftovers()
    assert await asyncio.to_thread(folder.exists)


async def test_a_complete_list_without_the_pod_lets_its_folder_go(
    keeper: Keeper, folder: Path, monkeypatch: pytest.MonkeyPatch, metrics: MetricSet
) -> None:
    async def none() -> tuple[()]:
        return ()

    monkeypatch.setattr(keeper, "_pods", none)
    await unused_for_a_while(keeper)
    await keeper._remove_leftovers()
    assert not await asyncio.to_thread(folder.exists)
    assert metrics.registry.get_sample_value("tenure_region_leftovers_removed_total") == 1
