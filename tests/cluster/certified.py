"""Replicas that answer admission with the product's certificates, and an API server that calls them.

Every answer closes its connection, so each admission is a new TLS handshake: the API server verifies each time what
is served then against the caBundle that it knows then.
"""

import asyncio
import ssl
import time
from base64 import b64decode
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web
from cryptography import x509
from prometheus_client import CollectorRegistry

from certs import bundle
from certs.certificates import Certificates, utc_now
from service.kube.client import KubeClient
from service.kube.errors import KubeError
from service.kube.metrics import KubeMetrics
from service.kube.resources import MUTATING_WEBHOOKS, SECRETS, Resource
from service.metrics import MetricSet
from service.settings import CertSettings, HttpSettings, KubeSettings, Settings, WebhookSettings
from tests.lab import Lab
from tests.lab.api import Call

HOST = "127.0.0.1"
PATH = "/admission/pods"
SECONDS = 5.0
"""What "within seconds" means in these tests. A poll alone, without a watch, would take up to ten."""
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap", namespaced=True)
CA_SECRET = CertSettings().secret_name


@dataclass(slots=True)
class Replica:
    """One process of the product, as far as certificates go."""

    certificates: Certificates
    registry: CollectorRegistry
    port: int
    calls: int = 0

    def metric(self, name: str, **labels: str) -> float:
        value = self.registry.get_sample_value(f"tenure_certificate_{name}", labels)
        assert value is not None, name
        return value


@dataclass(frozen=True, slots=True)
class Cluster:
    """A namespace whose ConfigMaps are admitted by the replicas, and a webhook configuration of its own."""

    lab: Lab
    client: KubeClient
    namespace: str

    @property
    def configuration(self) -> str:
        return f"tenure-{self.namespace}"

    def settings(
        self,
        *,
        kubeconfig: Path | None = None,
        certs: Mapping[str, Any] | None = None,
        http: Mapping[str, Any] | None = None,
    ) -> Settings:
        return Settings(
            kube=KubeSettings(kubeconfig=kubeconfig or self.lab.kubeconfig, namespace=self.namespace),
            webhook=WebhookSettings(configuration_name=self.configuration),
            certs=CertSettings(**{"names": (HOST,), **(certs or {})}),
            http=HttpSettings(**(http or {})),
        )

    @asynccontextmanager
    async def replica(
        self, settings: Settings | None = None, *, now: Callable[[], datetime] = utc_now
    ) -> AsyncIterator[Replica]:
        """A replica that serves and keeps its certificate in order, until the end."""
        settings, metrics = settings or self.settings(), MetricSet()
        kube_metrics = KubeMetrics(metrics)
        async with AsyncExitStack() as stack:
            client = await KubeClient.connect(settings.kube, metrics=kube_metrics)
            stack.push_async_callback(client.close)
            made = Certificates(settings, client, metrics=metrics, kube_metrics=kube_metrics, now=now)
            await made.start()
            replica = Replica(made, metrics.registry, port=0)
            runner = await _listening(replica)
            stack.push_async_callback(runner.cleanup)
            task = asyncio.create_task(made.run(), name="certificates")
            stack.push_async_callback(_ended, task)
            yield replica

    async def register(self, ports: Sequence[int], *, bundles: Sequence[str | None] = ()) -> None:
        """One webhook for each port, as an installer applies them; without `bundles` no caBundle at all."""
        webhooks = [
            {
                "name": f"w{number}.tenure.dev",
                "clientConfig": {"url": f"https://{HOST}:{port}{PATH}"}
                | ({"caBundle": text} if (text := dict(enumerate(bundles)).get(number)) is not None else {}),
                "rules": [
                    {
                        "apiGroups": [""],
                        "apiVersions": ["v1"],
                        "operations": ["CREATE"],
                        "resources": ["configmaps"],
                    }
                ],
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": self.namespace}},
                "failurePolicy": "Fail",
                "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
                "timeoutSeconds": 30,  # Certificates are on trial, not how busy the machine is.
            }
            for number, port in enumerate(ports)
        ]
        await self.apply(
            {
                "apiVersion": MUTATING_WEBHOOKS.api_version,
                "kind": MUTATING_WEBHOOKS.kind,
                "metadata": {"name": self.configuration},
                "webhooks": webhooks,
            }
        )

    async def apply(self, body: Mapping[str, Any]) -> None:
        """Server-side, as somebody else, who takes over whatever is in conflict."""
        path = f"{MUTATING_WEBHOOKS.path(name=self.configuration)}?fieldManager=somebody&force=true"
        call = Call("PATCH", path, body, "application/apply-patch+yaml")
        await asyncio.to_thread(self.lab.api.ok, call)

    async def registered(self) -> dict[str, Any]:
        body = await self.client.get(MUTATING_WEBHOOKS.path(name=self.configuration))
        return msgspec.json.decode(body, type=dict[str, Any])

    async def bundles(self) -> list[bytes]:
        """The caBundle of each webhook."""
        webhooks = (await self.registered())["webhooks"]
        return [b64decode(webhook["clientConfig"].get("caBundle", "")) for webhook in webhooks]

    async def trusted(self) -> list[set[x509.Certificate]]:
        return [set(bundle.read(text).certificates) for text in await self.bundles()]

    async def secret(self, name: str = CA_SECRET) -> dict[str, bytes]:
        """The data of a Secret."""
        body = msgspec.json.decode(await self.client.get(SECRETS.path(self.namespace, name)))
        return {key: b64decode(value) for key, value in (body.get("data") or {}).items()}

    async def admit(self) -> str | None:
        """Create a ConfigMap, without keeping it; why it was refused, or None."""
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "c-"}}
        try:
            await self.client.create(CONFIG_MAPS.path(self.namespace), body, params={"dryRun": "All"})
        except KubeError as error:
            return str(error)
        return None


