"""Ready means that our own process answers, not that somebody does."""

import ssl
import sys
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.lab import components as module
from tests.lab.components import Components
from tests.lab.errors import LabError
from tests.lab.ports import free_ports
from tests.lab.process import Health, Processes, Program

ENV = {"PATH": "/usr/bin:/bin"}
SERVE = """
import sys
from http.server import HTTPServer, BaseHTTPRequestHandler
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(int(sys.argv[2])); self.end_headers()
HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


class Fine(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def components(tmp_path: Path) -> Iterator[Components]:
    processes = Processes(records=tmp_path / "records", logs=tmp_path / "logs")
    made = Components(processes, context=ssl.create_default_context, progress=lambda _: nullcontext())
    yield made
    made.kill_all()


@pytest.fixture
def foreign_port() -> Iterator[int]:
    """A port on which somebody else's server says that all is fine."""
    with HTTPServer(("127.0.0.1", 0), Fine) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def program(*argv: str, port: int) -> Program:
    return Program(name="p", argv=argv, env=ENV, health=Health(port=port, path="/", tls=False))


def server(port: int, status: int) -> Program:
    return program(sys.executable, "-c", SERVE, str(port), str(status), port=port)


def test_a_program_is_ready_when_it_answers(components: Components) -> None:
    (port,) = free_ports(1)
    components.run(server(port, 200))
    assert components.states()["p"].startswith("running")


def test_the_answer_of_another_process_is_not_ours(
    components: Components, foreign_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "READY_SECONDS", 0.5)
    with pytest.raises(LabError, match="p was not ready in 0 s"):
        components.run(program("sleep", "100", port=foreign_port))


def test_an_answer_that_is_no_success_is_not_ready(
    components: Components, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "READY_SECONDS", 2.0)
    (port,) = free_ports(1)
    with pytest.raises(LabError, match="p was not ready"):
        components.run(server(port, 503))


def test_a_program_that_ends_is_reported_with_what_it_said(components: Components) -> None:
    with pytest.raises(LabError, match=r"p ended while it started;(?s:.*)out of luck"):
        components.run(program("sh", "-c", "echo out of luck; exit 1", port=1))


def test_states_tell_stopped_from_dead(components: Components) -> None:
    (port,) = free_ports(1)
    components.run(server(port, 200))
    components.kill("p")
    assert components.states() == {"p": "stopped"}
    components.start("p")
    components.restart("p")
    assert components.states()["p"].startswith("running")


def test_an_unknown_component_is_answered_with_the_known_ones(components: Components) -> None:
    with pytest.raises(LabError, match="there is no q here; there are: nothing"):
        components.start("q")
