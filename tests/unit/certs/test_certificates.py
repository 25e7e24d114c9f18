"""The whole, where no API server answers: it waits, says why, and is never the end of the process."""

import asyncio
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from certs.certificates import Certificates
from service.kube.client import KubeClient
from service.kube.metrics import KubeMetrics
from service.metrics import MetricSet
from service.settings import CertSettings, HttpSettings, KubeSettings, Settings
from tests.unit.certs import made
from tests.unit.certs.made import NOW
from tests.unit.certs.test_supplied import files

NOWHERE = """
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
users: [{name: u, user: {token: t}}]
current-context: c
"""


def settings(
    folder: Path, *, certs: CertSettings | None = None, http: HttpSettings | None = None
) -> Settings:
    (folder / "kubeconfig").write_text(NOWHERE)
    kube = KubeSettings(kubeconfig=folder / "kubeconfig")
    return Settings(kube=kube, certs=certs or CertSettings(), http=http or HttpSettings())


async def certificates(
    chosen: Settings, registry: CollectorRegistry | None = None
) -> tuple[Certificates, KubeClient]:
    metrics = MetricSet(registry)
    kube_metrics = KubeMetrics(metrics)
    client = await KubeClient.connect(chosen.kube, metrics=kube_metrics)
    return Certificates(chosen, client, metrics=metrics, kube_metrics=kube_metrics, now=lambda: NOW), client


async def test_a_start_without_an_api_server_waits_and_says_why(tmp_path: Path) -> None:
    found, client = await certificates(settings(tmp_path))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await found.start()
    assert "127.0.0.1:1" in str(found.unready())
    await client.close()


async def test_supplied_files_serve_without_an_api_server(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    ca = made.ca()
    for name, text in files(made.leaf(ca, "a"), ca).items():
        (tmp_path / name).write_bytes(text)
    chosen = settings(tmp_path, certs=CertSettings(mode="files", directory=tmp_path))
    found, client = await certificates(chosen, registry)
    await found.start()
    assert str(found.unready()).startswith("the webhook configuration has not been read yet (")
    running = asyncio.create_task(found.run())
    await asyncio.sleep(1)
    assert not running.done()
    running.cancel()
    errors = registry.get_sample_value("tenure_certificate_errors_total", {"area": "injection"})
    assert errors is not None
    assert errors >= 2
    await client.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "10.0.0.1", "fd00::1", "extender.example"])
async def test_an_extender_beyond_loopback_demands_a_client_certificate(tmp_path: Path, host: str) -> None:
    chosen = settings(tmp_path, certs=CertSettings(client_secret="c"), http=HttpSettings(extender_host=host))
    found, client = await certificates(chosen)
    assert (found.extender_context is None) == (host in {"127.0.0.1", "::1", "localhost"})
    await client.close()
