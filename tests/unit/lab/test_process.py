"""Processes are stopped by identity, and none is ever unknown."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.lab.errors import LabError
from tests.lab.process import Identity, Processes, Program, _spawn, end, identify, is_alive

ENV = {"PATH": "/usr/bin:/bin"}


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    made = Processes(records=tmp_path / "records", logs=tmp_path / "logs")
    yield made
    for name in made.names():
        made.stop(name, grace_seconds=0)


def program(name: str, script: str) -> Program:
    return Program(name=name, argv=["sh", "-c", script], env=ENV)


def wait_until_logged(processes: Processes, name: str, text: str) -> None:
    deadline = time.monotonic() + 10
    while text not in processes.log(name).read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_process_is_known_by_its_start_too() -> None:
    own = identify(os.getpid())
    assert own is not None
    assert is_alive(own)
    assert not is_alive(msgspec.structs.replace(own, start_ticks=own.start_ticks + 1))
    assert not is_alive(msgspec.structs.replace(own, boot_id="another boot"))


def test_a_successor_of_the_same_pid_is_left_alone(processes: Processes) -> None:
    identity = processes.start(program("p", "sleep 100"))
    end(msgspec.structs.replace(identity, start_ticks=identity.start_ticks - 1), grace_seconds=0)
    assert is_alive(identity)


def test_a_stopped_process_may_end_in_its_own_way(processes: Processes) -> None:
    processes.start(program("p", "trap 'echo bye; exit' TERM; echo ready; while :; do sleep 0.01; done"))
    wait_until_logged(processes, "p", "ready")
    processes.stop("p")
    assert "bye" in processes.log("p").read_text()
    assert not processes.alive("p")


def test_a_process_that_ignores_the_request_is_killed(processes: Processes) -> None:
    processes.start(program("p", "trap '' TERM; echo ready; while :; do sleep 0.01; done"))
    wait_until_logged(processes, "p", "ready")
    processes.stop("p", grace_seconds=0.2)
    assert not processes.alive("p")


def test_a_process_killed_by_others_is_dead_and_can_be_stopped_and_started_again(
    processes: Processes,
) -> None:
    first = processes.start(program("p", "exec sleep 100"))
    os.kill(first.pid, signal.SIGKILL)
    while processes.alive("p"):
        time.sleep(0.01)
    processes.stop("p")
    record = processes.record("p")
    assert record is not None
    assert processes.start(record.program) != first


def test_a_running_name_cannot_be_started_twice(processes: Processes) -> None:
    processes.start(program("p", "sleep 100"))
    with pytest.raises(LabError, match="p runs already"):
        processes.start(program("p", "sleep 100"))


def test_names_keep_the_order_of_their_first_start(processes: Processes) -> None:
    for name in ("z", "a-b", "m"):
        processes.start(program(name, "sleep 100"))
    processes.stop("z", grace_seconds=0)
    processes.start(program("z", "sleep 100"))
    assert processes.names() == ["z", "a-b", "m"]


def test_a_program_does_not_run_before_it_is_recorded(tmp_path: Path) -> None:
    """Whoever is interrupted while starting a process leaves none behind."""
    mark, pids = tmp_path / "ran", []

    def interrupted(pid: int) -> None:
        pids.append(pid)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _spawn(program("p", f"touch {mark}"), tmp_path / "log", interrupted)
    os.waitpid(pids[0], 0)
    assert not mark.exists()


def test_the_program_gets_the_recorded_identity_and_nothing_on_its_input(processes: Processes) -> None:
    identity = processes.start(program("p", "echo pid $$; cat; echo end of input; sleep 100"))
    wait_until_logged(processes, "p", "end of input")
    assert processes.log("p").read_text() == f"pid {identity.pid}\nend of input\n"


def test_an_unknown_name_is_answered_with_the_known_ones(processes: Processes) -> None:
    processes.start(program("known", "sleep 100"))
    with pytest.raises(LabError, match="there is no other in this lab; it has: known"):
        processes.stop("other")


def test_nothing_has_the_identity_of_a_pid_that_does_not_exist() -> None:
    assert identify(2**22 + 1) is None
    end(Identity(pid=2**22 + 1, start_ticks=0, boot_id=""), grace_seconds=0)
