"""`python -m tests.bench [--only NAME]`: one JSON line per figure on standard output, kept in .lab/bench.jsonl.

Exit code 1: a measurement failed; 2: no figure has that name.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import traceback
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import tests.bench
from tests.bench.figures import Benchmark
from tests.catalogue import UnknownNameError, choose, discover
from tests.lab.progress import progress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.bench.figures import Figure, Reading

HISTORY: Final = Path(__file__).parents[2] / ".lab" / "bench.jsonl"


def main(arguments: Sequence[str], benchmarks: Sequence[Benchmark], history: Path = HISTORY) -> int:
    """Measure what the arguments ask for and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description="Measure Tenure's figures.")
    parser.add_argument("--only", metavar="NAME", help="the one figure to measure")
    only = parser.parse_args(arguments).only
    try:
        chosen = choose(benchmarks, only)
    except UnknownNameError as error:
        print(error.args[0], file=sys.stderr)
        return 2
    fine = [_measure(benchmark, only, history) for benchmark in chosen]
    return 0 if all(fine) else 1


def _measure(benchmark: Benchmark, only: str | None, history: Path) -> bool:
    """Report the figures of one benchmark, or the one that was asked for; tell whether it could be measured."""
    try:
        with progress(f"Measuring {only or ', '.join(benchmark.names)}"):
            results = benchmark.run()
    except Exception:  # noqa: BLE001 - Whatever breaks one measurement, the others are still worth having.
        traceback.print_exc()
        return False
    for figure, reading in results:
        if only in (None, figure.name):
            _report(figure, reading, history)
    return True


def _report(figure: Figure, reading: Reading, history: Path) -> None:
    line = {"name": figure.name, "value": reading.value, "unit": figure.unit, "n": reading.n}
    print(json.dumps(line), flush=True)
    history.parent.mkdir(exist_ok=True)
    with history.open("a") as file:
        file.write(
            json.dumps(line | {"at": datetime.now(UTC).isoformat(timespec="seconds"), "commit": _commit()})
            + "\n"
        )


def _commit() -> str:
    """Return the commit that was measured, `-dirty` behind it where files differ; empty outside a repository."""
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


if __name__ == "__main__":
    # A run that is told to end takes down the cluster it started, as it does when a person interrupts it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main(sys.argv[1:], discover(tests.bench, "bench_", Benchmark)))