async def served_leaf(replica: Replica) -> x509.Certificate:
    """What a client gets who asks now, and who trusts everybody."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    _, writer = await asyncio.open_connection(HOST, replica.port, ssl=context)
    try:
        der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    finally:
        writer.close()
        await writer.wait_closed()
    return x509.load_der_x509_certificate(der)


@dataclass(slots=True)
class Load:
    """Admissions one after the other, and those that failed."""

    admitted: int = 0
    failed: list[str] = field(default_factory=list)


@asynccontextmanager
async def admissions(cluster: Cluster, *, pause_s: float = 0.05) -> AsyncIterator[Load]:
    """Admit all the time."""
    load = Load()

    async def go() -> None:
        while True:
            if failure := await cluster.admit():
                load.failed.append(f"{utc_now().isoformat()} {failure}")
            else:
                load.admitted += 1
            await asyncio.sleep(pause_s)

    task = asyncio.create_task(go(), name="admissions")
    try:
        yield load
    finally:
        await _ended(task)


@asynccontextmanager
async def cluster_of(lab: Lab, namespace: str) -> AsyncIterator[Cluster]:
    """The webhook configuration goes at the end, before it can hinder anybody."""
    settings = KubeSettings(kubeconfig=lab.kubeconfig, deadline_s=60)
    client = await KubeClient.connect(settings, metrics=KubeMetrics(MetricSet()))
    cluster = Cluster(lab, client, namespace)
    try:
        yield cluster
    finally:
        path = MUTATING_WEBHOOKS.path(name=cluster.configuration)
        await asyncio.to_thread(lab.api.request, Call("DELETE", path))
        await client.close()


async def eventually(check: Callable[[], Any], *, within: float) -> Any:
    """The first true answer of `check`, which may be a coroutine function. Seconds."""
    deadline = time.monotonic() + within
    while True:
        answer = check()
        if asyncio.iscoroutine(answer):
            answer = await answer
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {within} s, last answer {answer!r}")
        await asyncio.sleep(0.05)


async def _listening(replica: Replica) -> web.AppRunner:
    async def answer(request: web.Request) -> web.Response:
        replica.calls += 1
        uid = (await request.json())["request"]["uid"]
        review = {
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "response": {"uid": uid, "allowed": True},
        }
        response = web.json_response(review)
        response.force_close()
        return response

    app = web.Application()
    app.router.add_post(PATH, answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, HOST, 0, ssl_context=replica.certificates.ssl_context)
    await site.start()
    replica.port = runner.addresses[0][1]
    return runner


async def _ended(task: "asyncio.Task[None]") -> None:
    """Cancel; a task that ended by itself before says why."""
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def ready(*replicas: Replica, within: float = SECONDS) -> None:
    for certificates in (replica.certificates for replica in replicas):
        await eventually(partial(_trusted, certificates), within=within)


def _trusted(certificates: Certificates) -> bool:
    return certificates.unready() is None


async def admitted(cluster: Cluster) -> None:
    """Within seconds: the API server learns a caBundle through its own watch."""
    await eventually(lambda: equals(cluster.admit, None), within=SECONDS)


def served_two(*replicas: Replica) -> bool:
    return all(replica.metric("renewals_total", certificate="leaf") == 2 for replica in replicas)


async def equals(read: Callable[[], Awaitable[object]], wanted: object) -> bool:
    return bool(await read() == wanted)
