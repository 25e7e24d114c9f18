"""Real processes with real device nodes open, and what the scan sees of them."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from controllers.occupancy.cards import DeviceNumber
from controllers.occupancy.cgroups import Managed
from controllers.occupancy.processes import Missing, Process
from controllers.occupancy.procfs import (
    DENIED,
    OpenDevices,
    describe_visitor,
    device_visitor,
    pids,
    read_text,
)
from tests.unit.occupancy.ground import devices_to_oneself

PROC = Path("/proc")
# /dev/full: a character device with a driver that every machine has, and that nothing else opens.
FULL = DeviceNumber(1, 7)
UNPRIVILEGED = 65534

Start = Callable[..., int]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a Python program that prints one line when it is ready; its process id."""
    started: list[subprocess.Popen[str]] = []

    def begin(code: str, *, prefix: tuple[str, ...] = ()) -> int:
        command = [*prefix, sys.executable, "-S", "-c", code]
        program = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        started.append(program)
        assert program.stdout is not None
        line = program.stdout.readline().split()
        return int(line[0]) if line else program.pid

    with devices_to_oneself():
        yield begin
        for program in started:
            os.killpg(program.pid, signal.SIGKILL)
            program.wait()
            assert program.stdout is not None
            program.stdout.close()


def opens(path: str) -> str:
    return (
        f"import os, time\nos.open({path!r}, os.O_RDONLY)\nprint(os.getpid(), flush=True)\ntime.sleep(600)\n"
    )


def seen(pid: int) -> OpenDevices | Missing | None:
    return device_visitor(PROC, {FULL})(pid)


def test_a_process_with_the_device_open_is_seen(start: Start) -> None:
    pid = start(opens("/dev/full"))
    found = seen(pid)
    assert isinstance(found, OpenDevices)
    assert found.numbers == {FULL}
    assert found.start > 0


@pytest.mark.parametrize(
    ("before", "number"),
    [
        ("os.close(0)", 3),
        ("", 900),
        ("for n in range(3, 1100): os.dup2(2, n)", 1100),
        ("for n in range(3, 1100, 7): os.dup2(2, n)", 1500),
    ],
    ids=["a-hole-before-it", "far-behind-a-hole", "more-than-a-thousand-files", "many-holes"],
)
@pytest.mark.parametrize("counted", [True, False], ids=["counted", "before-linux-6.2"])
def test_a_device_is_seen_under_any_descriptor(
    start: Start, monkeypatch: pytest.MonkeyPatch, before: str, number: int, *, counted: bool
) -> None:
    code = (
        "import os, resource, time\nmost = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 4096), most))\n{before}\n"
        f"card = os.open('/dev/full', os.O_RDONLY)\nos.dup2(card, {number})\n"
        f"if card != {number}: os.close(card)\nprint(os.getpid(), flush=True)\ntime.sleep(600)\n"
    )
    pid = start(code)
    if not counted:
        monkeypatch.setattr(os, "fstat", lambda _: os.stat_result((0,) * 10))
    found = seen(pid)
    assert isinstance(found, OpenDevices)
    assert found.numbers == {FULL}


def test_a_process_without_open_files_is_nobody(start: Start) -> None:
    pid = start("import os, time\nprint(os.getpid(), flush=True)\nos.closerange(0, 1024)\ntime.sleep(600)\n")
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{pid}/fd").iterdir()):
        assert time.monotonic() < deadline
    assert seen(pid) is None


def test_a_process_with_other_devices_open_is_not(start: Start) -> None:
    assert seen(start(opens("/dev/zero"))) is None


def test_the_number_counts_and_not_the_name(start: Start, tmp_path: Path) -> None:
    """Finding 3: the node has another name in the holder's mount namespace, or none any more."""
    node = tmp_path / "rsd0"
    os.mknod(node, 0o20666, os.makedev(*FULL))
    pid = start(opens(str(node)))
    node.unlink()
    found = seen(pid)
    assert isinstance(found, OpenDevices)
    regular = tmp_path / "full"
    regular.touch()
    assert seen(start(opens(str(regular)))) is None


def test_threads_of_a_dead_main_thread_still_hold(start: Start) -> None:
    """C6, second card: the process is a zombie with an empty list of files; a thread lives and holds the card."""
    code = (
        "import ctypes, os, threading, time\n"
        "os.open('/dev/full', os.O_RDONLY)\nprint(os.getpid(), flush=True)\n"
        "threading.Thread(target=time.sleep, args=(600,)).start()\n"
        "ctypes.CDLL(None).syscall(ctypes.c_long(60), 0)\n"
    )
    pid = start(code)
    deadline = time.monotonic() + 10
    while " (python" not in (text := read_text(f"/proc/{pid}/stat") or "") or ") Z " not in text:
        assert time.monotonic() < deadline, text
        time.sleep(0.01)
    assert isinstance(seen(pid), OpenDevices)


