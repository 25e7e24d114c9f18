"""What becomes an event: a check that turns from pass to fail, once."""

from controllers.claims.metrics import ClaimMetrics
from controllers.claims.report import Check, Code, Report, Verdict, fail, unknown
from controllers.claims.watch import Memory
from service.metrics import MetricSet

MISSING = fail(Code.ATTR_MISSING, "request npu", "numaNode is on none of 8 devices")
UNCLEAR = unknown(Code.SELECTOR_UNKNOWN, "request npu", "cannot tell")


def report(*findings: object, pods: int = 2) -> Report:
    check = Check.of("attributes", findings)  # type: ignore[arg-type] # findings, by the callers
    return Report("team/npu", check.verdict, (check,), pods)


def turned(memory: Memory, found: Report) -> list[str]:
    return [finding.code.value for _, finding in memory.turned(found)]


def test_a_check_that_turns_from_pass_to_fail_is_told_once() -> None:
    memory = Memory()
    assert turned(memory, report()) == []
    assert turned(memory, report(MISSING)) == ["ATTR_MISSING"]
    assert turned(memory, report(MISSING)) == []
    assert turned(memory, report()) == []
    assert turned(memory, report(MISSING)) == ["ATTR_MISSING"]


def test_a_template_that_fails_from_the_start_is_no_news() -> None:
    assert turned(Memory(), report(MISSING)) == []


def test_what_was_unknown_in_between_still_turned_from_its_last_pass() -> None:
    memory = Memory()
    assert turned(memory, report()) == []
    assert turned(memory, report(UNCLEAR)) == []
    assert turned(memory, report(MISSING)) == ["ATTR_MISSING"]


def test_the_series_of_a_template_go_with_it() -> None:
    metrics = MetricSet()
    shown = ClaimMetrics(metrics)
    memory = Memory()
    list(memory.turned(report(MISSING)))
    shown.show(report(MISSING))
    value = metrics.registry.get_sample_value
    labels = {"template": "team/npu", "check": "attributes"}
    assert value("tenure_claims_check_verdict", labels) == 0
    assert value("tenure_claims_capacity_pods", {"template": "team/npu"}) == 2
    for template, checks in memory.gone([]).items():
        shown.forget(template, checks)
    assert value("tenure_claims_check_verdict", labels) is None


def test_a_verdict_is_the_worst_of_its_findings() -> None:
    assert Check.of("x", [UNCLEAR, MISSING]).verdict is Verdict.FAIL
    assert Check.of("x", [UNCLEAR]).verdict is Verdict.UNKNOWN
    assert Check.of("x", []).verdict is Verdict.PASS
