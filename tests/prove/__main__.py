"""`python -m tests.prove [--only NAME] [--seed N]`: one JSON line per proof on standard output.

Exit code 1: a claim did not hold, or nothing was tried; 2: no proof has that name.
"""

from __future__ import annotations

import argparse
import json
import secrets
import signal
import sys
import time
import traceback
from typing import TYPE_CHECKING

import tests.prove
from tests.catalogue import UnknownNameError, choose, discover
from tests.lab.progress import progress
from tests.prove.proofs import Proof, Run

if TYPE_CHECKING:
    from collections.abc import Sequence

SEED_BITS = 32  # Short enough to type again.


def main(arguments: Sequence[str], proofs: Sequence[Proof]) -> int:
    """Run the proofs that the arguments ask for and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.prove", description="Run Tenure's long randomised proofs."
    )
    parser.add_argument("--only", metavar="NAME", help="the one proof to run")
    parser.add_argument(
        "--seed", type=int, metavar="N", help="the seed of a run to repeat (default: a new one)"
    )
    options = parser.parse_args(arguments)
    try:
        chosen = choose(proofs, options.only)
    except UnknownNameError as error:
        print(error.args[0], file=sys.stderr)
        return 2
    seed = secrets.randbits(SEED_BITS) if options.seed is None else options.seed
    held = [_holds(proof, seed) for proof in chosen]
    return 0 if all(held) else 1


def _holds(proof: Proof, seed: int) -> bool:
    """Run one proof and report it; tell whether the claim held in every trial, and there was one."""
    started = time.monotonic()
    with progress(f"Proving {proof.name}", unit="trials") as task:
        run = Run(seed, task)
        try:
            proof.run(run)
        except Exception:  # noqa: BLE001 - A crash is a trial that failed; the other proofs still run.
            traceback.print_exc()
            run.check(holds=False, otherwise="it crashed")
    seconds = round(time.monotonic() - started, 1)
    line = {"name": proof.name, "tried": run.tried, "failed": run.failed, "seed": seed, "seconds": seconds}
    print(json.dumps(line), flush=True)
    return run.tried > 0 and run.failed == 0


if __name__ == "__main__":
    # A run that is told to end takes down the cluster it started, as it does when a person interrupts it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main(sys.argv[1:], discover(tests.prove, "prove_", Proof)))
