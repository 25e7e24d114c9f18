"""The programs of a lab: started until they are ready, stopped, killed, started again."""

import http.client
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from ssl import SSLContext

from tests.lab.api import Api, Call
from tests.lab.controlplane import READY_SECONDS
from tests.lab.errors import LabError
from tests.lab.ports import listens
from tests.lab.process import STOP_SECONDS, Health, Processes, Program

Progress = Callable[[str], AbstractContextManager[object]]

_POLL_SECONDS = 0.05
_HEALTH_SECONDS = 2.0


class Components:
    """The programs of one lab by name. `context` gives the TLS identity that asks for their health."""

    def __init__(
        self, processes: Processes, *, context: Callable[[], SSLContext], progress: Progress
    ) -> None:
        self._processes = processes
        self._context = context
        self._progress = progress

    def states(self) -> dict[str, str]:
        """Every program: `running (pid N)`, `stopped`, or `dead` when it ended by itself."""
        return {name: self._state(name) for name in self._processes.names()}

    def run(self, *programs: Program) -> None:
        """Start programs side by side and return when all are ready."""
        for program in programs:
            self._processes.start(program)
        for program in programs:
            with self._progress(program.name):
                self._wait_ready(program)

    def pid(self, name: str) -> int:
        """The process of a running program."""
        record = self._processes.record(name)
        if record is None or record.identity is None:
            raise LabError(f"{name} does not run")
        return record.identity.pid

    def start(self, name: str) -> None:
        """Start a stopped or dead program as it was started before."""
        record = self._processes.record(name)
        if record is None:
            raise LabError(
                f"there is no {name} here; there are: {', '.join(self._processes.names()) or 'nothing'}"
            )
        self.run(record.program)

    def stop(self, name: str) -> None:
        """End it as an orderly shutdown does (SIGTERM)."""
        self._processes.stop(name, grace_seconds=STOP_SECONDS)

    def kill(self, name: str) -> None:
        """End it as a crash does (SIGKILL)."""
        self._processes.stop(name, grace_seconds=0)

    def restart(self, name: str) -> None:
        self.stop(name)
        self.start(name)

    def kill_all(self) -> None:
        for name in reversed(self._processes.names()):
            self.kill(name)

    def _state(self, name: str) -> str:
        record = self._processes.record(name)
        if record is None or record.identity is None:
            return "stopped"
        return f"running (pid {record.identity.pid})" if self._processes.alive(name) else "dead"

    def _wait_ready(self, program: Program) -> None:
        """Return when the very process that we started is ready, not when anybody answers on its port."""
        deadline = time.monotonic() + READY_SECONDS
        name = program.name
        while program.health is not None and not self._is_ready(name, program.health):
            if not self._processes.alive(name):
                raise LabError(f"{name} ended while it started; {self._processes.tail(name)}")
            if time.monotonic() > deadline:
                raise LabError(f"{name} was not ready in {READY_SECONDS:.0f} s; {self._processes.tail(name)}")
            time.sleep(_POLL_SECONDS)

    def _is_ready(self, name: str, health: Health) -> bool:
        record = self._processes.record(name)
        if record is None or record.identity is None or not listens(record.identity.pid, health.port):
            return False
        scheme = "https" if health.tls else "http"
        server = Api(f"{scheme}://{health.host}:{health.port}", self._context())
        try:
            answer = server.request(Call("GET", health.path), seconds=_HEALTH_SECONDS)
        except (OSError, http.client.HTTPException):
            return False
        return answer.status == http.client.OK
