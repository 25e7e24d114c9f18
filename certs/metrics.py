"""Metrics of the certificates."""

from collections.abc import Callable, Sequence
from datetime import datetime
from enum import StrEnum
from math import nan

from cryptography import x509

from service.metrics import MetricSet


class Certificate(StrEnum):
    """The certificates whose end would be noticed."""

    CA = "ca"
    LEAF = "leaf"
    CLIENT = "client"


class Area(StrEnum):
    """What keeping certificates consists of; each fails on its own."""

    SOURCE = "source"
    """The CA Secret, or the files on disk."""
    INJECTION = "injection"
    """The caBundle of the webhooks."""
    CLIENT = "client"
    """The client certificate for the scheduler."""


class CertificateMetrics:
    """Every metric of this package, made once for a process."""

    def __init__(self, metrics: MetricSet) -> None:
        self.seconds_left = metrics.gauge(
            "tenure_certificate_seconds_left",
            "Seconds until the certificate in use expires; NaN where there is none.",
            {"certificate": Certificate},
        )
        for each in Certificate:
            self.seconds_left.labels(each).set(nan)
        self.trusted = metrics.gauge(
            "tenure_certificate_trusted",
            "1 while the caBundle read back from the API server leads to the certificate served here.",
        )
        self.renewals = metrics.counter(
            "tenure_certificate_renewals",
            "Certificates made or taken into use by this process.",
            {"certificate": Certificate},
        )
        self.injections = metrics.counter(
            "tenure_certificate_injections", "Writes of a caBundle by this process."
        )
        self.errors = metrics.counter(
            "tenure_certificate_errors", "Failed tries to keep certificates in order.", {"area": Area}
        )

    def observe(
        self,
        certificate: Certificate,
        used: Callable[[], Sequence[x509.Certificate]],
        now: Callable[[], datetime],
    ) -> None:
        """Compute the seconds left when somebody asks; of several certificates the first to end counts."""

        def left() -> float:
            ends = [each.not_valid_after_utc for each in used()]
            return (min(ends) - now()).total_seconds() if ends else nan

        self.seconds_left.labels(certificate).set_function(left)
