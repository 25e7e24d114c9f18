"""Requests to the lab's own servers: synchronous, verified against the lab's authority."""

import http.client
import json
import ssl
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from tests.lab.credentials import Pair
from tests.lab.errors import LabError

REQUEST_SECONDS = 30.0  # Seconds, not milliseconds, pass on a machine that does much else.
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
