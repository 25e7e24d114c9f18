"""Whether the guard stands, as a server sees it on the real API server: every way in which it can be weaker."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from service.kube.client import KubeClient
from service.kube.metrics import KubeMetrics
from service.metrics import MetricSet
from service.settings import KubeSettings
from tests.cluster import admission_manifests as manifests
from tests.cluster.waiting import until
from tests.lab import Lab
from tests.lab.api import Call
from tests.unit.admission.guard_table import SERVER
from webhook import guard
from webhook.guard import GuardWatch, Policy

ADMISSION = "/apis/admissionregistration.k8s.io/v1"
POLICY = f"{ADMISSION}/validatingadmissionpolicies/{Policy.GATE}"
BINDING = f"{ADMISSION}/validatingadmissionpolicybindings/{Policy.GATE}"
MERGE = "application/merge-patch+json"
SOME = {"namespaceSelector": {"matchLabels": {"guarded": "yes"}}}


@pytest.fixture
def guarded(lab: Lab) -> Iterator[Lab]:
    """The lab with the chart's guard; what a test changes in it goes with the test."""
    objects = manifests.guard([SERVER])
    lab.apply(*objects)
    yield lab
    for policy in Policy:
        for kind in ("validatingadmissionpolicybindings", "validatingadmissionpolicies"):
            lab.api.request(Call("DELETE", f"{ADMISSION}/{kind}/{policy}"))


@pytest.fixture
async def watch(guarded: Lab, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[GuardWatch, MetricSet]]:
    monkeypatch.setattr(guard, "LOOK_EVERY_S", 0.1)
    metrics = MetricSet()
    file = await asyncio.to_thread(lambda: guarded.kubeconfig)
    client = await KubeClient.connect(KubeSettings(kubeconfig=file), metrics=KubeMetrics(metrics))
    found = GuardWatch(client, metrics)
    task = asyncio.create_task(found.run())
    yield found, metrics
    task.cancel()
    await asyncio.wait({task})
    await client.close()


async def test_both_policies_of_the_chart_are_seen_in_force(watch: tuple[GuardWatch, MetricSet]) -> None:
    found, metrics = watch
    assert {standing.in_force for standing in found.standings.values()} <= {None, True}
    await until(lambda: all(standing.in_force for standing in found.standings.values()))
    for policy in Policy:
        labels = {"policy": policy.value}
        assert metrics.registry.get_sample_value("tenure_guard_policy_in_force", labels) == 1


@pytest.mark.parametrize(
    ("path", "change", "why"),
    [
        (POLICY, {"spec": {"failurePolicy": "Ignore"}}, "its failurePolicy is not Fail"),
        (BINDING, {"spec": {"validationActions": ["Warn"]}}, "its binding does not deny"),
        (
            BINDING,
            {"spec": {"matchResources": SOME}},
            "its binding leaves some objects out (matchResources)",
        ),
        (BINDING, None, "its binding is missing"),
        (POLICY, None, "the policy is missing"),
    ],
    ids=["fails-open", "only-warns", "some-namespaces", "no-binding", "no-policy"],
)
async def test_whatever_makes_the_guard_weaker_is_seen_and_named(
    path: str, change: dict[str, Any] | None, why: str, guarded: Lab, watch: tuple[GuardWatch, MetricSet]
) -> None:
    found, metrics = watch
    await until(lambda: all(standing.in_force for standing in found.standings.values()))
    call = Call("DELETE", path) if change is None else Call("PATCH", path, change, MERGE)
    await asyncio.to_thread(guarded.api.ok, call)
    await until(lambda: found.standings[Policy.GATE].in_force is False)
    assert found.standings[Policy.GATE].why == why
    assert found.standings[Policy.DECISION_KEYS].in_force
    labels = {"policy": Policy.GATE.value}
    assert metrics.registry.get_sample_value("tenure_guard_policy_in_force", labels) == 0


async def test_a_binding_with_empty_selectors_leaves_nothing_out(
    guarded: Lab, watch: tuple[GuardWatch, MetricSet]
) -> None:
    found, _ = watch
    change: dict[str, Any] = {"spec": {"matchResources": {"namespaceSelector": {}, "objectSelector": {}}}}
    written = await asyncio.to_thread(guarded.api.ok, Call("PATCH", BINDING, change, MERGE))
    assert "matchResources" in written["spec"]
    await asyncio.sleep(0.5)
    await until(lambda: all(standing.in_force for standing in found.standings.values()))


async def test_nobody_knows_while_the_api_server_does_not_answer(
    lab: Lab, watch: tuple[GuardWatch, MetricSet], monkeypatch: pytest.MonkeyPatch
) -> None:
    found, metrics = watch
    await until(lambda: all(standing.in_force for standing in found.standings.values()))
    stop: Callable[[], None] = lambda: lab.components.stop("kube-apiserver")  # noqa: E731
    await asyncio.to_thread(stop)
    try:
        await until(lambda: found.standings[Policy.GATE].in_force is None, seconds=30)
        value = metrics.registry.get_sample_value(
            "tenure_guard_policy_in_force", {"policy": Policy.GATE.value}
        )
        assert value != value  # NaN  # noqa: PLR0124
    finally:
        await asyncio.to_thread(lab.components.start, "kube-apiserver")
