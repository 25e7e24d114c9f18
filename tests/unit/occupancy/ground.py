"""A host for scans: device nodes and sysfs of the test's own, tools that are scripts, processes that are real."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from controllers.occupancy.cards import DeviceNumber
from controllers.occupancy.sources.host import Host
from controllers.occupancy.vendors.generic import CardClass

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

REPOSITORY = Path(__file__).parents[3]
# /dev/full, /dev/zero: character devices that every machine has and no program keeps open for long.
FULL = DeviceNumber(1, 7)
ZERO = DeviceNumber(1, 5)
FUSE = DeviceNumber(10, 229)
ACME = (CardClass("acme", re.compile(r"acme\d+")),)


@contextlib.contextmanager
def devices_to_oneself() -> Iterator[None]:
    """Keep other runs on this machine from the same devices meanwhile: numbers are the machine's, not the test's."""
    with Path(tempfile.gettempdir(), "tenure-test-devices.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class Ground:
    """Folders that stand for the host's, below one folder."""

    def __init__(self, root: Path) -> None:
        self.dev, self.sys, self.bin = root / "dev", root / "sys", root / "bin"
        for folder in (self.dev, self.sys, self.bin):
            folder.mkdir(parents=True)
        self.host = Host(Path("/proc"), self.sys, self.dev)

    @property
    def settings(self) -> dict[str, Any]:
        """Of `occupancy`, as a file would have them: this host, whose nodes `acme*` are cards."""
        cards = [{"vendor": "acme", "nodes": "acme[0-9]+"}]
        folders = {"dev": str(self.dev), "sys": str(self.sys), "tool_folders": [str(self.bin)]}
        return {**folders, "cards": cards}

    def node(self, path: str, number: DeviceNumber) -> Path:
        """A device node."""
        node = self.dev / path
        node.parent.mkdir(parents=True, exist_ok=True)
        os.mknod(node, 0o20666, os.makedev(*number))
        return node

    def text(self, path: str, content: str) -> None:
        """A file of sysfs."""
        file = self.sys / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)

    def tool(self, name: str, script: str) -> None:
        """A command of a vendor, as a shell script."""
        file = self.bin / name
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)

    def program(self, name: str, main: str) -> Path:
        """A program of that name, owned by root; `main` are the statements of a C main(int c, char **v)."""
        headers = "".join(f"#include <{name}.h>\n" for name in ("fcntl", "stdio", "stdlib", "unistd"))
        hello = 'void hello(void) { printf("%d\\n", getpid()); fflush(stdout); }\n'
        code = f"{headers}{hello}int main(int c, char **v) {{ {main} }}\n"
        file = self.bin / name
        if not file.exists():
            subprocess.run(["cc", "-x", "c", "-o", file, "-"], input=code, text=True, check=True)
        return file

    def rngd(self, number: int, bdf: str, device: DeviceNumber) -> None:
        """A Furiosa card in sysfs and below /dev."""
        folder = f"class/rngd_mgmt/rngd!npu{number}mgmt"
        self.text(f"{folder}/busname", bdf + "\n")
        self.text(f"{folder}/device_uuid", f"09512C86-0709-4404-8943-00000000000{number}\n")
        self.text(f"{folder}/pe_occupancy", "0\n" * 8)
        self.node(f"rngd/npu{number}pe0", device)

    def rbln(self, number: int, bdf: str, device: DeviceNumber | None, ctx_info: str | None = None) -> None:
        """A Rebellions card in sysfs and below /dev."""
        pci = self.sys / "devices/pci0000:00/0000:00:01.0" / bdf
        pci.mkdir(parents=True)
        folder = self.sys / f"class/rebellions/rbln{number}"
        folder.mkdir(parents=True)
        (folder / "device").symlink_to(pci)
        if ctx_info is not None:
            (folder / "ctx_info").write_text(ctx_info)
        if device is not None:
            self.node(f"rbln{number}", device)


class Openings:
    """Counts how often files are opened, by inotify."""

    _IN_OPEN, _IN_NONBLOCK, _EVENT = (
        0x20,
        0o4000,
        16,
    )  # sys/inotify.h; an event of a file has no name behind it

    def __init__(self, paths: Sequence[Path]) -> None:
        libc = ctypes.CDLL(None)
        self._handle = libc.inotify_init1(self._IN_NONBLOCK)
        assert self._handle >= 0
        for path in paths:
            assert libc.inotify_add_watch(self._handle, os.fsencode(path), self._IN_OPEN) >= 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._handle)

    def count(self) -> int:
        """Openings since the last count."""
        try:
            return len(os.read(self._handle, 4096)) // self._EVENT
        except BlockingIOError:
            return 0


class Cgroups:
    """Control groups of the test's own in the version 2 hierarchy: pods below one folder, a service beside it."""

    def __init__(self) -> None:
        table = Path("/proc/self/mountinfo").read_text().splitlines()
        mounts = [line.split()[4] for line in table if " - cgroup2 " in line]
        self._top = Path(mounts[0])
        name = f"tenure-test-{secrets.token_hex(4)}"
        self._pods, self._service = self._top / name, self._top / f"{name}.service"

    def pod(self, path: str) -> Path:
        """The group of a container, as `podUID/ID`."""
        folder = self._pods / "kubepods" / path
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def put_into_pod(self, pid: int, path: str) -> None:
        """Move a process into a container's group."""
        (self.pod(path) / "cgroup.procs").write_text(str(pid))

    def put_on_host(self, pid: int) -> None:
        """Move a process into a service of the host."""
        self._service.mkdir(exist_ok=True)
        (self._service / "cgroup.procs").write_text(str(pid))

    def close(self) -> None:
        """Remove the groups; what is still in them goes to the root."""
        roots = (self._pods, self._service)
        for group in [Path(folder) for root in roots for folder, _, _ in os.walk(root, topdown=False)]:
            for pid in (group / "cgroup.procs").read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    (self._top / "cgroup.procs").write_text(pid)
            group.rmdir()


class Programs:
    """Processes that a test starts; all of them are ended with it."""

    def __init__(self) -> None:
        self._started: list[subprocess.Popen[str]] = []

    def start(self, command: Sequence[str | Path]) -> int:
        """Start a program that prints a process id when it is ready; that id."""
        program = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        self._started.append(program)
        assert program.stdout is not None
        return int(program.stdout.readline())

    def opener(self, *nodes: Path) -> int:
        """Start a program that keeps device nodes open; its process id."""
        code = (
            "import os, sys, time\nfor n in sys.argv[1:]: os.open(n, os.O_RDONLY)\n"
            "print(os.getpid(), flush=True)\ntime.sleep(600)"
        )
        return self.start([sys.executable, "-S", "-c", code, *nodes])

    def end(self, pid: int) -> None:
        """End one program and wait until it is gone."""
        os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + 10
        while _lives(pid):
            for program in self._started:
                program.poll()
            assert time.monotonic() < deadline, f"process {pid} does not end"
            time.sleep(0.01)

    def close(self) -> None:
        """End what still runs."""
        for program in self._started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGKILL)
            program.wait()
            assert program.stdout is not None
            program.stdout.close()


def _lives(pid: int) -> bool:
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def lupine_client(ground: Ground, programs: Programs, *, card: Path) -> int:
    """Start a stand-in of lupine's server with one client that has the card open; the client's process id."""
    serve = "if (fork() == 0) { open(v[1], O_RDONLY); hello(); sleep(600); } sleep(600);"
    return programs.start([ground.program("lupine_driver_server", serve), card])
