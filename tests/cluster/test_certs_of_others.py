"""Certificates that others supply, and the client certificate for a scheduler outside the pod, on the real cluster."""

import asyncio
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from certs import pki
from certs.certificates import utc_now
from certs.pki import KeyPair, pem
from service.kube.client import PatchKind
from service.kube.resources import SECRETS
from tests.cluster.certified import (
    HOST,
    SECONDS,
    Cluster,
    Replica,
    admissions,
    admitted,
    cluster_of,
    eventually,
    ready,
    served_two,
)
from tests.lab import Lab
from tests.lab.api import Call
from tests.lab.simulated import SimulatedNode
from tests.unit.certs import made
from tests.unit.certs.tls import handshake

CLIENT_SECRET = "scheduler-client"
EVERYWHERE = "0.0.0.0"  # noqa: S104 - a setting; the test listens nowhere
OTHER = made.ca("Other", begin=utc_now() - made.DAY, end=utc_now() + made.YEAR)


@pytest.fixture(name="cluster")
async def _cluster(lab: Lab, namespace: str) -> AsyncIterator[Cluster]:
    async with cluster_of(lab, namespace) as cluster:
        yield cluster


class TestSuppliedFiles:
    """Mode files: cert-manager, or a person."""

    @staticmethod
    def supply(folder: Path, ca: KeyPair, *, also: Sequence[KeyPair] = ()) -> None:
        leaf = made.leaf(ca, HOST, begin=utc_now() - made.DAY, end=utc_now() + made.DAY)
        (folder / "tls.key").write_bytes(leaf.key_pem)
        (folder / "tls.crt").write_bytes(leaf.certificate_pem)
        (folder / "ca.crt").write_bytes(pem(*(each.certificate for each in (ca, *also))))

    async def test_a_ca_from_the_future_is_kept_out_until_its_time_comes(
        self, cluster: Cluster, tmp_path: Path
    ) -> None:
        """Field case F6, on a clock of our own; the API server's clock is not asked."""
        ahead = [timedelta()]
        coming = made.ca("Coming", begin=utc_now() + timedelta(hours=3), end=utc_now() + made.YEAR)
        self.supply(tmp_path, OTHER)
        settings = cluster.settings(certs={"mode": "files", "directory": tmp_path})
        async with cluster.replica(settings, now=lambda: utc_now() + ahead[0]) as replica:
            await cluster.register([replica.port])
            await ready(replica)
            await admitted(cluster)
            self.supply(tmp_path, coming)
            await eventually(lambda: replica.metric("errors_total", area="source") > 0, within=15)
            assert await cluster.trusted() == [{OTHER.certificate}]
            assert replica.certificates.unready() is None
            ahead[0] = timedelta(hours=3)
            await eventually(lambda: served_two(replica), within=30)
            assert await cluster.trusted() == [{OTHER.certificate, coming.certificate}]
            assert replica.certificates.unready() is None

    async def test_new_files_are_served_without_a_failed_admission(
        self, cluster: Cluster, tmp_path: Path
    ) -> None:
        second = made.ca("Second", begin=utc_now() - made.DAY, end=utc_now() + made.YEAR)
        self.supply(tmp_path, OTHER)
        settings = cluster.settings(certs={"mode": "files", "directory": tmp_path})
        async with cluster.replica(settings) as replica:
            await cluster.register([replica.port])
            await ready(replica)
            await admitted(cluster)
            async with admissions(cluster) as load:
                self.supply(tmp_path, second)
                await eventually(lambda: served_two(replica), within=40)
                calls = replica.calls
                await eventually(lambda: replica.calls > calls + 3, within=SECONDS)
        assert load.failed == []

    async def test_where_another_injector_is_at_work_we_wait_for_it_and_write_nothing(
        self, cluster: Cluster, tmp_path: Path
    ) -> None:
        self.supply(tmp_path, OTHER)
        settings = cluster.settings(certs={"mode": "files", "directory": tmp_path, "inject": False})
        async with cluster.replica(settings) as replica:
            await cluster.register([replica.port])
            await eventually(
                lambda: "there is no CA to trust" in str(replica.certificates.unready()), within=SECONDS
            )
            await cluster.register([replica.port], bundles=[b64encode(OTHER.certificate_pem).decode()])
            await ready(replica)
            await admitted(cluster)
            assert replica.metric("injections_total") == 0


