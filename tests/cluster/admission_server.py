"""The product's webhook in a process of its own, on loopback with a certificate that is thrown away.

Run as a program it serves `POST /admission/pods` through the product's own listener, and `GET /cost`: what the
process has used so far. `python -m tests.cluster.admission_server CERTIFICATE KEY [PORT]` prints its port.
"""

import asyncio
import base64
import contextlib
import json
import os
import resource
import shutil
import ssl
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Coroutine, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from aiohttp import web

from certs.pki import KeyPair, make_ca, make_leaf, pem
from service import logs, loop
from service.http import Address, HttpMetrics, Listener, Name
from service.kube.client import KubeClient
from service.kube.metrics import KubeMetrics
from service.kube.reflector import Reflector
from service.kube.resources import PODS
from service.kube.store import Store
from service.lifecycle import Lifecycle
from service.metrics import MetricSet
from service.objects import Pod
from service.settings import load
from tests.cluster.admission_bare import BARE, bare
from webhook.admission.handler import MAX_BODY_BYTES, PATH, admission_routes

HOST = "127.0.0.1"
LATE = {
    "name": "late",
    "image": "example/late",
    "resources": {
        "limits": {"nvidia.com/vgpu-number": "1"},
        "requests": {"nvidia.com/vgpu-number": "1"},
    },
}
_START_S = 90.0
_STOP_S = 60.0


@dataclass(frozen=True, slots=True)
class Cost:
    """What a process has used: CPU seconds (user and system), and its resident memory now."""

    cpu_s: float
    resident_mib: float
    errors: int
    """Lines that the process wrote to its log: a fault of admission is one, and nothing else should be."""


class Webhook:
    """A running webhook: its address and the authority that its caller must trust."""

    def __init__(self, port: int, ca_pem: bytes, log: Path) -> None:
        self.port = port
        self.ca_pem = ca_pem
        self.log = log
        self.url = f"https://{HOST}:{port}{PATH}"
        self.context = ssl.create_default_context(cadata=ca_pem.decode())

    def cost(self) -> Cost:
        with urllib.request.urlopen(f"https://{HOST}:{self.port}/cost", context=self.context) as answer:
            used = json.load(answer)
        return Cost(used["cpu_s"], used["resident_mib"], len(self.log.read_text().splitlines()))

    def metric(self, name: str, **labels: str) -> float:
        query = json.dumps([name, labels])
        url = f"https://{HOST}:{self.port}/metric"
        request = urllib.request.Request(url, query.encode(), method="POST")
        with urllib.request.urlopen(request, context=self.context) as answer:  # noqa: S310 - loopback
            value: float = json.load(answer)
        return value


@contextlib.contextmanager
def serving(
    *,
    environment: Mapping[str, str] | None = None,
    ca: KeyPair | None = None,
    port: int = 0,
    relisting: bool = False,
) -> Iterator[Webhook]:
    """A webhook process with these settings (`TENURE_SECTION__FIELD`); stopped at the end.

    `relisting`: it lists all pods of the cluster in KUBECONFIG again and again.
    """
    now = datetime.now(UTC)
    authority = ca or make_ca(lifetime=timedelta(days=1), now=now)
    leaf = make_leaf(authority, names=[HOST, "localhost"], lifetime=timedelta(hours=12), now=now)
    folder = Path(tempfile.mkdtemp(prefix="tenure-webhook-"))
    (folder / "tls.crt").write_bytes(leaf.certificate_pem)
    (folder / "tls.key").write_bytes(leaf.key_pem)
    command = [sys.executable, "-m", __name__, str(folder / "tls.crt"), str(folder / "tls.key"), str(port)]
    command += ["relisting"] if relisting else []
    log = folder / "log"
    with (
        log.open("wb") as sink,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=sink, env=dict(os.environ) | dict(environment or {})
        ) as process,
    ):
        try:
            yield Webhook(_port(process, log), pem(authority.certificate), log)
        finally:
            process.terminate()
            process.wait(_STOP_S)
            shutil.rmtree(folder)


def _port(process: "subprocess.Popen[bytes]", log: Path) -> int:
    watchdog = threading.Timer(_START_S, process.kill)
    watchdog.start()
    assert process.stdout is not None
    line = process.stdout.readline()
    watchdog.cancel()
    if not line:
        raise RuntimeError(f"the webhook did not start: {log.read_text()[-2000:]}")
    return int(line)


def _resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


class _Program:
    def __init__(self, certificate: str, key: str, port: str, relisting: str = "") -> None:
        self._metrics = MetricSet()
        self._settings = load()
        self._lifecycle = Lifecycle(self._metrics, drain_s=0)
        self._relists = self._metrics.gauge("tenure_test_relists", "Lists of all pods that were finished.")
        relist = self._lifecycle.task("relist", self._relist, owner="test")
        self._parts = [relist] if relisting else []
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(certificate, key)
        self._listener = Listener(
            Name.WEBHOOK,
            Address(HOST, int(port), "http.webhook"),
            lifecycle=self._lifecycle,
            metrics=HttpMetrics(self._metrics),
            max_body=MAX_BODY_BYTES,
            tls=tls,
        )

    async def run(self) -> int:
        routes = [
            web.get("/cost", self._cost),
            web.post("/metric", self._metric),
            web.post("/inject", self._inject),
            web.post(BARE, bare),
        ]
        await self._listener.open([*admission_routes(self._settings, self._metrics), *routes])
        sys.stdout.write(f"{self._listener.port}\n")
        sys.stdout.flush()
        self._lifecycle.handle_signals()
        return await self._lifecycle.run(self._parts, drained=self._listener.close)

    async def _relist(self) -> None:
        """List all pods with the product's reflector, from the beginning each time."""
        metrics = KubeMetrics(self._metrics)
        client = await KubeClient.connect(self._settings.kube, metrics=metrics)
        while True:
            reflector = Reflector(client, PODS, Pod, Store(), metrics=metrics)
            task = asyncio.create_task(reflector.run(), name="reflector")
            await reflector.wait_synced(60)
            task.cancel()
            self._relists.inc()

    async def _cost(self, _: web.Request) -> web.Response:
        used = resource.getrusage(resource.RUSAGE_SELF)
        resident = await asyncio.to_thread(_resident_mib)
        return web.json_response({"cpu_s": used.ru_utime + used.ru_stime, "resident_mib": resident})

    async def _inject(self, request: web.Request) -> web.Response:
        """A stand-in for a sidecar injector: puts a container that shares a vGPU before all others, once."""
        review = await request.json()
        response: dict[str, Any] = {"uid": review["request"]["uid"], "allowed": True}
        first = review["request"]["object"]["spec"]["containers"][0]["name"]
        if first != LATE["name"]:
            patch = [{"op": "add", "path": "/spec/containers/0", "value": LATE}]
            encoded = base64.b64encode(json.dumps(patch).encode()).decode()
            response |= {"patchType": "JSONPatch", "patch": encoded}
        return web.json_response(
            {key: review[key] for key in ("apiVersion", "kind")} | {"response": response}
        )

    async def _metric(self, request: web.Request) -> web.Response:
        name, labels = await request.json()
        return web.json_response(self._metrics.registry.get_sample_value(name, labels) or 0.0)


def _main(arguments: list[str]) -> int:
    logs.configure(level="warning")
    program: Coroutine[Any, Any, int] = _Program(*arguments).run()
    return loop.run(program)


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
