"""The reflector against the API server, when all goes well and when the reader is what fails."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from service.kube.errors import DeadlineExceeded
from service.kube.reflector import SLICE_ITEMS
from service.kube.store import Change
from tests.cluster.reflecting import ConfigMap, Reflected, change, create, delete, reflecting, stored
from tests.lab import Lab

OWN = "kube-root-ca.crt"  # Every namespace has this one.
MANY = 10_000


@pytest.fixture
async def kubeconfig(lab: Lab) -> Path:
    return await asyncio.to_thread(lambda: lab.kubeconfig)


async def settled(lab: Lab, namespace: str) -> None:
    """The namespace's own ConfigMap is made by a controller, at some time."""
    path = f"/api/v1/namespaces/{namespace}/configmaps/{OWN}"
    await asyncio.to_thread(lab.wait_for, path)


async def test_pages_are_followed_and_all_handlers_know_before_it_is_synced(
    lab: Lab, namespace: str, kubeconfig: Path
) -> None:
    names = {f"n{number}" for number in range(23)}
    await settled(lab, namespace)
    await create(lab, namespace, *names)
    async with reflecting(kubeconfig, namespace, page_size=5) as found:
        await found.reflector.wait_synced(30)
        assert found.names() == names | {OWN}
        assert {told.key for told in found.changes} == {f"{namespace}/{name}" for name in names | {OWN}}
        assert found.counted("tenure_kube_lists_total", reason="start") == 1
        assert found.counted("tenure_kube_objects") == 24
        assert found.counted("tenure_kube_synced") == 1


async def test_what_happens_after_the_list_arrives_as_events(
    lab: Lab, namespace: str, kubeconfig: Path
) -> None:
    await settled(lab, namespace)
    await create(lab, namespace, "x")
    async with reflecting(kubeconfig, namespace) as found:
        await found.reflector.wait_synced(30)
        del found.changes[:]
        await create(lab, namespace, "y")
        await change(lab, namespace, "x", a="1")
        await delete(lab, namespace, "y")
        await found.until(lambda: len(found.changes) == 3)
    added, modified, deleted = found.changes
    assert (added.old, added.key) == (None, f"{namespace}/y")
    assert modified.old is not None
    assert modified.new is not None
    assert (modified.old.data, modified.new.data) == (None, {"a": "1"})
    assert (deleted.new, deleted.final_state_unknown) == (None, False)


async def test_only_what_is_selected_is_kept(lab: Lab, namespace: str, kubeconfig: Path) -> None:
    await create(lab, namespace, "x")
    async with reflecting(kubeconfig, namespace, selector="kind=wanted") as found:
        await found.reflector.wait_synced(30)
        assert found.names() == set()
        await change(lab, namespace, "x", kind="wanted")
        await found.until(lambda: found.names() == {"x"})
        await change(lab, namespace, "x", kind="plain")
        await found.until(lambda: found.names() == set())


async def test_a_handler_that_raises_stops_nothing(lab: Lab, namespace: str, kubeconfig: Path) -> None:
    await settled(lab, namespace)

    def broken(told: Change[ConfigMap]) -> None:
        raise RuntimeError(told.key)

    async with reflecting(kubeconfig, namespace) as found:
        found.store.subscribe(broken)
        with structlog.testing.capture_logs() as logged:
            await found.reflector.wait_synced(30)
            await create(lab, namespace, "x", "y")
            await found.until(lambda: found.names() == {"x", "y", OWN})
        assert [line["log_level"] for line in logged] == ["error"] * 3
        assert found.counted("tenure_kube_handler_failures_total") == 3
        assert found.counted("tenure_kube_lists_total", reason="start") == 1


@pytest.fixture
def crowd(lab: Lab, namespace: str) -> Iterator[None]:
    with stored(lab, namespace, MANY):
        yield


async def test_ten_thousand_objects_leave_the_loop_to_others(
    lab: Lab, namespace: str, crowd: None, kubeconfig: Path
) -> None:
    turns = 0

    async def somebody_else() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(somebody_else())
    told_in_turn: Counter[int] = Counter()
    async with reflecting(kubeconfig, namespace) as found:
        found.store.subscribe(lambda _: told_in_turn.update([turns]))
        await found.reflector.wait_synced(60)
        assert len(found.names() - {OWN}) == MANY
    other.cancel()
    assert sum(told_in_turn.values()) == len(found.store)
    assert max(told_in_turn.values()) <= SLICE_ITEMS


async def stop(found: Reflected) -> None:
    found.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await found.task


async def test_it_can_be_stopped_before_it_began(namespace: str, kubeconfig: Path) -> None:
    async with reflecting(kubeconfig, namespace) as found:
        await stop(found)
        with pytest.raises(DeadlineExceeded):
            await found.reflector.wait_synced(0.1)


async def test_it_can_be_stopped_while_it_lists(lab: Lab, namespace: str, kubeconfig: Path) -> None:
    names = {f"n{number}" for number in range(200)}
    await create(lab, namespace, *names)
    async with reflecting(kubeconfig, namespace, page_size=10) as found:
        await found.until(lambda: found.counted("tenure_kube_lists_total", reason="start") == 1)
        await stop(found)
        assert not found.store.synced
        with pytest.raises(DeadlineExceeded):
            await found.reflector.wait_synced(0.1)


async def test_it_can_be_stopped_while_it_watches(lab: Lab, namespace: str, kubeconfig: Path) -> None:
    async with reflecting(kubeconfig, namespace) as found:
        await found.reflector.wait_synced(30)
        await create(lab, namespace, "x")
        await found.until(lambda: "x" in found.names())
        await stop(found)
        await create(lab, namespace, "y")
        assert "y" not in found.names()
