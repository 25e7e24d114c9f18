"""The reflector against the API server when connections break, peers fall silent and history is lost."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cluster.reflecting import QUICK, change, create, delete, reflecting
from tests.cluster.tcp_proxy import Proxy, kubeconfig_through, proxied
from tests.lab import Lab

OWN = "kube-root-ca.crt"  # Every namespace has this one.


@pytest.fixture
async def network(lab: Lab, tmp_path: Path) -> AsyncIterator[tuple[Proxy, Path]]:
    """A proxy and the kubeconfig that leads through it."""
    async with proxied(lab.server) as (proxy, url):
        yield proxy, kubeconfig_through(await asyncio.to_thread(lambda: lab.kubeconfig), url, tmp_path)


async def restart_without_history(lab: Lab) -> None:
    """The API server forgets what its watch cache held, and etcd what was before now."""

    def restart() -> None:
        lab.etcd_compact()
        lab.components.restart("kube-apiserver")

    await asyncio.to_thread(restart)


async def test_a_watch_that_is_cut_goes_on_where_it_was(
    lab: Lab, namespace: str, network: tuple[Proxy, Path]
) -> None:
    proxy, kubeconfig = network
    async with reflecting(kubeconfig, namespace) as found:
        await found.reflector.wait_synced(30)
        for number in range(10):
            await create(lab, namespace, f"before{number}")
            proxy.cut()
            await create(lab, namespace, f"after{number}")
        await found.until(lambda: "after9" in found.names())
        assert found.names() >= {f"{when}{n}" for n in range(10) for when in ("before", "after")}
        assert found.counted("tenure_kube_lists_total", reason="start") == 1
        assert found.counted("tenure_kube_lists_total", reason="expired") == 0
        assert found.counted("tenure_kube_watches_total") > 1


async def test_what_is_missed_while_nothing_answers_is_caught_up_without_a_list(
    lab: Lab, namespace: str, network: tuple[Proxy, Path]
) -> None:
    proxy, kubeconfig = network
    await create(lab, namespace, "goes", "stays")
    async with reflecting(kubeconfig, namespace) as found:
        await found.reflector.wait_synced(30)
        proxy.refuse()
        await delete(lab, namespace, "goes")
        await create(lab, namespace, "comes")
        tried = proxy.accepted
        await found.until(lambda: proxy.accepted > tried + 2)
        proxy.heal()
        await found.until(lambda: found.names() >= {"comes", "stays"} and "goes" not in found.names())
        assert found.counted("tenure_kube_lists_total", reason="expired") == 0
        assert found.counted("tenure_kube_stream_failures_total", failure="unreachable") >= 3
        assert not any(told.final_state_unknown for told in found.changes)


async def test_a_peer_that_falls_silent_is_left_for_another_connection(
    lab: Lab, namespace: str, network: tuple[Proxy, Path]
) -> None:
    proxy, kubeconfig = network
    timings = replace(QUICK, idle=1.0, connect=1.0)
    async with reflecting(kubeconfig, namespace, timings=timings) as found:
        await found.reflector.wait_synced(30)
        await found.until(lambda: found.counted("tenure_kube_watches_total") >= 1)
        proxy.stall()
        await create(lab, namespace, "x")
        watches = found.counted("tenure_kube_watches_total")
        await found.until(lambda: found.counted("tenure_kube_watches_total") >= watches + 2)
        assert "x" not in found.names()
        proxy.heal()
        await found.until(lambda: "x" in found.names())
        assert found.counted("tenure_kube_lists_total", reason="start") == 1
        assert found.counted("tenure_kube_lists_total", reason="expired") == 0


async def test_an_api_server_that_restarts_is_found_again(
    lab: Lab, namespace: str, network: tuple[Proxy, Path]
) -> None:
    _, kubeconfig = network
    await create(lab, namespace, "x")
    async with reflecting(kubeconfig, namespace) as found:
        await found.reflector.wait_synced(30)
        await asyncio.to_thread(lab.components.restart, "kube-apiserver")
        await change(lab, namespace, "x", a="1")
        await create(lab, namespace, "y")
        await found.until(lambda: {"x", "y"} <= found.names())
        x = found.store.get(f"{namespace}/x")
        assert x is not None
        await found.until(lambda: (found.store.get(f"{namespace}/x") or x).data == {"a": "1"})
        assert found.store.synced


async def test_lost_history_is_listed_and_missed_deletions_are_told_as_such(
    lab: Lab, namespace: str, network: tuple[Proxy, Path]
) -> None:
    proxy, kubeconfig = network
    await create(lab, namespace, "goes", "stays", "changes", "taken-over")
    async with reflecting(kubeconfig, namespace) as found:
        await found.reflector.wait_synced(30)
        old = found.store.get(f"{namespace}/taken-over")
        assert old is not None
        proxy.refuse()
        await delete(lab, namespace, "goes", "taken-over")
        await create(lab, namespace, "taken-over")
        await change(lab, namespace, "changes", a="1")
        await restart_without_history(lab)
        del found.changes[:]
        proxy.heal()
        await found.until(lambda: found.counted("tenure_kube_lists_total", reason="expired") >= 1)
        await found.until(lambda: "goes" not in found.names())
        await create(lab, namespace, "later")
        await found.until(lambda: "later" in found.names())
    told = [
        (each.key.split("/")[1], each.old is not None, each.new is not None, each.final_state_unknown)
        for each in found.changes
    ]
    assert sorted(told) == [
        ("changes", True, True, False),
        ("goes", True, False, True),
        ("later", False, True, False),
        ("taken-over", False, True, False),
        ("taken-over", True, False, True),
    ]
    new = found.store.get(f"{namespace}/taken-over")
    assert new is not None
    assert new.metadata.uid != old.metadata.uid


async def test_a_list_that_is_cut_between_pages_is_completed(
    lab: Lab, namespace: str, network: tuple[Proxy, Path]
) -> None:
    proxy, kubeconfig = network
    names = {f"n{number}" for number in range(60)}
    await create(lab, namespace, *names)
    async with reflecting(kubeconfig, namespace, page_size=5) as found:
        for _ in range(5):
            await asyncio.sleep(0.01)
            proxy.cut()
        await found.reflector.wait_synced(30)
        assert found.names() >= names


async def test_a_kind_that_may_not_be_read_is_waited_for(lab: Lab, namespace: str) -> None:
    stranger = f"stranger-{namespace}"
    kubeconfig = await asyncio.to_thread(lab.kubeconfig_for, stranger)
    await create(lab, namespace, "x")
    async with reflecting(kubeconfig, namespace) as found:
        await found.until(lambda: found.counted("tenure_kube_blocked") == 1)
        assert not found.store.synced
        role = ("create", "rolebinding", "r", "--clusterrole=view", f"--user={stranger}", "-n", namespace)
        await asyncio.to_thread(lab.kubectl, *role)
        await found.reflector.wait_synced(30)
        assert "x" in found.names()
        await found.until(lambda: found.counted("tenure_kube_blocked") == 0)
