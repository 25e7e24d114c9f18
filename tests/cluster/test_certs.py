"""Certificates against the real API server, which calls the webhook with failurePolicy Fail."""

import asyncio
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from certs import pki, reading
from certs.certificates import CALM_S, FIRST_PAUSE_S, utc_now
from service.kube.errors import NotFound
from service.kube.resources import MUTATING_WEBHOOKS, SECRETS
from tests.cluster.certified import (
    CA_SECRET,
    SECONDS,
    Cluster,
    Replica,
    admissions,
    admitted,
    cluster_of,
    equals,
    eventually,
    ready,
    served_two,
)
from tests.lab import Lab
from tests.lab.api import Call
from tests.unit.certs import made


@pytest.fixture(name="cluster")
async def _cluster(lab: Lab, namespace: str) -> AsyncIterator[Cluster]:
    async with cluster_of(lab, namespace) as cluster:
        yield cluster


@pytest.fixture(name="replica")
async def _replica(cluster: Cluster) -> AsyncIterator[Replica]:
    """Registered and ready."""
    async with cluster.replica() as replica:
        await cluster.register([replica.port])
        await ready(replica)
        yield replica


async def current(cluster: Cluster) -> x509.Certificate | None:
    """The CA in the Secret, if there is a usable one."""
    try:
        data = await cluster.secret()
        return pki.read_pair(data.get("tls.crt", b""), data.get("tls.key", b"")).certificate
    except (NotFound, pki.PkiError):
        return None


async def made_anew(cluster: Cluster) -> x509.Certificate | None:
    """The CA in the Secret, if Tenure made it."""
    found = await current(cluster)
    return found if found and reading.is_ours(found) else None


async def put(cluster: Cluster, data: Mapping[str, bytes]) -> None:
    """Replace the data of the CA Secret."""
    encoded = {key: b64encode(value).decode() for key, value in data.items()}
    body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": CA_SECRET}, "data": encoded}
    await cluster.client.replace(SECRETS.path(cluster.namespace, CA_SECRET), body)


async def test_a_first_replica_is_trusted_as_soon_as_there_is_a_webhook_configuration(
    cluster: Cluster,
) -> None:
    async with cluster.replica() as replica:
        assert replica.certificates.unready() == (
            f"there is no MutatingWebhookConfiguration {cluster.configuration}"
        )
        await cluster.register([replica.port])
        await ready(replica)
        assert await cluster.admit() is None
        assert replica.calls == 1


async def test_the_ca_bundle_belongs_to_a_field_manager_of_our_own_and_nothing_else_does(
    cluster: Cluster, replica: Replica
) -> None:
    registered = await cluster.registered()
    (ours,) = [m for m in registered["metadata"]["managedFields"] if m["manager"] == "tenure-certs"]
    assert ours["operation"] == "Apply"
    owned = ours["fieldsV1"]["f:webhooks"]['k:{"name":"w0.tenure.dev"}']
    assert owned == {".": {}, "f:clientConfig": {"f:caBundle": {}}, "f:name": {}}
    before = await cluster.bundles()
    await cluster.register([replica.port])
    assert await cluster.bundles() == before, "an installer that renders no caBundle leaves ours alone"


class TestAnUpgradeThatEmptiesTheCaBundle:
    """Field case F2."""

    async def test_is_repaired_within_seconds_by_whoever_runs(
        self, cluster: Cluster, replica: Replica
    ) -> None:
        await asyncio.sleep(3)  # What happened at the start is over, and the next poll is out of reach.
        before = await cluster.trusted()
        await cluster.register([replica.port], bundles=[""])
        await eventually(lambda: equals(cluster.trusted, before), within=SECONDS)
        await admitted(cluster)

    async def test_is_repaired_by_a_replica_that_was_never_ready(self, cluster: Cluster) -> None:
        async with cluster.replica() as replica:
            await cluster.register([replica.port, replica.port], bundles=["", b64encode(b"junk").decode()])
            await ready(replica)

    async def test_is_repaired_by_the_old_replica_while_the_new_one_comes_up(
        self, cluster: Cluster, replica: Replica
    ) -> None:
        async with cluster.replica() as new:
            await cluster.register([replica.port, new.port], bundles=["", ""])
            await ready(replica, new)
            await admitted(cluster)


OTHER = made.ca("Other", begin=utc_now() - made.DAY, end=utc_now() + made.YEAR)
EXPIRED = made.ca("Expired", begin=utc_now() - 2 * made.DAY, end=utc_now() - made.DAY)


@pytest.mark.parametrize(
    "text",
    [
        None,
        b"",
        b"\n",
        b"not pem",
        b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        b"text before\n" + OTHER.certificate_pem + b"\n\n" + EXPIRED.certificate_pem,
    ],
    ids=["absent", "empty", "newline", "plain text", "junk in a frame", "others"],
)
async def test_a_bundle_that_is_none_is_repaired_once(cluster: Cluster, text: bytes | None) -> None:
    """Field case F3: the API server accepts each of these."""
    async with cluster.replica() as replica:
        await cluster.register([replica.port], bundles=[None if text is None else b64encode(text).decode()])
        await ready(replica)
        (trusted,) = await cluster.trusted()
        ours = await current(cluster)
        assert trusted == {ours} | ({OTHER.certificate} if text and OTHER.certificate_pem in text else set())
        version = (await cluster.registered())["metadata"]["resourceVersion"]
        await asyncio.sleep(2)
        assert (await cluster.registered())["metadata"]["resourceVersion"] == version, "no endless rewriting"
        assert replica.metric("injections_total") == 1
        await admitted(cluster)


