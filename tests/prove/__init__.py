"""Long randomised proofs: `make prove`, or `python -m tests.prove [--only NAME] [--seed N]`.

A module `prove_*.py` here holds them. A proof draws everything random from the generators of its run, so that its seed
repeats it:

    @proof("no_card_has_two_holders")
    def no_card_has_two_holders(run: Run) -> None:
        for rng in run.trials(100_000):
            run.check(holds(rng), "card GPU-3 was given to two pods")
"""

from tests.prove.proofs import Proof, Run, proof

__all__ = ["Proof", "Run", "proof"]
