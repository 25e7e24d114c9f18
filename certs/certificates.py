"""The certificate of this process: made or found, trusted by the API server, renewed, and never anybody's worry.

    source ──offer──▶ caBundle merged and read back ──CAs settled──▶ served to new handshakes

A new certificate waits until the caBundle that was read back has led to it for some seconds; the old one is served
meanwhile. One that no longer works is replaced at once. The whole is one step, repeated whenever the CA Secret or
the webhook configuration changes and at least every ten seconds by the time of day, so neither a missed event nor a
clock that jumps can leave it behind.
"""

import asyncio
import random
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

from certs.authority import Authority, Terms
from certs.clients import ClientCertificate
from certs.files import SuppliedFiles
from certs.injector import Injector, NoInjector
from certs.metrics import CertificateMetrics
from certs.secrets import AgreedSecret
from certs.serving import LiveContext
from certs.upkeep import Upkeep
from certs.watching import Watched, watching
from service import api
from service.kube.backoff import Backoff
from service.kube.client import KubeClient
from service.kube.metrics import KubeMetrics
from service.kube.reflector import Reflector
from service.kube.resources import MUTATING_WEBHOOKS, SECRETS
from service.metrics import MetricSet
from service.settings import Settings

# Seconds between two looks when nothing is heard (as cert-manager's authority).
POLL_S: Final = 10.0
# The same while a new certificate waits for its CA to settle.
PENDING_S: Final = 1.0
# Shortest time between two looks, however many events come.
QUIET_S: Final = 0.2
# Pauses after a write or a failure. They grow while somebody undoes our work as fast as we do it, and whoever left it
# alone for the calm time meets the first one again.
FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 10.0
CALM_S: Final = 5.0


def utc_now() -> datetime:
    """The time of day, with its zone."""
    return datetime.now(UTC)


class Certificates:
    """What the composition root needs: contexts for the listeners, a task, and why the process is not ready."""

    def __init__(
        self,
        settings: Settings,
        client: KubeClient,
        *,
        metrics: MetricSet,
        kube_metrics: KubeMetrics,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self._settings = settings
        self._client = client
        self._kube_metrics = kube_metrics
        self._webhook = LiveContext()
        self._extender = LiveContext(demand_client=True) if settings.http.extender_beyond_loopback else None
        self._upkeep = _upkeep(
            settings,
            client,
            contexts=[self._webhook, *([self._extender] if self._extender else [])],
            now=now,
            metrics=CertificateMetrics(metrics),
        )
        self._changed = asyncio.Event()
        self._backoff = Backoff(
            time.monotonic,
            random.SystemRandom(),
            start=FIRST_PAUSE_S,
            cap=LONGEST_PAUSE_S,
            reset_after=CALM_S,
        )

    @property
    def ssl_context(self) -> ssl.SSLContext:
        """For the webhook's listener. The certificate in it changes by itself."""
        return self._webhook.context

    @property
    def extender_context(self) -> ssl.SSLContext | None:
        """For the extender's listener; it demands a client certificate. None where the extender is on loopback."""
        return self._extender.context if self._extender else None

    def unready(self) -> str | None:
        """Why the API server would not get an answer from this process that it trusts; None when it would."""
        return self._upkeep.unready()

    def report(self) -> api.Certificates:
        """For the status page."""
        return self._upkeep.report()

    async def start(self) -> None:
        """Return as soon as there is a certificate to serve. Tries for as long as that takes."""
        await self._upkeep.step()
        while self._upkeep.served is None:
            await asyncio.sleep(self._backoff.next())
            await self._upkeep.step()

    async def run(self) -> None:
        """Keep everything in order for ever: ready or not, leader or not."""
        async with asyncio.TaskGroup() as tasks:
            for name, reflector in self._watches():
                tasks.create_task(reflector.run(), name=name)
            tasks.create_task(self._keep(), name="certificate upkeep")

    async def _keep(self) -> None:
        while True:
            self._changed.clear()
            look = await self._upkeep.step()
            await asyncio.sleep(self._backoff.next() if look.wrote or look.failed else QUIET_S)
            if not look.failed:
                await self._heard(PENDING_S if look.pending else POLL_S)

    async def _heard(self, patience_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await self._changed.wait()

    def _watches(self) -> Iterator[tuple[str, Reflector[Watched]]]:
        client, metrics, changed = self._client, self._kube_metrics, self._changed.set
        certs, namespace = self._settings.certs, self._settings.kube.namespace
        if certs.mode == "self":
            yield (
                "watch the CA Secret",
                watching(
                    client,
                    SECRETS,
                    namespace=namespace,
                    name=certs.secret_name,
                    changed=changed,
                    metrics=metrics,
                ),
            )
        if name := self._settings.webhook.configuration_name:
            yield (
                "watch the webhook configuration",
                watching(
                    client, MUTATING_WEBHOOKS, namespace=None, name=name, changed=changed, metrics=metrics
                ),
            )


def _upkeep(
    settings: Settings,
    client: KubeClient,
    *,
    contexts: list[LiveContext],
    now: Callable[[], datetime],
    metrics: CertificateMetrics,
) -> Upkeep:
    """Put together what the settings ask for."""
    certs, name = settings.certs, settings.webhook.configuration_name
    bundles = (
        Injector(client, name=name, write=certs.inject, clock=time.monotonic, now=now, metrics=metrics)
        if name
        else NoInjector(now)
    )
    if certs.mode == "files":
        files = SuppliedFiles(certs.directory, clients=settings.http.extender_beyond_loopback, now=now)
        return Upkeep(files, bundles, contexts, now=now, metrics=metrics)
    namespace, terms = settings.kube.namespace, Terms.of(settings)
    secret = AgreedSecret(client, namespace=namespace, name=certs.secret_name)
    authority = Authority(secret, terms, published=bundles.settled, now=now, metrics=metrics)
    upkeep = Upkeep(authority, bundles, contexts, now=now, metrics=metrics)
    if certs.client_secret:
        kept = AgreedSecret(client, namespace=namespace, name=certs.client_secret, kind="kubernetes.io/tls")
        clients = ClientCertificate(kept, lifetime=terms.leaf_lifetime, now=now, metrics=metrics)
        upkeep.keep_clients(lambda: clients.agree(authority.held))
    return upkeep