class TestASecretThatSomebodyHarms:
    @pytest.mark.parametrize(
        "harm",
        [
            {},
            {"tls.crt": b"garbage", "tls.key": b"garbage"},
            {"tls.crt": OTHER.certificate_pem, "tls.key": EXPIRED.key_pem},
            {"tls.crt": EXPIRED.certificate_pem, "tls.key": EXPIRED.key_pem},
        ],
        ids=["emptied", "garbage", "another key", "expired"],
    )
    async def test_gets_a_new_ca_that_is_trusted_beside_the_old_one(
        self, cluster: Cluster, replica: Replica, harm: dict[str, bytes]
    ) -> None:
        old = await current(cluster)
        await put(cluster, harm)
        new = await eventually(lambda: made_anew(cluster), within=SECONDS)
        assert new != old
        await eventually(lambda: equals(cluster.trusted, [{old, new}]), within=SECONDS)
        assert replica.certificates.unready() is None

    @pytest.mark.usefixtures("replica")
    async def test_with_the_ca_of_somebody_else_is_adopted(self, cluster: Cluster) -> None:
        old = await current(cluster)
        await put(cluster, {"tls.crt": OTHER.certificate_pem, "tls.key": OTHER.key_pem})
        await eventually(lambda: equals(cluster.trusted, [{old, OTHER.certificate}]), within=SECONDS)
        assert await current(cluster) == OTHER.certificate

    async def test_by_deleting_it_costs_no_admission_and_every_replica_moves_to_the_new_ca(
        self, cluster: Cluster, replica: Replica
    ) -> None:
        async with cluster.replica() as second:
            await cluster.register([replica.port, second.port])
            await ready(replica, second)
            await admitted(cluster)
            old = await current(cluster)
            async with admissions(cluster) as load:
                await cluster.client.delete(SECRETS.path(cluster.namespace, CA_SECRET))
                new = await eventually(lambda: current(cluster), within=SECONDS)
                await eventually(partial(served_two, replica, second), within=30)
                calls = second.calls
                await eventually(lambda: second.calls > calls + 3, within=SECONDS)
        assert await cluster.trusted() == [{old, new}] * 2
        assert load.failed == []
        assert load.admitted > 20


async def test_replicas_that_race_for_the_first_ca_end_with_one(cluster: Cluster) -> None:
    for _ in range(5):
        async with cluster.replica() as one, cluster.replica() as other:
            await cluster.register([one.port, other.port])
            await ready(one, other)
            ca = await current(cluster)
            assert [ca in trusted for trusted in await cluster.trusted()] == [True, True]
        await cluster.client.delete(SECRETS.path(cluster.namespace, CA_SECRET))


@pytest.mark.parametrize("ahead", [timedelta(days=8), timedelta(days=11 * 365)], ids=["8 days", "11 years"])
async def test_a_clock_that_jumps_ahead_is_followed_within_seconds(
    cluster: Cluster, ahead: timedelta
) -> None:
    jump = [timedelta()]
    async with cluster.replica(now=lambda: utc_now() + jump[0]) as replica:
        await cluster.register([replica.port])
        await ready(replica)
        old = await current(cluster)
        jump[0] = ahead
        assert "expired" in str(replica.certificates.unready())
        await eventually(lambda: replica.certificates.unready() is None, within=15)
        assert replica.metric("seconds_left", certificate="leaf") > 6.9 * 86_400
        assert replica.metric("seconds_left", certificate="ca") > 9 * 365 * 86_400
        new = await current(cluster)
        assert (new == old) == (ahead < timedelta(days=3650))
        assert await cluster.trusted() == [{new}], "what has expired is gone"


async def test_a_configuration_that_is_deleted_and_comes_back_is_said_and_followed(
    cluster: Cluster, replica: Replica
) -> None:
    await cluster.client.delete(MUTATING_WEBHOOKS.path(name=cluster.configuration))
    await eventually(lambda: "there is no Mutating" in str(replica.certificates.unready()), within=SECONDS)
    await cluster.register([replica.port])
    await ready(replica)


async def test_a_webhook_that_calls_a_name_that_we_do_not_have_is_said(
    cluster: Cluster, replica: Replica
) -> None:
    registered = await cluster.registered()
    registered["metadata"] = {"name": cluster.configuration}
    registered["webhooks"][0]["clientConfig"] = {"service": {"name": "misnamed", "namespace": "nowhere"}}
    await cluster.client.replace(
        MUTATING_WEBHOOKS.path(name=cluster.configuration),
        registered
        | {"metadata": {"name": cluster.configuration, "resourceVersion": await _version(cluster)}},
    )
    reason = await eventually(replica.certificates.unready, within=SECONDS)
    assert "w0.tenure.dev: the certificate does not name misnamed.nowhere.svc" in reason