def test_a_process_that_may_not_be_looked_at_is_denied_and_not_empty(start: Start) -> None:
    pid = start(opens("/dev/full"))
    result = _as_nobody(lambda: seen(pid) is DENIED)
    assert result, "an unprivileged reader must say that it could not look"


def test_root_without_the_right_to_trace_is_denied_although_it_may_list(start: Start) -> None:
    """The list of descriptors is readable then; the links behind it are not."""
    pid = start(opens("/dev/full"))
    capless = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path\n"
        "from controllers.occupancy.procfs import DENIED, device_visitor\n"
        "from controllers.occupancy.cards import DeviceNumber\n"
        f"sys.exit(0 if device_visitor(Path('/proc'), {{DeviceNumber(1, 7)}})({pid}) is DENIED else 3)\n"
    )
    drop = ("setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace")
    root = str(Path(__file__).parents[3])
    code = subprocess.run([*drop, sys.executable, "-c", capless, root], check=False).returncode
    assert code == 0


def _as_nobody(check: Callable[[], bool]) -> bool:
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setresuid(UNPRIVILEGED, UNPRIVILEGED, UNPRIVILEGED)
        os._exit(0 if check() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_text_longer_than_a_page_is_read_to_its_end() -> None:
    """One read(2) of a text that the kernel makes as it goes returns about a page of it."""
    text = read_text("/proc/self/maps") or ""
    assert len(text) > 2 * 4096
    assert "[stack]" in text
    assert text.endswith("\n")


def test_kernel_threads_are_nobody(start: Start) -> None:
    assert seen(2) is None
    assert _as_nobody(lambda: seen(2) is None)


def test_a_process_that_ended_is_nobody() -> None:
    assert seen(4_194_300) is None


def test_the_walk_finds_the_holder_among_all_processes(start: Start) -> None:
    pid = start(opens("/dev/full"))
    found = {p for p in pids(PROC) if isinstance(seen(p), OpenDevices)}
    assert pid in found
    assert os.getpid() not in found


class TestDescribing:
    def test_a_process_of_root_is_described(self, start: Start) -> None:
        pid = start(opens("/dev/full"))
        found = describe_visitor(PROC)(pid)
        assert isinstance(found, Process)
        assert found.command == Path(sys.executable).resolve().name
        assert found.trusted
        assert found.placement.managed is Managed.HOST
        assert found.parent == os.getpid()

    def test_a_process_that_never_was_is_gone(self) -> None:
        assert describe_visitor(PROC)(4_194_300) is Missing.GONE

    def test_a_command_is_the_executable_and_not_what_the_program_calls_itself(self, start: Start) -> None:
        code = (
            "import ctypes\nctypes.CDLL(None).prctl(15, b'nvidia-smi', 0, 0, 0)\n"  # PR_SET_NAME
            + opens("/dev/full")
        )
        found = describe_visitor(PROC)(start(code))
        assert isinstance(found, Process)
        assert found.command == Path(sys.executable).resolve().name

    def test_an_executable_of_a_user_is_not_trusted(self, tmp_path: Path) -> None:
        tmp_path.chmod(0o755)
        program = tmp_path / "nvidia-smi"
        program.write_bytes(Path("/bin/sleep").read_bytes())
        program.chmod(0o755)
        os.chown(program, UNPRIVILEGED, UNPRIVILEGED)
        run = subprocess.Popen([program, "600"])
        try:
            found = describe_visitor(PROC)(run.pid)
        finally:
            run.kill()
            run.wait()
        assert isinstance(found, Process)
        assert (found.command, found.trusted) == ("nvidia-smi", False)

    def test_a_name_cannot_make_a_program_of_a_user_one_of_root(self, start: Start) -> None:
        """The name stands in the same text as the user id, on the line before it."""
        code = (
            "import ctypes, os\nos.setgroups([])\nos.setresuid(65534, 65534, 65534)\n"
            "ctypes.CDLL(None).prctl(15, 'x\\x1cUid:\\t0\\t0'.encode(), 0, 0, 0)\n"
            "import sys, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)\n"
        )
        found = describe_visitor(PROC)(start(code))
        assert isinstance(found, Process)
        assert found.script == ""
