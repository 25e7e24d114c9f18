"""Stand-ins for the programs that set a machine up: small scripts in a folder that comes first on PATH."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[3]


class Programs:
    """A folder of scripts; each may write to the log, by which a test sees what was called."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "programs"
        self.folder.mkdir()
        self.log = folder / "log"
        self.log.touch()

    def add(self, name: str, script: str = "true") -> Path:
        """Make program `name`; its call is logged before `script` runs."""
        program = self.folder / name
        program.write_text(f'#!/bin/bash\necho "{name} $*" >>{self.log}\n{script}\n')
        program.chmod(0o755)
        return program

    @property
    def calls(self) -> list[str]:
        """Each call so far: the program's name and its arguments."""
        return self.log.read_text().splitlines()

    @property
    def path(self) -> str:
        """PATH with these programs before the machine's own."""
        return f"{self.folder}:{os.environ['PATH']}"

    def run(self, *command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the project among these programs, with no terminal."""
        env = os.environ | {"PATH": self.path} | environment
        return subprocess.run(
            command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
