"""Metrics of the checks of claim templates."""

from controllers.claims.report import Report, Verdict
from service.metrics import MetricSet


class ClaimMetrics:
    """The state of each template's checks; series go with the template."""

    def __init__(self, metrics: MetricSet) -> None:
        self._verdict = metrics.gauge(
            "tenure_claims_check_verdict",
            "Outcome of a check of a claim template: 1 pass, 0 fail, -1 unknown.",
            {"template": str, "check": str},
        )
        self._pods = metrics.gauge(
            "tenure_claims_capacity_pods", "Pods that a claim template still serves.", {"template": str}
        )
        self.rounds = metrics.counter("tenure_claims_checks", "Rounds of checks of all claim templates.")
        self.failures = metrics.counter(
            "tenure_claims_check_failures", "Rounds that could not read the cluster."
        )

    def show(self, report: Report) -> None:
        """Set the series of one template."""
        for check in report.checks:
            self._verdict.labels(report.template, check.name).set(_NUMBERS[check.verdict])
        self._pods.labels(report.template).set(report.pods)

    def forget(self, template: str, checks: list[str]) -> None:
        """Remove the series of a template that is gone."""
        for check in checks:
            self._verdict.remove(template, check)
        self._pods.remove(template)


_NUMBERS = {Verdict.PASS: 1, Verdict.FAIL: 0, Verdict.UNKNOWN: -1}
