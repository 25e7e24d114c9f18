"""Figures that can be measured again: `make bench`, or `python -m tests.bench [--only NAME]`.

A module `bench_*.py` here measures; each figure is declared where it is measured, with its unit:

    @figure("filter_p99_us", unit="us")
    @figure("filter_cpu_us", unit="us")
    async def filter_of_a_promised_pod() -> dict[str, Reading]:
        ...
        return {"filter_p99_us": Reading(p99, n=calls), "filter_cpu_us": Reading(cpu, n=calls)}

A function with one figure returns the Reading alone. Async functions run on uvloop, as the product does.
"""

from tests.bench.figures import Benchmark, Figure, Reading, figure

__all__ = ["Benchmark", "Figure", "Reading", "figure"]
