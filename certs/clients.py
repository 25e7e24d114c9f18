"""The certificate with which a scheduler outside this pod proves that it may call the extender."""

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Final

import structlog
from cryptography import x509

from certs import pki, reading, rollover
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

        def decide(data: Mapping[str, bytes]) -> Decision[tuple[KeyPair, str | None]]:
            try:
                return Decision((adopted(data, authorities, self._now()), None))
            except PkiError as error:
                return self._made(authorities, str(error))

        before = self.pair
        pair, reason = await self._secret.agree(decide)
        self.pair = pair
        if reason:
            self._metrics.renewals.labels(Certificate.CLIENT).inc()
            log.info("client certificate made", reason=reason)
        return before is not None and before.certificate != pair.certificate

    def _made(self, authorities: Authorities, reason: str) -> Decision[tuple[KeyPair, str | None]]:
        pair = pki.make_leaf(
            authorities.current,
            names=[names.SCHEDULER_NAME],
            lifetime=self._lifetime,
            now=self._now(),
            usage=Usage.CLIENT,
        )
        roots = pki.pem(*authorities.trusted)
        data = {CERTIFICATE: pair.certificate_pem, KEY: pair.key_pem, AUTHORITY: roots}
        return Decision((pair, reason), data)


def adopted(data: Mapping[str, bytes], authorities: Authorities, now: datetime) -> KeyPair:
    """The pair in the Secret's data. Raises PkiError with the reason for a new one."""
    pair = pki.read_pair(data.get(CERTIFICATE, b""), data.get(KEY, b""))
    if reason := rollover.leaf_due(pair.certificate, authorities.current.certificate, now):
        raise PkiError(reason)
    usage = reading.extension(pair.certificate, x509.ExtendedKeyUsage)
    if usage is None or Usage.CLIENT.value not in usage:
        raise PkiError("the certificate is not for clients")
    if data.get(AUTHORITY) != pki.pem(*authorities.trusted):
        raise PkiError("the CAs are others now")
    return pair
