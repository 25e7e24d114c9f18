"""tests.prove: a proof counts what it tried and what failed, and its seed repeats it."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from tests.prove import Proof, Run, proof
from tests.prove.__main__ import main

if TYPE_CHECKING:
    import pytest


@proof("holds")
async def holds(run: Run) -> None:
    for rng in run.trials(100):
        await asyncio.sleep(0)
        run.check(rng.random() < 1, "a number above 1")


@proof("fails_now_and_then")
def fails_now_and_then(run: Run) -> None:
    for rng in run.trials(200):
        drawn = rng.randrange(10)
        run.check(drawn != 0, "zero was drawn")
        run.check(drawn != 0, "zero was drawn, seen twice")


@proof("crashes")
def crashes(run: Run) -> None:
    for _ in run.trials(10):
        if run.tried == 3:
            raise KeyError("gone")


@proof("tries_nothing")
def tries_nothing(run: Run) -> None:
    assert run.tried == 0


def reported(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_claim_that_holds_is_one_json_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "7"], [holds]) == 0
    (line,) = reported(capsys)
    assert line.pop("seconds") >= 0
    assert line == {"name": "holds", "tried": 100, "failed": 0, "seed": 7}


def test_a_trial_fails_once_and_the_seed_repeats_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "fails_now_and_then"], [holds, fails_now_and_then]) == 1
    (first,) = reported(capsys)
    assert 0 < first["failed"] < first["tried"] == 200
    assert main(["--only", "fails_now_and_then", "--seed", str(first["seed"])], [fails_now_and_then]) == 1
    (again,) = reported(capsys)
    assert again["failed"] == first["failed"]


def test_counterexamples_are_shown_with_what_repeats_them(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--seed", "1"], [fails_now_and_then])
    shown = [line for line in capsys.readouterr().err.splitlines() if line.startswith("trial ")]
    assert len(shown) == 5
    assert all(line.endswith(" of seed 1: zero was drawn") for line in shown)


def test_a_crash_counts_as_a_failed_trial_and_stops_no_other_proof(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([], [crashes, holds]) == 1
    assert [(line["tried"], line["failed"]) for line in reported(capsys)] == [(3, 1), (100, 0)]


def test_a_proof_that_tries_nothing_proves_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([], [tries_nothing]) == 1
    assert reported(capsys)[0]["tried"] == 0


def test_an_unknown_proof_gets_the_names_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    proofs: list[Proof] = [holds, crashes]
    assert main(["--only", "hold"], proofs) == 2
    assert capsys.readouterr().err == "There is no hold. There is: crashes, holds.\n"
