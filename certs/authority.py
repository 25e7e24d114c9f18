"""Certificates of our own: a CA in a Secret, shared by all replicas without a leader, and a leaf in this process only.

After cert-manager's dynamic authority and source (pkg/server/tls).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import structlog
from cryptography import x509

from certs import pki, reading, rollover
from certs.metrics import Certificate, CertificateMetrics
from certs.pki import KeyPair
from certs.rollover import Authorities, Held, Plan
from certs.secrets import AgreedSecret, Decision
from certs.source import Offer
from service.settings import Settings

# DNS labels of a Service, from the one that its own namespace uses to the one that the API server uses.
_SERVICE_NAMES: Final = ("{service}.{namespace}.svc", "{service}.{namespace}", "{service}")

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Terms:
    """What certificates are made of."""

    names: tuple[str, ...]
    ca_lifetime: timedelta
    leaf_lifetime: timedelta

    @classmethod
    def of(cls, settings: Settings) -> "Terms":
        """The names of the Service and those added by the settings."""
        certs, namespace = settings.certs, settings.kube.namespace
        service = [name.format(service=certs.service, namespace=namespace) for name in _SERVICE_NAMES]
        return cls(
            names=tuple(dict.fromkeys([*service, *certs.names])),
            ca_lifetime=timedelta(seconds=certs.ca_lifetime_s),
            leaf_lifetime=timedelta(seconds=certs.leaf_lifetime_s),
        )


class Authority:
    """The CA, and leaves signed by it.

    `published` says whether every caBundle has held a CA long enough to sign with it.
    """

    def __init__(
        self,
        secret: AgreedSecret,
        terms: Terms,
        *,
        published: Callable[[x509.Certificate], bool],
        now: Callable[[], datetime],
        metrics: CertificateMetrics,
    ) -> None:
        self._secret = secret
        self._terms = terms
        self._published = published
        self._now = now
        self._metrics = metrics
        self.held: Authorities | None = None
        """What the Secret held when it was read last."""
        self._leaf: KeyPair | None = None

    async def offer(self) -> Offer:
        """A leaf of the current CA. Raises KubeError when the Secret cannot be read or put in order."""
        held = self.held = await self._agreed()
        leaf = self._signed(held.current)
        return Offer(
            pair=leaf,
            roots=(held.current.certificate,),
            trusted=held.trusted,
            clients=held.trusted,
            retired=held.retired(leaf_lifetime=self._terms.leaf_lifetime, now=self._now()),
        )

    async def _agreed(self) -> Authorities:
        """Create, adopt, repair or roll over: whatever is due, whoever of the replicas gets there first."""

        def decide(data: Mapping[str, bytes]) -> Decision[Plan]:
            now, lifetime = self._now(), self._terms.ca_lifetime
            plan = rollover.plan(Held.read(data, now), now=now, lifetime=lifetime, published=self._published)
            return Decision(plan, plan.to.data() if plan.reason else None)

        plan = await self._secret.agree(decide)
        if plan.reason:
            self._metrics.renewals.labels(Certificate.CA).inc()
            log.info("CA changed", reason=plan.reason, current=reading.described(plan.to.current.certificate))
        return plan.to

    def _signed(self, ca: KeyPair) -> KeyPair:
        """The leaf that we have, or a new one."""
        leaf, terms, now = self._leaf, self._terms, self._now()
        reason = rollover.leaf_due(leaf.certificate, ca.certificate, now) if leaf else "there is none yet"
        if leaf is None or reason:
            self._leaf = leaf = pki.make_leaf(ca, names=terms.names, lifetime=terms.leaf_lifetime, now=now)
            log.info("leaf made", reason=reason, issuer=reading.described(ca.certificate))
        return leaf
