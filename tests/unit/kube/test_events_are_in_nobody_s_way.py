from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from service.kube.client import KubeClient
from service.kube.events import BURST, MAX_WAITING, EventRecorder, ObjectRef
from service.kube.metrics import Emitted, KubeMetrics
from service.metrics import MetricSet
from tests.unit.kube.peer import client_of, kubeconfig

POD = ObjectRef("v1", "Pod", "x", "a", "uid")


class Hand:
    """A clock that somebody moves by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Recorder(EventRecorder):
    """A recorder that nobody writes out."""

    def __init__(self, client: KubeClient, clock: Hand) -> None:
        self.metrics = KubeMetrics(MetricSet())
        super().__init__(client, component="test", identity="me", metrics=self.metrics, clock=clock)

    @property
    def waiting(self) -> int:
        return self._waiting.qsize()

    @property
    def dropped(self) -> float:
        value: float = self.metrics.emitted.labels(Emitted.DROPPED)._value.get()
        return value


@pytest.fixture
def clock() -> Hand:
    return Hand()


@pytest.fixture
async def recorder(tmp_path: Path, clock: Hand) -> AsyncIterator[Recorder]:
    async with client_of(kubeconfig(tmp_path, "http://127.0.0.1:1")) as client:
        yield Recorder(client, clock)


async def test_an_event_that_waits_already_is_not_queued_again(recorder: Recorder) -> None:
    for _ in range(10):
        recorder.emit(POD, reason="Held", message="a card")
    assert (recorder.waiting, recorder.dropped) == (1, 0)


async def test_other_objects_reasons_and_messages_are_other_events(recorder: Recorder) -> None:
    recorder.emit(POD, reason="Held", message="a card")
    recorder.emit(POD, reason="Held", message="another card")
    recorder.emit(POD, reason="Freed", message="a card")
    recorder.emit(ObjectRef("v1", "Pod", "y", "a", "uid"), reason="Held", message="a card")
    recorder.emit(POD, reason="Held", message="a card", type_="Warning")
    assert recorder.waiting == 5


async def test_one_object_cannot_crowd_out_the_others(recorder: Recorder, clock: Hand) -> None:
    for number in range(1000):
        recorder.emit(POD, reason="Held", message=str(number))
    assert (recorder.waiting, recorder.dropped) == (BURST, 1000 - BURST)
    recorder.emit(ObjectRef("v1", "Pod", "y", "a"), reason="Held", message="a card")
    assert recorder.waiting == BURST + 1
    clock.now += 300.0
    recorder.emit(POD, reason="Held", message="one more")
    assert recorder.waiting == BURST + 2


async def test_what_nobody_takes_is_dropped_and_counted(recorder: Recorder) -> None:
    for number in range(MAX_WAITING + 7):
        recorder.emit(ObjectRef("v1", "Pod", f"x{number}", "a"), reason="Held", message="a card")
    assert (recorder.waiting, recorder.dropped) == (MAX_WAITING, 7)


async def test_no_message_can_make_emitting_fail(recorder: Recorder) -> None:
    recorder.emit(POD, reason="Held", message="\udcff" + "\u20ac" * 5000)
    (said, _) = recorder._waiting.get_nowait()
    assert len(said.message.encode()) <= 1024


async def test_memory_is_bounded_whatever_is_said(recorder: Recorder) -> None:
    for number in range(10_000):
        recorder.emit(ObjectRef("v1", "Pod", f"x{number}", "a"), reason="Held", message="a card")
    assert len(recorder._series._found) <= 4096
    assert len(recorder._budgets._found) <= 4096
