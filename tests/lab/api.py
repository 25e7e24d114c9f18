"""Requests to the lab's own servers: synchronous, verified against the lab's authority."""

import http.client
import json
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from tests.lab.credentials import Pair
from tests.lab.errors import LabError

REQUEST_SECONDS = 30.0  # Seconds, not milliseconds, pass on a machine that does much else.
# Polling slows down, because the list of a thousand nodes costs everybody 0.1 s each time.
_FIRST_POLL_SECONDS, _LAST_POLL_SECONDS, _POLL_GROWTH = 0.02, 1.0, 1.3
_BULK_CONNECTIONS = 8  # More only queue on the two cores that the API server shares.


class Answer(NamedTuple):
    status: int
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Call(NamedTuple):
    method: str
    path: str
    body: Mapping[str, Any] | None = None
    content_type: str = "application/json"


def client_context(authority: Path, pair: Pair) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority))
    context.load_cert_chain(pair.certificate, pair.key)
    return context


class Api:
    """One server of the lab, by its base URL. Safe for use by several threads."""

    def __init__(self, url: str, context: ssl.SSLContext) -> None:
        self._url = url
        self._context = context

    def request(self, call: Call, *, seconds: float = REQUEST_SECONDS) -> Answer:
        """One call on a connection of its own. Raises OSError or HTTPException when there is no answer."""
        connection = self._connect(seconds)
        try:
            return _exchange(connection, call)
        finally:
            connection.close()

    def ok(self, call: Call) -> Any:
        """The answer's JSON; LabError for every status that is not a success."""
        try:
            answer = self.request(call)
        except (OSError, http.client.HTTPException) as error:
            raise LabError(f"{call.method} {self._url}{call.path} got no answer: {error}") from error
        return _success(call, answer)

    def wait_for(self, path: str, *, accept: Callable[[Any], bool] = bool, seconds: float) -> Any:
        """The object at a path, as soon as it exists and `accept` says yes; LabError after that time."""
        pause, deadline = _FIRST_POLL_SECONDS, time.monotonic() + seconds
        found: object = "nothing"
        while time.monotonic() < deadline:
            with suppress(OSError, http.client.HTTPException):
                answer = self.request(Call("GET", path))
                found = answer.json() if answer.status == http.client.OK else answer
                if answer.status == http.client.OK and accept(found):
                    return found
            time.sleep(pause)
            pause = min(pause * _POLL_GROWTH, _LAST_POLL_SECONDS)
        raise LabError(f"{path} was not as wanted within {seconds:.0f} s; last seen: {str(found)[:2000]}")

    def all_ok(self, calls: Iterable[Call]) -> None:
        """Many calls on a few lasting connections, in any order."""

        def work(share: list[Call]) -> None:
            connection = self._connect(REQUEST_SECONDS)
            try:
                for call in share:
                    _success(call, _exchange(connection, call))
            finally:
                connection.close()

        everything = list(calls)
        shares = [everything[start::_BULK_CONNECTIONS] for start in range(_BULK_CONNECTIONS)]
        with ThreadPoolExecutor(_BULK_CONNECTIONS) as threads:
            list(threads.map(work, shares))

    def watch(self, path: str) -> Iterator[Any]:
        """The events of a watch as they come, until the API server ends it or nobody asks for more."""
        connection = self._connect(REQUEST_SECONDS)
        try:
            connection.request("GET", path, headers={"Accept": "application/json"})
            response = connection.getresponse()
            rest = b""
            # By hand: http.client's readline ends lines where chunks end.
            while piece := response.read1(1 << 16):
                *lines, rest = (rest + piece).split(b"\n")
                yield from map(json.loads, lines)
        finally:
            connection.close()

    def _connect(self, seconds: float) -> http.client.HTTPConnection:
        parts = urlsplit(self._url)
        assert parts.hostname is not None
        if parts.scheme == "http":
            return http.client.HTTPConnection(parts.hostname, parts.port, timeout=seconds)
        return http.client.HTTPSConnection(parts.hostname, parts.port, timeout=seconds, context=self._context)


def _exchange(connection: http.client.HTTPConnection, call: Call) -> Answer:
    body = None if call.body is None else json.dumps(call.body)
    headers = {"Accept": "application/json"}
    if body is not None:
        headers["Content-Type"] = call.content_type
    connection.request(call.method, call.path, body, headers)
    response = connection.getresponse()
    return Answer(response.status, response.read())


def _success(call: Call, answer: Answer) -> Any:
    if answer.status >= http.client.MULTIPLE_CHOICES:
        text = answer.body.decode(errors="replace")[:500]
        raise LabError(f"{call.method} {call.path} answered {answer.status}: {text}")
    return answer.json() if answer.body else None
