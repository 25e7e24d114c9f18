"""Programs that are run to their end, for what they print."""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.lab.errors import LabError

COMMAND_SECONDS = 60.0


def run_command(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    stdin: str | None = None,
    seconds: float = COMMAND_SECONDS,
) -> str:
    """What a program prints; LabError, with what it complains about, when it fails or takes too long."""
    said = " ".join([Path(argv[0]).name, *argv[1:]])
    try:
        done = subprocess.run(
            argv, env=env, input=stdin, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise LabError(f"{said} took more than {seconds:.0f} s") from error
    if done.returncode != 0:
        raise LabError(f"{said}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
