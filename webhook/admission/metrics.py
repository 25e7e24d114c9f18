"""What admission counts. Series are resolved once: a look-up by label costs as much as the count itself."""

from enum import Enum

from service.metrics import MetricSet
from webhook.admission.draft import Reason


class Outcome(Enum):
    """How a call ended; all after `denied` are failed calls, for which the failure policy decides."""

    ALLOWED = "allowed"
    PATCHED = "patched"
    DENIED = "denied"
    BAD_CALL = "bad_call"
    TOO_LARGE = "too_large"
    GONE = "gone"
    TIMED_OUT = "timed_out"
    FAILED = "failed"


class AdmissionMetrics:
    """The metrics of `POST /admission/pods`."""

    def __init__(self, metrics: MetricSet) -> None:
        requests = metrics.counter(
            "tenure_admission_requests", "Admission calls by outcome.", {"outcome": Outcome}
        )
        refusals = metrics.counter("tenure_admission_refusals", "Refused pods by reason.", {"reason": Reason})
        self.requests = {outcome: requests.labels(outcome.value) for outcome in Outcome}
        self.refusals = {reason: refusals.labels(reason.value) for reason in Reason}
        self.seconds = metrics.histogram(
            "tenure_admission_duration_seconds", "Time from the call's headers to our answer."
        )
        self.stripped = metrics.counter(
            "tenure_admission_stripped_keys", "Forged decision keys that were removed from new pods."
        )
        self.in_flight = metrics.gauge("tenure_admission_in_flight", "Calls whose body is being read.")
