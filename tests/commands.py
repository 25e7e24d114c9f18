"""`tenure` as a person runs it: a process of its own, its exit code, and what it says."""

import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
# Seconds; a command that takes longer hangs.
PATIENCE_S = 60.0


def environment(**changes: str) -> dict[str, str]:
    """What a command gets from its caller: no kubeconfig but a given one, and warnings are errors."""
    plain = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(REPOSITORY),
        "PYTHONWARNINGS": "error",
        "HOME": "/",
    }
    return plain | changes


def command(*arguments: object) -> list[str]:
    """The argument vector of a command."""
    return [sys.executable, "-m", "service", *(str(argument) for argument in arguments)]


def tenure(*arguments: object, **changes: str) -> "subprocess.CompletedProcess[str]":
    """Carry out one command; nothing that it says may be a traceback."""
    ran = subprocess.run(
        command(*arguments),
        env=environment(**changes),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert "Traceback" not in ran.stderr, ran.stderr
    return ran


def sentence(ran: "subprocess.CompletedProcess[str]") -> str:
    """The one line that a person reads after wrong use, or without access."""
    assert (ran.returncode, ran.stdout) == (2, ""), ran
    (line,) = ran.stderr.splitlines()
    assert line.startswith("tenure: ")
    return line
