"""Keeps our CAs in the caBundle of every webhook of ours, and remembers what was read back and since when."""

from collections.abc import Callable, Collection
from datetime import datetime
from typing import Final

import structlog
from cryptography import x509

from certs import reading, registration
from certs.metrics import CertificateMetrics
from certs.pki import KeyPair
from certs.registration import Entry, Registration
from certs.source import Retired
from service import names
from service.kube.client import KubeClient, PatchKind
from service.kube.errors import Conflict, NotFound
from service.kube.resources import MUTATING_WEBHOOKS

# Seconds that a CA has been in the caBundle before a certificate of it replaces one that still works: each API
# server learns the bundle by a watch of its own, usually within a second, and none of them says when.
SETTLE_S: Final = 10.0
# Writes within one call; who takes our CA out faster than this is met again later, with growing pauses.
_ROUNDS: Final = 3

log = structlog.get_logger(__name__)


class NoInjector:
    """No webhook configuration is ours to look at: every CA counts as trusted."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now

    async def agree(self, ours: Collection[x509.Certificate], *, retired: Retired) -> bool:  # noqa: ARG002 - as below
        """Nothing to write."""
        return False

    def settled(self, ca: x509.Certificate) -> bool:  # noqa: ARG002 - as below
        """Always."""
        return True

    def distrust(self, pair: KeyPair, *, settled: bool = False) -> str | None:  # noqa: ARG002 - as below
        """Only time can be judged."""
        return reading.outside_validity(pair.certificate, self._now())


class Injector:
    """The caBundles of one MutatingWebhookConfiguration.

    `write` off: somebody else injects and we only read. `clock` in seconds that only go forward, `now` is the time
    of day with its zone.
    """

    def __init__(
        self,
        client: KubeClient,
        *,
        name: str,
        write: bool,
        clock: Callable[[], float],
        now: Callable[[], datetime],
        metrics: CertificateMetrics,
    ) -> None:
        self._client = client
        self._path = MUTATING_WEBHOOKS.path(name=name)
        self._name = name
        self._write = write
        self._clock = clock
        self._now = now
        self._metrics = metrics
        self._entries: tuple[Entry, ...] = ()
        self._why = "the webhook configuration has not been read yet"
        self._since: dict[x509.Certificate, float] = {}

    async def agree(self, ours: Collection[x509.Certificate], *, retired: Retired) -> bool:
        """Merge `ours` into every caBundle and read back; True when something had to be written. Raises KubeError."""
        for wrote in range(_ROUNDS):
            found = await self._read()
            self._remember(found)
            change = None
            if found is not None and self._write and wrote < _ROUNDS - 1:
                change = registration.injection(found, ours, now=self._now(), retired=retired)
            if change is None:
                return wrote > 0
            await self._apply(change)
        raise AssertionError("the last round never writes")

    async def _read(self) -> Registration | None:
        try:
            return registration.decode(await self._client.get(self._path))
        except NotFound:
            return None

    async def _apply(self, change: registration.Injection) -> None:
        manager = names.CERTS_FIELD_MANAGER
        try:
            await self._client.patch(
                self._path, change.body, kind=PatchKind.APPLY, field_manager=manager, force=True
            )
        except Conflict:
            return  # Changed since we read it: the next round reads it again.
        self._metrics.injections.inc()
        log.info("caBundle written", configuration=self._name)
        for webhook, reasons in change.dropped.items():
            log.warning("parts of the caBundle dropped", webhook=webhook, dropped=list(reasons))

    def _remember(self, found: Registration | None) -> None:
        self._entries = registration.entries(found) if found else ()
        self._why = (
            f"MutatingWebhookConfiguration {self._name} has no webhooks"
            if found
            else f"there is no MutatingWebhookConfiguration {self._name}"
        )
        everywhere = [set(entry.roots) for entry in self._entries]
        present = set.intersection(*everywhere) if everywhere else set()
        now = self._clock()
        self._since = {ca: self._since.get(ca, now) for ca in present}

    def settled(self, ca: x509.Certificate) -> bool:
        """Whether every caBundle has held the CA for long enough."""
        since = self._since.get(ca)
        return since is not None and self._clock() - since >= SETTLE_S

    def distrust(self, pair: KeyPair, *, settled: bool = False) -> str | None:
        """Why the API server would refuse the certificate, by what was read back; None when it would not.

        With `settled` only CAs count that every API server has learned by now. What holds only a few minutes later
        counts as if it held now.
        """
        if not self._entries:
            return self._why
        among = self.settled if settled else lambda _: True
        for entry in self._entries:
            now = self._now()
            reason = entry.distrust(pair, now=now, among=among)
            if reason and entry.distrust(pair, now=now + reading.TOLERANCE, among=among):
                return reason
        return None
