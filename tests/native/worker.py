"""Builds vgpu_worker.c and talks to its processes: what a container's processes do to their regions."""

import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

SOURCE = Path(__file__).with_name("vgpu_worker.c")
_FLAGS = ("-O2", "-Wall", "-Wextra", "-Werror", "-static")


def build(folder: Path, source: Path = SOURCE) -> Path:
    """A compiled program, by default the worker. Static, so that it runs in any image."""
    binary = folder / source.stem
    subprocess.run(["cc", *_FLAGS, "-o", binary, source], check=True)
    return binary


class Worker:
    """One process of a container; `worker("charge 0 4096")` sends a command and returns the answer."""

    def __init__(self, command: Sequence[str | Path]) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )

    @classmethod
    def on(cls, binary: Path, folder: Path) -> Self:
        """A process in the namespaces of the test."""
        return cls([binary, folder])

    @classmethod
    def in_container(cls, binary: Path, regions: Path, view: Path) -> Self:
        """The first process of a container: own mounts and pids, the region folders mounted elsewhere (`view`)."""
        for name in ("sm_node", "vmem_node"):
            (view / name).mkdir(parents=True, exist_ok=True)
        binds = " && ".join(f'mount --bind "{regions}/{n}" "{view}/{n}"' for n in ("sm_node", "vmem_node"))
        script = f'{binds} && exec "{binary}" "{view}"'
        return cls(["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script])

    def __call__(self, command: str) -> str:
        self.send(command)
        return self.answer()

    def send(self, command: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()

    def answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    @property
    def pid(self) -> int:
        """The process as the host numbers it (of a container: the one that made its namespaces)."""
        return self._process.pid

    def kill(self) -> None:
        """End it and all it started, by SIGKILL, and wait for that."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()
        self._process.wait(timeout=30)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
