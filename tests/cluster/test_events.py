"""Events as the API server keeps them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from service.kube.client import KubeClient
from service.kube.events import REPEAT_AFTER_S, EventRecorder, ObjectRef
from service.kube.metrics import Emitted, KubeMetrics
from service.kube.resources import EVENTS
from service.metrics import MetricSet
from service.settings import KubeSettings
from tests.cluster.waiting import until
from tests.lab import Lab
from tests.lab.api import Call


class Recording:
    """A recorder whose clock the test moves."""

    def __init__(self, client: KubeClient) -> None:
        self.now = 0.0
        self.metrics = KubeMetrics(MetricSet())
        self.recorder = EventRecorder(
            client, component="tenure.dev/test", identity="me", metrics=self.metrics, clock=lambda: self.now
        )

    def count(self, result: Emitted) -> float:
        value: float = self.metrics.emitted.labels(result)._value.get()
        return value


@pytest.fixture
async def recording(lab: Lab) -> AsyncIterator[Recording]:
    file: Path = await asyncio.to_thread(lambda: lab.kubeconfig)
    metrics = KubeMetrics(MetricSet())
    client = await KubeClient.connect(KubeSettings(kubeconfig=file), metrics=metrics)
    recording = Recording(client)
    task = asyncio.create_task(recording.recorder.run())
    yield recording
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    await client.close()


async def events(lab: Lab, namespace: str) -> list[dict[str, Any]]:
    found = await asyncio.to_thread(lab.api.ok, Call("GET", EVENTS.path(namespace)))
    return [event for event in found["items"] if event["reportingController"] == "tenure.dev/test"]


async def test_a_repeated_event_becomes_a_series_of_one_object(
    lab: Lab, namespace: str, recording: Recording
) -> None:
    pod = ObjectRef("v1", "Pod", "x", namespace, "some-uid")
    recording.recorder.emit(pod, reason="CardLost", message="card 0 is gone", type_="Warning")
    await until(lambda: recording.count(Emitted.WRITTEN) == 1)
    for _ in range(5):
        recording.recorder.emit(pod, reason="CardLost", message="card 0 is gone", type_="Warning")
    recording.now += REPEAT_AFTER_S
    recording.recorder.emit(pod, reason="CardLost", message="card 0 is gone", type_="Warning")
    await until(lambda: recording.count(Emitted.WRITTEN) == 2)
    (event,) = await events(lab, namespace)
    assert event["series"]["count"] == 7
    assert (event["reason"], event["note"], event["type"]) == ("CardLost", "card 0 is gone", "Warning")
    assert event["regarding"]["uid"] == "some-uid"


async def test_an_event_that_the_server_forgot_begins_anew(
    lab: Lab, namespace: str, recording: Recording
) -> None:
    pod = ObjectRef("v1", "Pod", "x", namespace)
    recording.recorder.emit(pod, reason="CardLost", message="m")
    await until(lambda: recording.count(Emitted.WRITTEN) == 1)
    await asyncio.to_thread(lab.api.ok, Call("DELETE", EVENTS.path(namespace)))
    recording.now += REPEAT_AFTER_S
    recording.recorder.emit(pod, reason="CardLost", message="m")
    await until(lambda: recording.count(Emitted.WRITTEN) == 2)
    assert len(await events(lab, namespace)) == 1


async def test_an_event_about_a_cluster_scoped_object_is_kept_in_default(
    lab: Lab, recording: Recording
) -> None:
    server = ObjectRef("tenure.dev/v1alpha1", "RemoteServer", "n" * 253, uid="u")
    recording.recorder.emit(server, reason="ServerLost", message="m" * 3000)
    await until(lambda: recording.count(Emitted.WRITTEN) == 1)
    assert any(event["reason"] == "ServerLost" for event in await events(lab, "default"))


async def test_what_the_server_refuses_is_counted_and_the_next_is_written(
    lab: Lab, namespace: str, recording: Recording
) -> None:
    recording.recorder.emit(ObjectRef("v1", "Pod", "x", "no-such-namespace"), reason="Lost", message="m")
    recording.recorder.emit(ObjectRef("v1", "Pod", "x", namespace), reason="Lost", message="m")
    await until(lambda: recording.count(Emitted.WRITTEN) == 1)
    assert recording.count(Emitted.FAILED) == 1
