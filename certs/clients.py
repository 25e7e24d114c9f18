"""The certificate with which a scheduler outside this pod proves that it may call the extender."""

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Final

import structlog

from certs import pki, rollover
from certs.metrics import Certificate, CertificateMetrics
from certs.pki import KeyPair, PkiError, Usage
from certs.rollover import Authorities
from certs.secrets import AgreedSecret, Decision
from service import names

# The data of a Secret of type kubernetes.io/tls, as kube-scheduler's `tlsConfig` wants them: certFile, keyFile, caFile.
CERTIFICATE: Final = "tls.crt"
KEY: Final = "tls.key"
AUTHORITY: Final = "ca.crt"

log = structlog.get_logger(__name__)


class ClientCertificate:
    """One Secret with a client certificate of our CA, kept fresh by whichever replica comes first."""

    def __init__(
        self,
        secret: AgreedSecret,
        *,
        lifetime: timedelta,
        now: Callable[[], datetime],
        metrics: CertificateMetrics,
    ) -> None:
        self._secret = secret
        self._lifetime = lifetime
        self._now = now
        self._metrics = metrics
        metrics.observe(Certificate.CLIENT, lambda: [self.pair.certificate] if self.pair else [], now)
        self.pair: KeyPair | None = None
        """What the Secret held when it was read last."""

    async def agree(self, authorities: Authorities | None) -> bool:
        """Create, adopt or renew; True when it changed. Raises KubeError."""
        if authorities is None:
            return False

        def decide(data: Mapping[str, bytes]) -> Decision[KeyPair]:
            try:
                return Decision(adopted(data, authorities, self._now()))
            except PkiError as error:
                log.info("client certificate made", reason=str(error))
                return self._made(authorities)

        before, self.pair = self.pair, await self._secret.agree(decide)
        return before is not None and before.certificate != self.pair.certificate

    def _made(self, authorities: Authorities) -> Decision[KeyPair]:
        pair = pki.make_leaf(
            authorities.current,
            names=[names.SCHEDULER_NAME],
            lifetime=self._lifetime,
            now=self._now(),
            usage=Usage.CLIENT,
        )
        self._metrics.renewals.labels(Certificate.CLIENT).inc()
        roots = pki.pem(*authorities.trusted)
        return Decision(pair, {CERTIFICATE: pair.certificate_pem, KEY: pair.key_pem, AUTHORITY: roots})


def adopted(data: Mapping[str, bytes], authorities: Authorities, now: datetime) -> KeyPair:
    """The pair in the Secret's data. Raises PkiError with the reason for a new one."""
    pair = pki.read_pair(data.get(CERTIFICATE, b""), data.get(KEY, b""))
    if reason := rollover.leaf_due(pair.certificate, authorities.current.certificate, now):
        raise PkiError(reason)
    if data.get(AUTHORITY) != pki.pem(*authorities.trusted):
        raise PkiError("the CAs are others now")
    return pair