async def _version(cluster: Cluster) -> str:
    version: str = (await cluster.registered())["metadata"]["resourceVersion"]
    return version


def rights(lab: Lab, cluster: Cluster, *, webhook_verbs: list[str]) -> Path:
    """A service account with what the chart gives the server for its certificates, and nothing else."""
    namespace = cluster.namespace
    group = "rbac.authorization.k8s.io"
    subject = {"kind": "ServiceAccount", "name": "server", "namespace": namespace}
    lab.apply(
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": "server", "namespace": namespace},
        },
        {
            "apiVersion": f"{group}/v1",
            "kind": "Role",
            "metadata": {"name": "server", "namespace": namespace},
            "rules": [
                {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create"]},
                {
                    "apiGroups": [""],
                    "resources": ["secrets"],
                    "resourceNames": [CA_SECRET],
                    "verbs": ["get", "list", "watch", "update"],
                },
            ],
        },
        {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "server", "namespace": namespace},
            "roleRef": {"apiGroup": group, "kind": "Role", "name": "server"},
            "subjects": [subject],
        },
        {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRole",
            "metadata": {"name": cluster.configuration},
            "rules": [
                {
                    "apiGroups": [MUTATING_WEBHOOKS.group],
                    "resources": [MUTATING_WEBHOOKS.plural],
                    "resourceNames": [cluster.configuration],
                    "verbs": webhook_verbs,
                }
            ],
        },
        {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": cluster.configuration},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": cluster.configuration},
            "subjects": [subject],
        },
    )
    return lab.kubeconfig_for(f"system:serviceaccount:{namespace}:server")


@pytest.fixture(name="no_cluster_roles_left")
def _no_cluster_roles_left(lab: Lab, namespace: str) -> Any:
    yield
    for plural in ("clusterroles", "clusterrolebindings"):
        lab.api.request(Call("DELETE", f"/apis/rbac.authorization.k8s.io/v1/{plural}/tenure-{namespace}"))


@pytest.mark.usefixtures("no_cluster_roles_left")
async def test_rights_on_two_names_are_enough(lab: Lab, cluster: Cluster) -> None:
    account = await asyncio.to_thread(rights, lab, cluster, webhook_verbs=["get", "list", "watch", "patch"])
    async with cluster.replica(cluster.settings(kubeconfig=account)) as replica:
        await cluster.register([replica.port])
        await ready(replica)
        await put(cluster, {})
        await eventually(lambda: current(cluster), within=SECONDS)
        blocked = [
            replica.registry.get_sample_value("tenure_kube_blocked", {"resource": plural})
            for plural in ("secrets", "mutatingwebhookconfigurations")
        ]
        assert blocked == [0, 0], "both watches work with rights on one name"


@pytest.mark.usefixtures("no_cluster_roles_left")
async def test_a_missing_right_is_the_reason_at_readyz(lab: Lab, cluster: Cluster) -> None:
    account = await asyncio.to_thread(rights, lab, cluster, webhook_verbs=["get", "list", "watch"])
    async with cluster.replica(cluster.settings(kubeconfig=account)) as replica:
        await cluster.register([replica.port])
        await eventually(lambda: "cannot patch" in str(replica.certificates.unready()), within=SECONDS)
        assert "there is no CA to trust" in str(replica.certificates.unready())
        assert replica.metric("errors_total", area="injection") >= 1


async def test_a_key_is_never_logged(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    async with cluster.replica() as replica:
        await cluster.register([replica.port], bundles=[b64encode(OTHER.key_pem).decode()])
        await ready(replica)
        await put(cluster, {"tls.crt": OTHER.key_pem, "tls.key": OTHER.key_pem})
        await eventually(lambda: made_anew(cluster), within=SECONDS)
    logged = capsys.readouterr().out
    assert "CA changed" in logged
    assert "PRIVATE" not in logged
    assert OTHER.key_pem.splitlines()[1].decode() not in logged


class TestSomebodyWhoKeepsUndoingOurWork:
    """Another controller that replaces the caBundle, as injectors did before they merged."""

    async def test_is_not_fought_at_full_speed(self, cluster: Cluster, replica: Replica) -> None:
        written = replica.metric("injections_total")
        deadline = time.monotonic() + 6
        while time.monotonic() < deadline:
            if await cluster.bundles() != [b""]:
                await cluster.register([replica.port], bundles=[""])
            await asyncio.sleep(0.01)
        assert 2 <= replica.metric("injections_total") - written <= 12

    async def test_finds_quick_repair_again_after_a_calm_time(
        self, cluster: Cluster, replica: Replica
    ) -> None:
        whole = await cluster.bundles()
        for _ in range(3):
            await asyncio.sleep(CALM_S + 2 * FIRST_PAUSE_S)
            await cluster.register([replica.port], bundles=[""])
            await eventually(lambda: equals(cluster.bundles, whole), within=2 * FIRST_PAUSE_S + 2)
