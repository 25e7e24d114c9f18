import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from io import BytesIO
from typing import Any

import pytest
from aiohttp import ClientSession, web
from structlog.testing import capture_logs

from service.metrics import MetricSet
from service.settings import Settings, WebhookSettings
from tests.unit.admission.pods import admission, asking, body, pod
from webhook.admission import handler
from webhook.admission.handler import MAX_BODY_BYTES, PATH, admission_routes, seconds

JSON = {"Content-Type": "application/json"}
Post = Callable[..., Awaitable[tuple[int, str]]]


class Served:
    def __init__(self, url: str, session: ClientSession, metrics: MetricSet) -> None:
        self.url, self.session, self.metrics = url, session, metrics

    async def post(
        self, data: Any, headers: dict[str, str] | None = None, query: str = ""
    ) -> tuple[int, str]:
        async with self.session.post(self.url + query, data=data, headers=headers or JSON) as answer:
            return answer.status, await answer.text()

    def count(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    metrics = MetricSet()
    app = web.Application()
    app.add_routes(admission_routes(Settings(webhook=WebhookSettings(deadline_s=0.5)), metrics))
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with ClientSession() as session:
        yield Served(f"http://127.0.0.1:{runner.addresses[0][1]}{PATH}", session, metrics)
    await runner.cleanup()


async def test_a_decision_is_http_200_in_the_same_version_and_with_the_same_uid(served: Served) -> None:
    for obj, allowed in ((pod(), True), (asking(), True), (asking(nodeName="n"), False)):
        status, text = await served.post(body(obj, uid='u-"1"'))
        answer = json.loads(text)
        assert status == 200
        assert (answer["apiVersion"], answer["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
        assert (answer["response"]["uid"], answer["response"]["allowed"]) == ('u-"1"', allowed)
        assert ("patch" in answer["response"]) == (obj is not None and "patchType" in answer["response"])
    assert served.count("tenure_admission_requests_total", outcome="patched") == 1
    assert served.count("tenure_admission_requests_total", outcome="denied") == 1
    assert served.count("tenure_admission_refusals_total", reason="node_name") == 1
    assert served.count("tenure_admission_duration_seconds_count") == 3


def wrong(**fields: Any) -> bytes:
    return json.dumps(admission(pod()) | fields).encode()


DEEP = b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","x":' + b"[" * 200_000


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "AdmissionReview"),
        (b"null", "AdmissionReview"),
        (b"{}", "admission.k8s.io/v1"),
        (body(pod())[:-20], "truncated"),
        (wrong(apiVersion="admission.k8s.io/v1beta1"), "send admission.k8s.io/v1"),
        (wrong(apiVersion="admission.k8s.io/v9"), "send admission.k8s.io/v1"),
        (wrong(kind="Pod"), "AdmissionReview"),
        (wrong(request=None), "uid"),
        (body(pod(), uid=""), "uid"),
        (body(pod(), uid=7), "request.uid"),
        (body([1]), "request.object"),
        (body(pod(annotations={"a": 1})), "annotations"),
        (body(pod(annotations=["a"])), "annotations"),
        (body(pod()).replace(b'"CREATE"', b'"\xff\xfe"'), "AdmissionReview"),
        (DEEP, "AdmissionReview"),
        (body(pod()) + b"{}", "AdmissionReview"),
    ],
    ids=range(16),
)
async def test_a_call_that_cannot_be_understood_is_http_400_with_a_sentence(
    served: Served, data: bytes, said: str
) -> None:
    status, text = await served.post(data)
    assert (status, "Traceback" in text) == (400, False)
    assert said in text
    assert served.count("tenure_admission_requests_total", outcome="bad_call") == 1


async def test_of_duplicate_keys_the_last_one_counts(served: Served) -> None:
    twice = body(pod()).replace(b'"operation"', b'"uid": "last", "operation"')
    _, text = await served.post(twice)
    assert json.loads(text)["response"]["uid"] == "last"


async def test_another_content_type_is_http_415(served: Served) -> None:
    for kind in ("text/plain", "application/yaml", "application/jsonx", ""):
        status, _ = await served.post(body(pod()), {"Content-Type": kind})
        assert status == 415
    status, _ = await served.post(body(pod()), {"Content-Type": "Application/JSON; charset=utf-8"})
    assert status == 200


async def chunks(size: int) -> AsyncIterator[bytes]:
    for _ in range(size // 65536 + 1):
        yield b" " * 65536


async def test_a_body_up_to_seven_mib_is_read_and_a_larger_one_is_http_413(served: Served) -> None:
    padding = b" " * (MAX_BODY_BYTES - len(body(pod())))
    assert (await served.post(BytesIO(body(pod()) + padding)))[0] == 200
    assert (await served.post(BytesIO(body(pod()) + padding + b" ")))[0] == 413
    assert (await served.post(chunks(MAX_BODY_BYTES)))[0] == 413
    assert served.count("tenure_admission_requests_total", outcome="too_large") == 2


async def test_a_body_that_says_it_is_too_large_is_not_waited_for(served: Served) -> None:
    writer = await send_raw(served, f"Content-Length: {MAX_BODY_BYTES + 1}", b"{")
    assert served.count("tenure_admission_requests_total", outcome="too_large") == 1
    writer.close()


async def test_a_small_body_that_unpacks_to_a_large_one_is_http_413(served: Served) -> None:
    packed = gzip.compress(body(pod()) + b" " * MAX_BODY_BYTES)
    status, _ = await served.post(packed, JSON | {"Content-Encoding": "gzip"})
    assert status == 413
    small = gzip.compress(body(pod()))
    assert (await served.post(small, JSON | {"Content-Encoding": "gzip"}))[0] == 200


async def test_only_post_is_served(served: Served) -> None:
    async with served.session.get(served.url) as answer:
        assert answer.status == 405


async def slow() -> AsyncIterator[bytes]:
    yield body(pod())[:100]
    await asyncio.sleep(5)
    yield body(pod())[100:]


@pytest.mark.parametrize("query", ["", "?timeout=250ms", "?timeout=100ms", "?timeout=soon"])
async def test_a_body_that_does_not_come_is_http_503_at_the_deadline(served: Served, query: str) -> None:
    status, text = await served.post(slow(), query=query)
    assert status == 503
    assert "deadline" in text
    assert served.count("tenure_admission_requests_total", outcome="timed_out") == 1
    assert served.count("tenure_admission_in_flight") == 0


async def test_a_fault_of_ours_is_http_500_without_a_traceback(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise KeyError("secret detail")

    monkeypatch.setattr(handler, "decide", broken)
    with capture_logs() as events:
        status, text = await served.post(body(pod()))
    assert (status, "secret" in text) == (500, False)
    assert [event["event"] for event in events] == ["admission failed"]
    assert served.count("tenure_admission_requests_total", outcome="failed") == 1


async def send_raw(served: Served, head: str, payload: bytes) -> asyncio.StreamWriter:
    host, port = served.url.split("/")[2].split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    lines = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{head}\r\n\r\n"
    writer.write(lines.encode() + payload)
    await writer.drain()
    await asyncio.sleep(0.1)
    return writer


async def test_a_caller_that_hangs_up_is_no_fault_of_ours(served: Served) -> None:
    writer = await send_raw(served, "Content-Length: 99", b"{")
    assert served.count("tenure_admission_in_flight") == 1
    writer.transport.abort()
    await asyncio.sleep(0.1)
    assert served.count("tenure_admission_requests_total", outcome="gone") == 1
    assert served.count("tenure_admission_in_flight") == 0


async def test_a_body_that_is_not_encoded_as_it_says_is_a_bad_call(served: Served) -> None:
    writer = await send_raw(served, "Content-Length: 9\r\nContent-Encoding: gzip", b"123456789")
    assert served.count("tenure_admission_requests_total", outcome="bad_call") == 1
    writer.close()


@pytest.mark.parametrize(
    ("text", "expected"),
    [("5s", 5.0), ("1m30s", 90.0), ("250ms", 0.25), ("1.5s", 1.5), ("", None), ("5", None), ("-5s", None),
     ("5s!", None), ("1h", None)],
)  # fmt: skip
def test_go_durations_are_read(text: str, expected: float | None) -> None:
    assert seconds(text) == expected
