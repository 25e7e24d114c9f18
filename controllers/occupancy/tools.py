"""Run the vendors' listing commands: in time, bounded, and never one that somebody else could have put there."""

import asyncio
import contextlib
import os
import signal
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from controllers.occupancy.evidence import Why

# Bytes of output that are kept; a node of 16 cards with hundreds of contexts prints about 100 KB.
OUTPUT_LIMIT = 4 * 1024 * 1024
# Seconds that a killed command may take to go away before it is left to itself.
_REAP_S = 1.0
_CHUNK = 65_536
_PASSED_ON = ("PATH", "LD_LIBRARY_PATH")
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


class ToolError(Exception):
    """A command gave no usable answer; the text is one line for people."""

    def __init__(self, why: Why, text: str) -> None:
        super().__init__(text)
        self.why = why


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command printed on stdout, and its exit code. Some print errors there and tell only by the code."""

    code: int
    data: bytes


class Tools:
    """Finds and runs commands. `folders` in order of trust; `deadline_s` for each run."""

    def __init__(self, folders: Sequence[Path], *, deadline_s: float) -> None:
        self._folders = folders
        self._deadline_s = deadline_s
        self._hanging: dict[str, asyncio.subprocess.Process] = {}

    async def run(self, name: str, *arguments: str) -> Answer:
        """Run a command of a vendor. Raises ToolError: not there, not root's, too slow, or too loud."""
        return await self.run_one((name,), *arguments)

    async def run_one(self, names: Sequence[str], *arguments: str) -> Answer:
        """Run the first of several commands that is installed: vendors rename theirs. Raises ToolError."""
        path = await asyncio.to_thread(self._find, names)
        return await self.run_file(path, *arguments, name=path.name)

    def _find(self, names: Sequence[str]) -> Path:
        """The first file of such a name; it is run only when nobody but root can change it."""
        for path in (folder / name for name in names for folder in self._folders):
            with contextlib.suppress(OSError):
                found = path.stat()
                if not stat.S_ISREG(found.st_mode) or not os.access(path, os.X_OK):
                    continue
                if found.st_uid != 0 or found.st_mode & _OTHERS_MAY_WRITE:
                    raise ToolError(Why.DENIED, f"{path.name}: not run, since others than root may change it")
                return path
        raise ToolError(Why.ABSENT, f"{names[0]} is not installed")

    async def run_file(self, path: Path, *arguments: str, name: str) -> Answer:
        """Run one file; `name` stands for it in messages. Raises ToolError."""
        if (old := self._hanging.get(name)) is not None:
            if old.returncode is None:
                raise ToolError(Why.SLOW, f"{name} still hangs from an earlier run")
            del self._hanging[name]
        try:
            process = await asyncio.create_subprocess_exec(
                path,
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                env={key: os.environ[key] for key in _PASSED_ON if key in os.environ} | {"LC_ALL": "C"},
                start_new_session=True,
            )
        except OSError as error:
            raise ToolError(Why.FAILED, f"{name} cannot be run: {error.strerror}") from None
        return await self._answer(process, name)

    async def _answer(self, process: asyncio.subprocess.Process, name: str) -> Answer:
        try:
            async with asyncio.timeout(self._deadline_s):
                data = await _read(process, name)
                code = await process.wait()
        except TimeoutError:
            raise ToolError(Why.SLOW, f"{name} did not answer within {self._deadline_s:g} s") from None
        finally:
            await self._end(process, name)
        return Answer(code, data)

    async def _end(self, process: asyncio.subprocess.Process, name: str) -> None:
        """Kill the command with its children. One that the kernel does not let go is not started again.

        What it still had printed is read to its end: a pipe that nobody reads stays open for ever.
        """
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_REAP_S):
                while process.stdout is not None and await process.stdout.read(_CHUNK):
                    pass
                await process.wait()
        if process.returncode is None:
            self._hanging[name] = process


async def _read(process: asyncio.subprocess.Process, name: str) -> bytes:
    """All of it. Raises ToolError beyond the limit."""
    printed = bytearray()
    while process.stdout is not None and (chunk := await process.stdout.read(_CHUNK)):
        printed += chunk
        if len(printed) > OUTPUT_LIMIT:
            raise ToolError(Why.GARBLED, f"{name} printed more than {OUTPUT_LIMIT} bytes")
    return bytes(printed)
