"""A MutatingWebhookConfiguration as far as certificates go: what each webhook calls, and whom it trusts. No I/O."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

import msgspec
from cryptography import x509

from certs import bundle, chain
from certs.pki import KeyPair
from service.kube.resources import MUTATING_WEBHOOKS
from service.objects import ObjectMeta, Projection


class ServiceReference(Projection, frozen=True):
    """admissionregistration/v1 ServiceReference."""

    name: str = ""
    namespace: str = ""


class ClientConfig(Projection, frozen=True):
    """admissionregistration/v1 WebhookClientConfig: `url` or `service`. `ca_bundle` is any bytes at all."""

    url: str | None = None
    service: ServiceReference | None = None
    ca_bundle: bytes | None = None

    @property
    def host(self) -> str:
        """The name for which the API server verifies our certificate."""
        if self.service is not None:
            return f"{self.service.name}.{self.service.namespace}.svc"
        return urlsplit(self.url or "").hostname or ""


class Webhook(Projection, frozen=True):
    """One entry."""

    name: str = ""
    client_config: ClientConfig = ClientConfig()


class Registration(Projection, frozen=True):
    """The whole configuration."""

    metadata: ObjectMeta = ObjectMeta()
    webhooks: tuple[Webhook, ...] = ()


@dataclass(frozen=True, slots=True)
class Entry:
    """What one webhook calls and whom it trusts."""

    name: str
    host: str
    roots: tuple[x509.Certificate, ...]

    def distrust(
        self, pair: KeyPair, *, now: datetime, among: Callable[[x509.Certificate], bool] = lambda _: True
    ) -> str | None:
        """Why the API server would refuse the certificate for this webhook, were there only the roots in `among`."""
        roots = [root for root in self.roots if among(root)]
        reason = chain.distrust(pair, roots=roots, host=self.host, now=now)
        return reason and f"webhook {self.name}: {reason}"


@dataclass(frozen=True, slots=True)
class Injection:
    """A server-side apply of every caBundle, and what it leaves out: by webhook, the reasons."""

    body: Mapping[str, Any]
    dropped: Mapping[str, tuple[str, ...]]


def decode(body: bytes) -> Registration:
    """Raises msgspec.MsgspecError."""
    return msgspec.json.decode(body, type=Registration)


def entries(registration: Registration) -> tuple[Entry, ...]:
    """What each webhook calls and trusts."""
    return tuple(
        Entry(
            name=webhook.name,
            host=webhook.client_config.host,
            roots=bundle.read(webhook.client_config.ca_bundle or b"").certificates,
        )
        for webhook in registration.webhooks
    )


def injection(
    registration: Registration,
    ours: Collection[x509.Certificate],
    *,
    now: datetime,
    retired: Callable[[x509.Certificate], bool],
) -> Injection | None:
    """The apply that puts `ours` into every caBundle; None when no caBundle has to change.

    It names every webhook, also those that stay as they are: what an apply leaves out, its manager gives up. The
    resourceVersion in it makes a merge with a bundle that somebody changed meanwhile a conflict.
    """
    merges = {
        webhook.name: bundle.merge(webhook.client_config.ca_bundle or b"", ours, now=now, retired=retired)
        for webhook in registration.webhooks
    }
    if all(merges[w.name].pem == (w.client_config.ca_bundle or b"") for w in registration.webhooks):
        return None
    meta = registration.metadata
    body = {
        "apiVersion": MUTATING_WEBHOOKS.api_version,
        "kind": MUTATING_WEBHOOKS.kind,
        "metadata": {"name": meta.name, "resourceVersion": meta.resource_version},
        "webhooks": [
            {"name": name, "clientConfig": {"caBundle": merge.pem}} for name, merge in merges.items()
        ],
    }
    return Injection(body, {name: merge.dropped for name, merge in merges.items() if merge.dropped})
