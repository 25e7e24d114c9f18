import asyncio
import contextlib
import io
import json
import socket
from collections.abc import AsyncIterator, Callable

import pytest
from aiohttp import ClientSession, web

from service.http import Address, HttpMetrics, Listener, ListenError, Name
from service.lifecycle import Lifecycle, Phase
from service.metrics import MetricSet

MAX_BODY = 1000


@pytest.fixture
def metrics() -> MetricSet:
    return MetricSet()


@pytest.fixture
def lifecycle(metrics: MetricSet) -> Lifecycle:
    lifecycle = Lifecycle(metrics, drain_s=12.0)
    lifecycle.phase = Phase.READY
    return lifecycle


@pytest.fixture
def make(lifecycle: Lifecycle, metrics: MetricSet) -> Callable[..., Listener]:
    counted = HttpMetrics(metrics)

    def make(name: Name = Name.EXTENDER, host: str = "127.0.0.1", port: int = 0) -> Listener:
        address = Address(host, port, f"http.{name.value}")
        return Listener(name, address, lifecycle=lifecycle, metrics=counted, max_body=MAX_BODY)

    return make


class Slow:
    """A handler that answers when it is told to."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.go = asyncio.Event()

    async def handle(self, _: web.Request) -> web.Response:
        self.entered.set()
        await self.go.wait()
        return web.Response(text="done")


async def echo(request: web.Request) -> web.Response:
    return web.Response(body=await request.read())


async def refuses(_: web.Request) -> web.Response:
    raise web.HTTPConflict(text="no")


async def breaks(_: web.Request) -> web.Response:
    raise RuntimeError("bug")


@pytest.fixture
def slow() -> Slow:
    return Slow()


@pytest.fixture(params=[Name.WEBHOOK, Name.EXTENDER])
async def listener(
    request: pytest.FixtureRequest, make: Callable[..., Listener], slow: Slow
) -> AsyncIterator[Listener]:
    listener = make(request.param)
    await listener.open(
        [
            web.post("/echo", echo),
            web.get("/refuses", refuses),
            web.get("/breaks", breaks),
            web.get("/slow", slow.handle),
        ]
    )
    yield listener
    await listener.close()


@pytest.fixture
async def client(listener: Listener) -> AsyncIterator[ClientSession]:
    async with ClientSession(f"http://127.0.0.1:{listener.port}") as session:
        yield session


def sample(metrics: MetricSet, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


async def test_port_0_takes_a_free_port_and_tells_it(client: ClientSession, listener: Listener) -> None:
    assert listener.port > 0
    async with client.post("/echo", data=b"hi") as answer:
        assert await answer.read() == b"hi"


async def test_a_body_above_the_limit_is_refused(client: ClientSession) -> None:
    async with client.post("/echo", data=b"x" * MAX_BODY) as answer:
        assert answer.status == 200
    async with client.post("/echo", data=b"x" * (MAX_BODY + 1)) as answer:
        assert answer.status == 413


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/echo", 200),
        ("GET", "/refuses", 409),
        ("GET", "/nothing", 404),
        ("GET", "/echo", 404),
        ("GET", "/breaks", 500),
    ],
)
async def test_while_draining_every_answer_closes_its_connection(
    client: ClientSession, lifecycle: Lifecycle, method: str, path: str, status: int
) -> None:
    async with client.request(method, path) as answer:
        assert answer.status == status
        assert ("Connection" in answer.headers) == (status == 500)  # an error of ours closes it anyway
    lifecycle.request_stop("test")
    async with client.request(method, path) as answer:
        assert answer.status == status
        assert answer.headers["Connection"] == "close"


async def test_closing_finishes_what_is_in_flight_and_refuses_the_next(
    client: ClientSession, listener: Listener, slow: Slow
) -> None:
    asked = asyncio.create_task(client.get("/slow"))
    await slow.entered.wait()
    closing = asyncio.create_task(listener.close())
    await asyncio.sleep(0.05)
    assert not closing.done()
    slow.go.set()
    answer = await asked
    assert await answer.text() == "done"
    await closing
    with pytest.raises(OSError, match="onnect"):
        await client.get("/slow")


async def test_a_listener_closes_twice_and_before_it_opened(make: Callable[..., Listener]) -> None:
    listener = make()
    await listener.close()
    await listener.open([])
    await listener.close()
    await listener.close()


@pytest.mark.parametrize("name", list(Name))
async def test_an_occupied_port_is_one_sentence_with_port_and_setting(
    make: Callable[..., Listener], name: Name
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        listener = make(name, port=port)
        with pytest.raises(ListenError) as caught:
            await listener.open([])
        await listener.close()
    sentence = str(caught.value)
    assert f"port {port} is in use" in sentence
    assert f"http.{name.value}_port (TENURE_HTTP__{name.value.upper()}_PORT)" in sentence
    assert "\n" not in sentence


async def test_a_reserved_port_is_known_but_accepts_nobody_yet(make: Callable[..., Listener]) -> None:
    listener = make()
    await listener.reserve()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", listener.port)
    await listener.open([])
    _, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    writer.close()
    await listener.close()


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
async def test_an_address_of_another_machine_is_one_sentence_with_the_setting(
    make: Callable[..., Listener], host: str
) -> None:
    listener = make(Name.OPS, host=host)
    with pytest.raises(ListenError, match=r"http\.ops_host") as caught:
        await listener.open([])
    await listener.close()
    assert host in str(caught.value)


async def test_answers_are_counted_by_closed_labels(
    make: Callable[..., Listener], metrics: MetricSet
) -> None:
    listener = make(Name.EXTENDER)
    await listener.open([web.post("/echo", echo), web.get("/refuses", refuses), web.get("/breaks", breaks)])
    async with ClientSession(f"http://127.0.0.1:{listener.port}") as client:
        for method, path in [("POST", "/echo"), ("GET", "/refuses"), ("GET", "/breaks"), ("GET", "/breaks")]:
            await (await client.request(method, path)).read()
    await listener.close()
    counts = {
        kind: sample(metrics, "tenure_http_requests_total", listener="extender", status=kind)
        for kind in ("2xx", "3xx", "4xx", "5xx")
    }
    assert counts == {"2xx": 1, "3xx": 0, "4xx": 1, "5xx": 2}
    assert sample(metrics, "tenure_http_request_seconds_count", listener="extender") == 4


async def test_what_is_not_http_is_counted_and_not_logged(
    make: Callable[..., Listener], metrics: MetricSet, log_stream: io.StringIO
) -> None:
    listener = make(Name.OPS)
    await listener.open([])
    log_stream.truncate(0)
    for rubbish in (
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n",
        b"GET / HTTP/9.9 9\r\n\r\n",
        b"\x00" * 200_000,
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        with contextlib.suppress(ConnectionError):
            writer.write(rubbish)
            await reader.read()
        writer.close()
    await listener.close()
    assert (sample(metrics, "tenure_http_malformed_requests_total", listener="ops") or 0) == 3
    assert "Traceback" not in log_stream.getvalue()
    assert log_stream.getvalue().strip("\0") == ""


async def test_a_bug_in_a_handler_is_one_line_with_its_traceback(
    make: Callable[..., Listener], log_stream: io.StringIO
) -> None:
    listener = make(Name.WEBHOOK)
    await listener.open([web.get("/breaks", breaks)])
    async with ClientSession(f"http://127.0.0.1:{listener.port}") as client, client.get("/breaks") as answer:
        assert answer.status == 500
        assert "bug" not in await answer.text()
    await listener.close()
    (event,) = [e for e in map(json.loads, log_stream.getvalue().splitlines()) if e["level"] == "error"]
    assert (event["event"], event["listener"]) == ("request failed", "webhook")
    assert "RuntimeError: bug" in event["traceback"]
