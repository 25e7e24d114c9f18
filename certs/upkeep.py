"""One look after the certificate: what is offered, whether the API server would trust it, and what is served."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

import msgspec
import structlog
from cryptography import x509

from certs import reading
from certs.metrics import Area, Certificate, CertificateMetrics
from certs.pki import KeyPair, PkiError
from certs.serving import LiveContext
from certs.source import Offer, Retired, Source
from service import api
from service.kube.errors import KubeError

log = structlog.get_logger(__name__)

# What a step survives: then the certificate in use goes on, and the next step tries again.
_TROUBLE = (KubeError, PkiError, OSError, msgspec.MsgspecError)


Work = Callable[[], Awaitable[bool]]
"""A part of a step; True when it changed something at the API server."""


class CaBundles(Protocol):
    """Whom the API server trusts when it calls us; `Injector` says what each method promises."""

    async def agree(self, ours: Sequence[x509.Certificate], *, retired: Retired) -> bool:
        """Make it trust `ours`; True when something had to be written."""
        ...

    def distrust(self, pair: KeyPair, *, settled: bool = False) -> str | None:
        """Why it would refuse the certificate."""
        ...


@dataclass(frozen=True, slots=True)
class Look:
    """What a step found: `wrote` to the API server, `failed` in part, or a certificate is `pending`."""

    wrote: bool
    failed: bool
    pending: bool


class Upkeep:
    """The certificate that is served, and the one that is to follow."""

    def __init__(
        self,
        source: Source,
        bundles: CaBundles,
        contexts: Sequence[LiveContext],
        *,
        now: Callable[[], datetime],
        metrics: CertificateMetrics,
    ) -> None:
        """`contexts` all serve the same certificate."""
        self._source = source
        self._bundles = bundles
        self._contexts = contexts
        self._now = now
        self._metrics = metrics
        self._work: dict[Area, Work] = {Area.SOURCE: self._ask, Area.INJECTION: self._inject}
        self._troubles: dict[Area, str] = {}
        self._seen = False
        """Whether the API server's trust was read after the offer."""
        self.offer: Offer | None = None
        self.served: Offer | None = None
        metrics.observe(Certificate.LEAF, lambda: [self.served.pair.certificate] if self.served else [], now)
        metrics.observe(Certificate.CA, lambda: self.offer.roots if self.offer else [], now)
        metrics.trusted.set_function(lambda: float(self.unready() is None))

    def keep_clients(self, work: Work) -> None:
        """Also keep a client certificate in each step."""
        self._work[Area.CLIENT] = work

    async def step(self) -> Look:
        """Look once. A part that fails does not keep the others from their work."""
        wrote = False
        for area, work in self._work.items():
            wrote |= await self._guarded(area, work)
        pending = (
            self.offer is not None and self.served is not None and self.offer.pair is not self.served.pair
        )
        return Look(wrote=wrote, failed=bool(self._troubles), pending=pending)

    def unready(self) -> str | None:
        """Why the API server would not get an answer from us that it trusts; None when it would."""
        if self.served is None:
            return self._troubles.get(Area.SOURCE, "there is no certificate yet")
        reason = self._bundles.distrust(self.served.pair)
        trouble = self._troubles.get(Area.INJECTION)
        return f"{reason} ({trouble})" if reason and trouble else reason

    def report(self) -> api.Certificates:
        """For the status page."""
        roots = self.offer.roots if self.offer else ()
        coming = [ca for ca in (self.offer.trusted if self.offer else ()) if ca not in roots]
        pairs = {
            "webhook": [self.served.pair.certificate] if self.served else [],
            "CA": roots,
            "next CA": coming,
        }
        refused = self.offer.refused if self.offer else None
        return api.Certificates(
            certificates=tuple(_line(purpose, each) for purpose, found in pairs.items() for each in found),
            distrust=self.unready(),
            troubles=(*self._troubles.values(), *([refused] if refused else [])),
        )

    async def _guarded(self, area: Area, work: Work) -> bool:
        try:
            wrote = await work()
            self._take()
        except _TROUBLE as error:
            self._metrics.errors.labels(area).inc()
            if self._troubles.get(area) != str(error):
                log.warning("certificates cannot be kept in order", area=area, error=str(error))
            self._troubles[area] = str(error)
            return False
        if self._troubles.pop(area, None) is not None:
            log.info("certificates are kept in order again", area=area)
        return wrote

    async def _ask(self) -> bool:
        self._seen = False
        before, self.offer = self.offer, await self._source.offer()
        self._metrics.errors.labels(Area.SOURCE).inc(self.offer.refused is not None)
        return before is not None and before.trusted != self.offer.trusted

    async def _inject(self) -> bool:
        if self.offer is None:
            return False
        # What is served goes on being trusted, whatever became of its CA at the source.
        wanted = dict.fromkeys([*self.offer.trusted, *(self.served.roots if self.served else ())])
        now = self._now()
        lasting = [ca for ca in wanted if now < ca.not_valid_after_utc]
        wrote = await self._bundles.agree(lasting, retired=self.offer.retired)
        self._seen = True
        return wrote

    def _take(self) -> None:
        offer, served = self.offer, self.served
        if offer is None:
            return
        for context in self._contexts:
            context.trust(offer.clients)
        if served is None or (offer.pair is not served.pair and self._may_follow(offer, served)):
            self._serve(offer)

    def _may_follow(self, offer: Offer, served: Offer) -> bool:
        """Only when every API server trusts the new one by now, or when there is nothing to lose.

        What was read before the offer does not tell: since then another replica may have seen to it that the API
        server trusts what we serve.
        """
        bundles = self._bundles
        if not self._seen:
            return reading.outside_validity(served.pair.certificate, self._now()) is not None
        return bool(bundles.distrust(served.pair)) or not bundles.distrust(offer.pair, settled=True)

    def _serve(self, offer: Offer) -> None:
        for context in self._contexts:
            context.serve(offer.pair)
        self.served = offer
        self._metrics.renewals.labels(Certificate.LEAF).inc()
        end = offer.pair.certificate.not_valid_after_utc
        log.info("certificate served", expires=end.isoformat(timespec="seconds"))


def _line(purpose: str, certificate: x509.Certificate) -> api.Certificate:
    end = certificate.not_valid_after_utc.isoformat(timespec="seconds")
    return api.Certificate(purpose=purpose, name=reading.described(certificate), expires=end)
