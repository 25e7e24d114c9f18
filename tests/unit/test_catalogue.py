"""tests.catalogue: what a package's modules offer."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

from tests.bench import Benchmark
from tests.catalogue import discover

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

ONE = """
from tests.bench import Reading, figure

@figure("one_us", unit="us")
def one() -> Reading:
    return Reading(1.0, n=1)
"""


def test_every_module_with_the_prefix_is_searched_and_nothing_found_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "offers"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "bench_one.py").write_text(ONE)
    (package / "bench_two.py").write_text("from offers.bench_one import one\n" + ONE.replace("one", "two"))
    (package / "other.py").write_text("raise AssertionError('not asked for')")
    monkeypatch.syspath_prepend(tmp_path)
    found = discover(importlib.import_module("offers"), "bench_", Benchmark)
    assert [benchmark.names for benchmark in found] == [("one_us",), ("two_us",)]
    for name in [name for name in sys.modules if name.split(".")[0] == "offers"]:
        monkeypatch.delitem(sys.modules, name)
