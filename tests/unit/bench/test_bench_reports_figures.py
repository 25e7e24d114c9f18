"""tests.bench: each figure is one JSON line, and is kept."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from tests.bench import Benchmark, Reading, figure
from tests.bench.__main__ import main
from tests.catalogue import DoubleNameError

if TYPE_CHECKING:
    from pathlib import Path


@figure("sum_us", unit="us")
def sum_of_numbers() -> Reading:
    return Reading(1.5, n=100)


@figure("sleep_p50_us", unit="us")
@figure("sleep_per_s", unit="1/s")
async def sleep() -> dict[str, Reading]:
    await asyncio.sleep(0)
    loop = type(asyncio.get_running_loop()).__module__
    assert loop.startswith("uvloop"), loop
    return {"sleep_per_s": Reading(2000.0, n=10), "sleep_p50_us": Reading(500.0, n=10)}


@figure("broken", unit="us")
def broken() -> Reading:
    return Reading(float("nan"), n=1)


@figure("promised", unit="us")
def measures_something_else() -> dict[str, Reading]:
    return {"delivered": Reading(1.0, n=1)}


def test_each_figure_is_one_json_line_and_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    history = tmp_path / "lab" / "bench.jsonl"
    assert main([], [sum_of_numbers, sleep], history) == 0
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert printed == [
        {"name": "sum_us", "value": 1.5, "unit": "us", "n": 100},
        {"name": "sleep_p50_us", "value": 500.0, "unit": "us", "n": 10},
        {"name": "sleep_per_s", "value": 2000.0, "unit": "1/s", "n": 10},
    ]
    main(["--only", "sum_us"], [sum_of_numbers, sleep], history)
    kept = [json.loads(line) for line in history.read_text().splitlines()]
    assert [line["name"] for line in kept] == ["sum_us", "sleep_p50_us", "sleep_per_s", "sum_us"]
    assert kept[0].items() >= printed[0].items()
    assert kept[0].keys() == {*printed[0], "at", "commit"}


def test_one_figure_of_several_can_be_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "sleep_per_s"], [sum_of_numbers, sleep], tmp_path / "bench.jsonl") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["name"] for line in lines] == ["sleep_per_s"]


def test_an_unknown_name_gets_the_names_that_exist(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--only", "some_us"], [sum_of_numbers, sleep], tmp_path / "bench.jsonl") == 2
    assert capsys.readouterr().err == "There is no some_us. There is: sleep_p50_us, sleep_per_s, sum_us.\n"


@pytest.mark.parametrize("wrong", [broken, measures_something_else], ids=lambda benchmark: benchmark.names[0])
def test_a_measurement_that_fails_is_no_figure_and_stops_no_other(
    wrong: Benchmark, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([], [wrong, sum_of_numbers], tmp_path / "bench.jsonl") == 1
    output = capsys.readouterr()
    assert [json.loads(line)["name"] for line in output.out.splitlines()] == ["sum_us"]
    assert "ValueError" in output.err


def test_two_figures_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DoubleNameError, match="sum_us"):
        main([], [sum_of_numbers, Benchmark(sum_of_numbers.measure, sum_of_numbers.figures)], tmp_path / "b")
