"""The real program as a process of its own: how it starts, what it says when it cannot, and how it ends."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

REPOSITORY = Path(__file__).parents[3]
START_S = 60.0
# An agent that looks at nothing on this machine and asks nobody.
IDLE_AGENT = {"TENURE_NODE__NAME": "here", "TENURE_REGIONS__BACKEND": "off", "AIRM_OCCUPANCY": "0"}

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        number: int = server.getsockname()[1]
        return number


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Path:
    """A valid one, for an API server that is not there."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
    path = tmp_path / "kubeconfig"
    path.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "lab",
                "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "me"}}],
                "clusters": [{"name": "lab", "cluster": {"server": url}}],
                "users": [{"name": "me", "user": {"token": "none"}}],
            }
        )
    )
    return path


@pytest.fixture
def environment(kubeconfig: Path, tmp_path: Path) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(REPOSITORY),
        "PYTHONWARNINGS": "error",
        "HOME": str(tmp_path),
        "KUBECONFIG": str(kubeconfig),
        "TENURE_HTTP__WEBHOOK_HOST": "127.0.0.1",
        "TENURE_HTTP__OPS_HOST": "127.0.0.1",
        "TENURE_HTTP__WEBHOOK_PORT": "0",
        "TENURE_HTTP__EXTENDER_PORT": "0",
        "TENURE_HTTP__OPS_PORT": "0",
        "TENURE_HTTP__DRAIN_S": "30",
    }


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "service", *arguments]


@pytest.fixture
def run(environment: dict[str, str]) -> Run:
    def run(*arguments: str, **changes: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            command(*arguments),
            env=environment | changes,
            capture_output=True,
            text=True,
            timeout=START_S,
            check=False,
        )

    return run


def refused(result: "subprocess.CompletedProcess[str]") -> list[str]:
    """The lines that a person reads after a wrong start."""
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
    return result.stderr.splitlines()


class Process:
    """A running program and its log."""

    def __init__(self, arguments: list[str], environment: dict[str, str], log: Path) -> None:
        self._log = log
        with log.open("wb") as sink:
            self._popen = subprocess.Popen(command(*arguments), env=environment, stdout=sink, stderr=sink)

    def events(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self._log.read_text().splitlines()]

    def wait_for_event(self, name: str) -> dict[str, object]:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            with contextlib.suppress(json.JSONDecodeError):  # the last line may be half written
                for event in self.events():
                    if event["event"] == name:
                        return event
            assert self._popen.poll() is None, self._log.read_text()
            time.sleep(0.05)
        raise AssertionError(self._log.read_text())

    def get(self, path: str) -> tuple[int, str, str]:
        """Status, Connection header and text."""
        port = self.wait_for_event("listening")["port"]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
                return answer.status, answer.headers["Connection"], answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.headers["Connection"], error.read().decode()

    def signal(self, number: signal.Signals) -> None:
        self._popen.send_signal(number)

    def wait(self, seconds: float = START_S) -> int:
        return self._popen.wait(seconds)

    def end(self) -> None:
        self._popen.kill()
        self._popen.wait()


@pytest.fixture
def start(environment: dict[str, str], tmp_path: Path) -> Iterator[Callable[..., Process]]:
    with contextlib.ExitStack() as stack:

        def start(*arguments: str, **changes: str) -> Process:
            process = Process([*arguments], environment | changes, tmp_path / "log")
            stack.callback(process.end)
            return process

        yield start


# A start that cannot be


def test_wrong_settings_are_one_line_each_and_exit_code_2(run: Run) -> None:
    lines = refused(run("serve", TENURE_HTTP__OPS_PORT="many", TENURE_LOG__LEVEL="loud"))
    assert len(lines) == 2
    assert any(line.startswith("tenure: http.ops_port (TENURE_HTTP__OPS_PORT): ") for line in lines)
    assert any(line.startswith("tenure: log.level (TENURE_LOG__LEVEL): ") for line in lines)


def test_an_occupied_port_is_one_line_with_port_and_setting(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        (line,) = refused(run("serve", TENURE_HTTP__WEBHOOK_PORT=port))
    assert f"port {port} is in use" in line
    assert "TENURE_HTTP__WEBHOOK_PORT" in line


def test_a_missing_kubeconfig_is_one_line_that_says_what_to_set(run: Run, tmp_path: Path) -> None:
    (line,) = refused(run("serve", KUBECONFIG=str(tmp_path / "nowhere")))
    assert "there is no kubeconfig" in line
    assert "KUBECONFIG" in line


# A life


def test_the_server_says_what_it_waits_for_while_there_is_no_api_server(
    start: Callable[..., Process],
) -> None:
    server = start("serve")
    status, _, text = server.get("/readyz")
    assert status == 503
    assert "pods synced: pods are not listed yet" in text
    assert "process: is starting" in text
    assert server.get("/livez")[0] == 200
    assert server.get("/metrics")[0] == 200
    status, _, text = server.get("/api/v1/servers")
    assert status == 503
    assert "not listed yet" in text
    server.signal(signal.SIGTERM)
    assert server.wait(10) == 0
    assert all("traceback" not in event for event in server.events())


def test_the_agent_drains_and_ends_with_exit_code_0(start: Callable[..., Process]) -> None:
    agent = start("node", **IDLE_AGENT, TENURE_HTTP__DRAIN_S="2")
    agent.wait_for_event("ready")
    assert agent.get("/readyz")[0] == 200
    agent.signal(signal.SIGTERM)
    agent.wait_for_event("stopping")
    began = time.monotonic()
    assert agent.get("/readyz")[:2] == (503, "close")
    assert agent.get("/livez")[:2] == (200, "close")
    assert agent.wait() == 0
    assert time.monotonic() - began > 1
    assert agent.events()[-1]["event"] == "stopped"


def test_a_second_signal_ends_the_drain(start: Callable[..., Process]) -> None:
    agent = start("node", **IDLE_AGENT, TENURE_HTTP__DRAIN_S="600")
    agent.wait_for_event("ready")
    agent.signal(signal.SIGTERM)
    agent.wait_for_event("stopping")
    agent.signal(signal.SIGINT)
    assert agent.wait(10) == 0
