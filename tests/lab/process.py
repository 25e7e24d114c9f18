"""Processes that outlive the program that started them, recorded so that exactly these are stopped.

A pid alone is no identity: it is given again. A process is known by its pid, its start time (field 22
of /proc/PID/stat, in clock ticks since boot) and the boot id. Signals go through a pidfd that was
opened before the identity was compared, so they cannot hit a successor of the same pid.
"""

import os
import select
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from tests.lab.errors import LabError

STOP_SECONDS = 5.0  # kube-apiserver would wait up to a minute for its watches to end.
KILL_SECONDS = 10.0  # A killed process is gone at once, unless the kernel is busy freeing its memory.
LOG_TAIL_LINES = 8

# The shell waits for one line before it becomes the program: the record is on disk before the program
# runs, so whoever is killed in between leaves no process that nobody knows. exec keeps pid and start time.
_GATED_EXEC = 'read -r go && exec "$@" </dev/null'


class Identity(msgspec.Struct, frozen=True):
    """One process, now and for ever."""

    pid: int
    start_ticks: int
    boot_id: str


class Health(msgspec.Struct, frozen=True):
    """Where a process of ours says that it is ready."""

    port: int
    path: str
    host: str = "127.0.0.1"
    tls: bool = True


class Program(msgspec.Struct, frozen=True):
    """What to run. `cgroups` are folders of cgroups that the process enters before it runs."""

    name: str
    argv: Sequence[str]
    env: Mapping[str, str]
    health: Health | None = None
    cgroups: Sequence[str] = ()


class Record(msgspec.Struct, frozen=True):
    """A program and the process that runs it; no identity when it was stopped on purpose."""

    program: Program
    identity: Identity | None


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def identify(pid: int) -> Identity | None:
    """The identity of a running process; None when there is none or it only waits to be reaped."""
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, *rest = stat.rpartition(")")[2].split()
    if state in "ZX":
        return None
    return Identity(pid=pid, start_ticks=int(rest[18]), boot_id=boot_id())


def is_alive(identity: Identity | None) -> bool:
    return identity is not None and identify(identity.pid) == identity


@contextmanager
def _handle(identity: Identity) -> Iterator[int | None]:
    """A pidfd of exactly this process, None when it is gone."""
    try:
        handle = os.pidfd_open(identity.pid)
    except ProcessLookupError:
        yield None
        return
    try:
        yield handle if is_alive(identity) else None
    finally:
        os.close(handle)


def end(identity: Identity, *, grace_seconds: float) -> None:
    """Stop one process: SIGTERM, and SIGKILL after the grace (at once when it is 0)."""
    with _handle(identity) as handle:
        if handle is None:
            return
        if grace_seconds > 0 and _signal_and_wait(handle, signal.SIGTERM, grace_seconds):
            identify(identity.pid)  # Reaps it when it was our child.
            return
        if not _signal_and_wait(handle, signal.SIGKILL, KILL_SECONDS):
            raise LabError(f"process {identity.pid} survives SIGKILL: the kernel holds it, see its wchan")
        identify(identity.pid)


def _signal_and_wait(handle: int, number: signal.Signals, seconds: float) -> bool:
    try:
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return True
    poller = select.poll()
    poller.register(handle, select.POLLIN)
    return bool(poller.poll(seconds * 1000))


class Processes:
    """The recorded processes of one lab: one JSON file for each name, its log in another folder."""

    def __init__(self, *, records: Path, logs: Path) -> None:
        self._records = records
        self._logs = logs

    def log(self, name: str) -> Path:
        return self._logs / f"{name}.log"

    def names(self) -> list[str]:
        """All known programs in the order of their first start."""
        files = self._records.glob("*.json") if self._records.is_dir() else ()
        return [path.stem.partition("-")[2] for path in sorted(files)]

    def record(self, name: str) -> Record | None:
        path = self._path(name)
        return msgspec.json.decode(path.read_bytes(), type=Record) if path else None

    def alive(self, name: str) -> bool:
        record = self.record(name)
        return record is not None and is_alive(record.identity)

    def start(self, program: Program) -> Identity:
        """Start a program that does not run yet; its output is appended to its log."""
        if self.alive(program.name):
            raise LabError(f"{program.name} runs already: stop it first")
        self._records.mkdir(parents=True, exist_ok=True)
        self._logs.mkdir(parents=True, exist_ok=True)

        def enter(pid: int) -> None:
            identity = identify(pid)
            self._write(Record(program=program, identity=identity))
            for cgroup in program.cgroups:
                Path(cgroup, "cgroup.procs").write_text(str(pid))

        pid = _spawn(program, self.log(program.name), enter)
        identity = identify(pid)
        if identity is None:
            raise LabError(f"{program.name} ended at once: {self.tail(program.name)}")
        return identity

    def stop(self, name: str, *, grace_seconds: float = STOP_SECONDS) -> None:
        """Stop a program if it runs and forget its process, not how to start it again."""
        record = self.record(name)
        if record is None:
            raise LabError(f"there is no {name} in this lab; it has: {', '.join(self.names()) or 'nothing'}")
        if record.identity is not None:
            end(record.identity, grace_seconds=grace_seconds)
        self._write(Record(program=record.program, identity=None))

    def tail(self, name: str) -> str:
        """The last lines of a log, for an error's sentence."""
        try:
            lines = self.log(name).read_text(errors="replace").splitlines()
        except FileNotFoundError:
            lines = []
        shown = "\n".join(f"  {line}" for line in lines[-LOG_TAIL_LINES:])
        return f"the last lines of {self.log(name)}:\n{shown or '  (empty)'}"

    def _path(self, name: str) -> Path | None:
        return next(iter(self._records.glob(f"[0-9][0-9]-{name}.json")), None)

    def _write(self, record: Record) -> None:
        name = record.program.name
        path = self._path(name) or self._records / f"{len(self.names()):02}-{name}.json"
        draft = path.with_suffix(".new")
        draft.write_bytes(msgspec.json.encode(record))
        draft.replace(path)


def _spawn(program: Program, log: Path, before_run: Callable[[int], None]) -> int:
    """Start the program in a session of its own, after `before_run` was called with its pid."""
    gate_read, gate_write = os.pipe()
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    try:
        pid = os.posix_spawn(
            "/bin/sh",
            ["sh", "-c", _GATED_EXEC, "sh", *program.argv],
            dict(program.env),
            file_actions=[
                (os.POSIX_SPAWN_DUP2, gate_read, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(log), flags, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
        )
        before_run(pid)
        os.write(gate_write, b"go\n")
    finally:
        os.close(gate_read)
        os.close(gate_write)
    return pid