class TestAnExtenderBeyondLoopback:
    async def test_lets_in_only_who_has_the_client_certificate_from_the_secret(
        self, cluster: Cluster, tmp_path: Path
    ) -> None:
        settings = cluster.settings(
            certs={"client_secret": CLIENT_SECRET}, http={"extender_host": EVERYWHERE}
        )
        async with cluster.replica(settings) as replica:
            data = await cluster.secret(CLIENT_SECRET)
            (tmp_path / "pair.pem").write_bytes(data["tls.crt"] + data["tls.key"])
            scheduler = ssl.create_default_context(cadata=data["ca.crt"].decode())
            stranger = ssl.create_default_context(cadata=data["ca.crt"].decode())
            scheduler.load_cert_chain(tmp_path / "pair.pem")
            assert replica.certificates.extender_context is not None
            handshake(scheduler, replica.certificates.extender_context, host=HOST)
            with pytest.raises(ssl.SSLError, match="PEER_DID_NOT_RETURN_A_CERTIFICATE"):
                handshake(stranger, replica.certificates.extender_context, host=HOST)
            assert replica.metric("seconds_left", certificate="client") > 6 * 86_400

    async def test_is_called_by_a_real_kube_scheduler_with_the_files_of_the_secret(
        self, lab: Lab, cluster: Cluster, tmp_path: Path
    ) -> None:
        name = cluster.namespace
        settings = cluster.settings(
            certs={"client_secret": CLIENT_SECRET}, http={"extender_host": EVERYWHERE}
        )
        async with cluster.replica(settings) as replica, filtering(replica) as (port, callers):
            for key, value in (await cluster.secret(CLIENT_SECRET)).items():
                (tmp_path / key).write_bytes(value)
            await asyncio.to_thread(lab.simulate_nodes, [SimulatedNode(name=name)])
            await asyncio.to_thread(lab.start_scheduler, name, scheduler(name, port, tmp_path))
            try:
                await asyncio.to_thread(lab.apply, pod(name))
                path = f"/api/v1/namespaces/{name}/pods/p"
                await asyncio.to_thread(
                    lab.wait_for, path, accept=lambda found: found["spec"].get("nodeName")
                )
            finally:
                await asyncio.to_thread(lab.components.stop, name)
                await asyncio.to_thread(lab.api.request, Call("DELETE", f"/api/v1/nodes/{name}"))
        assert callers == ["tenure-scheduler"]

    async def test_keeps_one_client_certificate_for_all_replicas_and_heals_it(self, cluster: Cluster) -> None:
        settings = cluster.settings(
            certs={"client_secret": CLIENT_SECRET}, http={"extender_host": EVERYWHERE}
        )
        async with cluster.replica(settings) as one, cluster.replica(settings) as other:
            first = await cluster.secret(CLIENT_SECRET)
            made_by = [each.metric("renewals_total", certificate="client") for each in (one, other)]
            assert made_by == [1, 0]
            body = {"data": {"tls.key": b64encode(b"garbage").decode()}}
            await cluster.client.patch(
                SECRETS.path(cluster.namespace, CLIENT_SECRET), body, kind=PatchKind.MERGE
            )
            await eventually(lambda: _is_pair(cluster), within=15)
            assert await cluster.secret(CLIENT_SECRET) != first


@asynccontextmanager
async def filtering(replica: Replica) -> AsyncIterator[tuple[int, list[str]]]:
    """An extender that lets every node pass: its port, and the common names of those who called."""
    callers: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        assert request.transport is not None
        peer = request.transport.get_extra_info("peercert")
        callers.extend(value for part in peer["subject"] for key, value in part if key == "commonName")
        return web.json_response({"NodeNames": (await request.json())["NodeNames"]})

    app = web.Application()
    app.router.add_post("/scheduler/filter", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, HOST, 0, ssl_context=replica.certificates.extender_context).start()
    try:
        yield runner.addresses[0][1], callers
    finally:
        await runner.cleanup()


def scheduler(name: str, port: int, folder: Path) -> dict[str, Any]:
    extender = {
        "urlPrefix": f"https://{HOST}:{port}/scheduler",
        "filterVerb": "filter",
        "nodeCacheCapable": True,
        "enableHTTPS": True,
        "httpTimeout": "5s",
        "tlsConfig": {
            "certFile": str(folder / "tls.crt"),
            "keyFile": str(folder / "tls.key"),
            "caFile": str(folder / "ca.crt"),
        },
    }
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": [{"schedulerName": name}],
        "extenders": [extender],
    }


def pod(name: str) -> dict[str, Any]:
    container = {"name": "c", "image": "none"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": name},
        "spec": {
            "schedulerName": name,
            "nodeSelector": {"kubernetes.io/hostname": name},
            "containers": [container],
        },
    }


async def _is_pair(cluster: Cluster) -> bool:
    data = await cluster.secret(CLIENT_SECRET)
    try:
        pki.read_pair(data["tls.crt"], data["tls.key"])
    except pki.PkiError:
        return False
    return True
