"""`tenure serve` as a child of the test, which so sees its exit code; and callers that keep it busy."""

import base64
import contextlib
import http.client
import json
import secrets
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from service import names
from tests.lab import Lab
from tests.lab.product import Product, Replica

HOST = "127.0.0.1"
START_S = 120.0
_WEBHOOK = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/tenure"


def pod(name: str, **meta: Any) -> dict[str, Any]:
    """A pod that asks for one card."""
    limits = {names.REMOTE_GPU: "1"}
    container = {"name": "main", "image": "lab.local/busybox:1", "resources": {"limits": limits}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, **meta},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 0},
    }


REVIEW = json.dumps(
    {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "6f1f0f0e-0000-4000-8000-000000000000",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "operation": "CREATE",
            "namespace": "team-a",
            "object": pod("train-0"),
        },
    }
).encode()
FILTER = json.dumps({"Pod": pod("train-0", uid="none"), "NodeNames": ["a"]}).encode()


@dataclass(slots=True)
class Server:
    """One running server."""

    lab: Lab
    replica: Replica
    process: "subprocess.Popen[bytes]"
    log: Path

    def get(self, path: str) -> tuple[int, str]:
        """Status and text of an answer of the ops listener."""
        with contextlib.closing(http.client.HTTPConnection(HOST, self.replica.ops, timeout=10)) as connection:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

    def until(self, path: str, accept: Callable[[int, str], bool], seconds: float = START_S) -> None:
        """Ask until the answer is as wanted."""
        deadline = time.monotonic() + seconds
        seen = (0, "no answer")
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                seen = self.get(path)
            if accept(*seen):
                return
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.05)
        raise AssertionError((path, seen, self.log.read_text()[-3000:]))

    def until_ready(self) -> None:
        self.until("/readyz", lambda status, _: status == 200)

    def callers(self, *, connections: int = 2) -> "Callers":
        """Keep webhook and extender busy, each on so many kept-alive connections."""
        found = self.lab.wait_for(_WEBHOOK)["webhooks"][0]["clientConfig"]["caBundle"]
        trust = ssl.create_default_context(cadata=base64.b64decode(found).decode())
        targets = [
            Target(self.replica.webhook, "/admission/pods", REVIEW, trust),
            Target(self.replica.extender, "/scheduler/filter", FILTER),
        ]
        return Callers(targets * connections)

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def assert_log_has_no_fault(self) -> None:
        assert "Traceback" not in self.log.read_text()
        assert [event for event in self.events() if event["level"] in {"error", "critical"}] == []


@contextlib.contextmanager
def serving(lab: Lab, folder: Path, *, register: bool = True, **settings: str) -> Iterator[Server]:
    """Run a server until it is ready; the API server calls its webhook if `register`. Killed at the end."""
    product = Product(lab)
    replica = product.prepare(f"tenure-{secrets.token_hex(2)}")
    if register:
        product.register_webhook(replica)
    program = product.program(replica, **settings)
    log = folder / f"{replica.name}.log"
    with log.open("wb") as sink:
        process = subprocess.Popen(program.argv, env=dict(program.env), stdout=sink, stderr=sink)
    server = Server(lab, replica, process, log)
    try:
        server.until_ready()
        yield server
    finally:
        process.kill()
        process.wait()


@dataclass(frozen=True, slots=True)
class Target:
    """What to POST where."""

    port: int
    path: str
    body: bytes
    trust: ssl.SSLContext | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """One call's end: `status` 0 when there was no answer. `at` on the monotonic clock, when the call was sent."""

    at: float
    path: str
    status: int
    closes: bool
    error: str = ""


@dataclass(slots=True)
class Callers:
    """Threads that each keep one connection busy, as the API server does, and note every answer."""

    targets: Sequence[Target]
    answers: list[Answer] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._threads = [threading.Thread(target=self._call, args=(target,)) for target in self.targets]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def failures(self) -> list[Answer]:
        return [answer for answer in self.answers if answer.status != 200]

    def since(self, moment: float) -> list[Answer]:
        """Answers to calls sent after `moment`."""
        return [answer for answer in self.answers if answer.at > moment]

    def _call(self, target: Target) -> None:
        connection = _connection(target)
        while not self._stop.is_set():
            at = time.monotonic()
            try:
                connection.request("POST", target.path, target.body, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                answer.read()
                closes = answer.getheader("Connection") == "close"
                self.answers.append(Answer(at, target.path, answer.status, closes))
            except (OSError, http.client.HTTPException) as error:
                self.answers.append(Answer(at, target.path, 0, closes=True, error=repr(error)))
                connection.close()
            time.sleep(0.005)  # the machine has other things to do than to be called
        connection.close()


def _connection(target: Target) -> http.client.HTTPConnection:
    if target.trust is None:
        return http.client.HTTPConnection(HOST, target.port, timeout=10)
    return http.client.HTTPSConnection(HOST, target.port, timeout=10, context=target.trust)
