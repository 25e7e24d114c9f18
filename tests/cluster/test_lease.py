"""Leader election on the API server, with times short enough to see it happen."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from service.kube.client import KubeClient
from service.kube.lease import Lease
from service.kube.metrics import KubeMetrics
from service.kube.resources import LEASES
from service.metrics import MetricSet
from service.settings import KubeSettings, LeaseSettings
from tests.cluster.tcp_proxy import Proxy, kubeconfig_through, proxied
from tests.cluster.waiting import until
from tests.lab import Lab
from tests.lab.api import Call

SHORT = LeaseSettings(name="election", duration_s=3, renew_s=2, retry_s=0.3)
LONG = LeaseSettings(name="election", duration_s=60, renew_s=40, retry_s=0.3)


@asynccontextmanager
async def candidate(
    kubeconfig: Path, namespace: str, identity: str, settings: LeaseSettings = SHORT
) -> AsyncIterator[tuple[Lease, "asyncio.Task[None]"]]:
    metrics = KubeMetrics(MetricSet())
    client = await KubeClient.connect(KubeSettings(kubeconfig=kubeconfig), metrics=metrics)
    lease = Lease(client, namespace=namespace, identity=identity, settings=settings, metrics=metrics)
    task = asyncio.create_task(lease.run())
    try:
        yield lease, task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await client.close()


@pytest.fixture
async def kubeconfig(lab: Lab) -> Path:
    return await asyncio.to_thread(lambda: lab.kubeconfig)


async def held(lease: Lease, seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        await lease.wait_held()


async def spec(lab: Lab, namespace: str) -> dict[str, object]:
    found = await asyncio.to_thread(lab.api.ok, Call("GET", LEASES.path(namespace, "election")))
    result: dict[str, object] = found["spec"]
    return result


async def test_one_of_several_leads(lab: Lab, namespace: str, kubeconfig: Path) -> None:
    async with (
        candidate(kubeconfig, namespace, "a") as (a, _),
        candidate(kubeconfig, namespace, "b") as (b, _),
        candidate(kubeconfig, namespace, "c") as (c, _),
    ):
        candidates = {"a": a, "b": b, "c": c}
        await until(lambda: any(found.held for found in candidates.values()))
        leaders = {name for name, found in candidates.items() if found.held}
        await until(lambda: {found.leader for found in candidates.values()} == leaders)
        for _ in range(30):
            assert {name for name, found in candidates.items() if found.held} == leaders
            await asyncio.sleep(0.1)
        found = await spec(lab, namespace)
        assert leaders == {found["holderIdentity"]}
        assert found["leaseDurationSeconds"] == 3


async def test_a_leader_that_ends_gives_the_lease_back(lab: Lab, namespace: str, kubeconfig: Path) -> None:
    async with candidate(kubeconfig, namespace, "a", LONG) as (first, task):
        await held(first)
        async with candidate(kubeconfig, namespace, "b", LONG) as (second, _):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            assert not first.held
            await held(second)  # Long before the 60 s of the lease are over.
            assert (await spec(lab, namespace))["leaseTransitions"] == 1


@pytest.fixture
async def network(lab: Lab, tmp_path: Path) -> AsyncIterator[tuple[Proxy, Path]]:
    async with proxied(lab.server) as (proxy, url):
        yield proxy, kubeconfig_through(await asyncio.to_thread(lambda: lab.kubeconfig), url, tmp_path)


@pytest.mark.parametrize("way", ["stall", "refuse"])
async def test_a_leader_that_is_cut_off_ceases_before_another_begins(
    lab: Lab, namespace: str, kubeconfig: Path, network: tuple[Proxy, Path], way: str
) -> None:
    proxy, through = network
    told: list[tuple[str, bool]] = []
    async with candidate(through, namespace, "cut-off") as (first, _):
        await held(first)
        async with candidate(kubeconfig, namespace, "other") as (second, _):
            first.on_change(lambda leading: told.append(("cut-off", leading)))
            second.on_change(lambda leading: told.append(("other", leading)))
            proxy.stall() if way == "stall" else proxy.refuse()
            both: list[bool] = []
            second.on_change(lambda _: both.append(first.held))
            await until(lambda: second.held)
            assert both == [False]
            assert told == [("cut-off", False), ("other", True)]
            proxy.heal()
            await asyncio.sleep(1.0)
            assert not first.held


async def test_a_lease_that_somebody_deletes_is_made_again_by_its_holder(
    lab: Lab, namespace: str, kubeconfig: Path
) -> None:
    async with candidate(kubeconfig, namespace, "a", LONG) as (lease, _):
        await held(lease)
        path = LEASES.path(namespace, "election")
        old = await asyncio.to_thread(lab.api.ok, Call("GET", path))
        await asyncio.to_thread(lab.api.ok, Call("DELETE", path))
        uid = old["metadata"]["uid"]
        await asyncio.to_thread(lab.wait_for, path, accept=lambda found: found["metadata"]["uid"] != uid)
        assert lease.held


async def test_a_lease_taken_by_force_is_lost_at_once(lab: Lab, namespace: str, kubeconfig: Path) -> None:
    async with candidate(kubeconfig, namespace, "a", LONG) as (lease, _):
        await held(lease)
        path = LEASES.path(namespace, "election")
        patch = {"spec": {"holderIdentity": "thief"}}
        await asyncio.to_thread(lab.api.ok, Call("PATCH", path, patch, "application/merge-patch+json"))
        await until(lambda: not lease.held)


async def test_work_runs_while_we_lead_and_not_a_moment_longer(
    lab: Lab, namespace: str, kubeconfig: Path, network: tuple[Proxy, Path]
) -> None:
    proxy, through = network
    runs: list[str] = []

    async def work() -> None:
        runs.append("begun")
        try:
            await asyncio.Event().wait()
        finally:
            runs.append("ended while held" if lease._leading else "ended")

    async with candidate(through, namespace, "a") as (lease, _):
        leading = asyncio.create_task(lease.lead(work))
        await held(lease)
        proxy.refuse()
        await until(lambda: runs == ["begun", "ended"])
        proxy.heal()
        await until(lambda: runs == ["begun", "ended", "begun"])
        leading.cancel()
        with suppress(asyncio.CancelledError):
            await leading
        assert runs[3:] == ["ended while held"]


async def test_work_that_ends_by_itself_is_told_to_its_owner(namespace: str, kubeconfig: Path) -> None:
    async def broken() -> None:
        raise RuntimeError("work")

    async with candidate(kubeconfig, namespace, "a") as (lease, _):
        with pytest.raises(RuntimeError, match="work"):
            await lease.lead(broken)
