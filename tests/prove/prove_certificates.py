"""Certificates against time, hands and each other, on the real API server: `make prove ONLY=certificates`.

Nobody who creates an object notices: through rollovers of the CA, a CA Secret that is deleted, emptied, overwritten,
a clock that jumps by years. Replicas that race for the first CA end with one.
"""

import asyncio
import os
import random
import secrets
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from certs import pki, reading
from certs.authority import Authority, Terms
from certs.certificates import utc_now
from certs.metrics import CertificateMetrics
from certs.secrets import AgreedSecret
from certs.source import Offer
from service.kube.client import KubeClient
from service.kube.errors import NotFound
from service.kube.metrics import KubeMetrics
from service.kube.resources import SECRETS
from service.logs import configure
from service.metrics import MetricSet
from service.settings import KubeSettings
from tests.cluster.certified import (
    CA_SECRET,
    Cluster,
    Load,
    Replica,
    admissions,
    cluster_of,
    equals,
    eventually,
    ready,
    served_leaf,
)
from tests.lab import Lab
from tests.lab.api import Call
from tests.lab.layout import REPOSITORY
from tests.prove.proofs import Run, proof

RACES = 200
HARMS = 20
AHEAD = (timedelta(days=8), timedelta(days=11 * 365))
ROLLOVERS = 3
LEAF_S, CA_S = 60.0, 300.0
# The first CA lasts 250 s of these until the second takes over, each further one 190 s; then some time to spare.
ROLLOVERS_WITHIN_S = 1000.0
HEALED_WITHIN_S = 60.0  # Twelve are enough on a machine that is not busy; ten of them pass on purpose.


@proof("certificates")
async def certificates(run: Run) -> None:
    """The rollovers take ten minutes of real time; everything else happens meanwhile."""
    configure(level="error")
    with _lab() as lab:
        rollovers = asyncio.create_task(_through_rollovers(lab), name="rollovers")
        try:
            await _races(run, lab)
            await _harms(run, lab)
            await _jumps(run, lab)
            seen = await rollovers
        finally:
            rollovers.cancel()
    for _ in run.trials(1):
        run.check(
            not seen.load.failed, f"{len(seen.load.failed)} failed admissions, first: {seen.load.failed[:1]}"
        )
        run.check(seen.rollovers >= ROLLOVERS, f"only {seen.rollovers} rollovers")
        run.check(seen.load.admitted > 10 * ROLLOVERS_WITHIN_S / 60, f"only {seen.load.admitted} admissions")
        run.check(not seen.unready, f"not ready: {seen.unready[:1]}")


async def _races(run: Run, lab: Lab) -> None:
    """Two replicas, each with connections of its own, and no Secret."""
    async with _cluster(lab) as cluster, _client_of(lab) as other:
        for rng in run.trials(RACES):
            delays = [rng.uniform(0, 0.004), rng.uniform(0, 0.004)]
            racers = [_authority(cluster, client) for client in (cluster.client, other)]
            offers = await asyncio.gather(*map(_after, delays, [racer.offer for racer in racers]))
            data = await cluster.secret()
            stored = pki.read_pair(data["tls.crt"], data["tls.key"]).certificate
            run.check([offer.roots for offer in offers] == [(stored,)] * 2, "the replicas hold different CAs")
            await cluster.client.delete(SECRETS.path(cluster.namespace, CA_SECRET))


async def _harms(run: Run, lab: Lab) -> None:
    """Whatever happens to the Secret: it is healed, and no admission fails."""
    async with _served(lab) as (cluster, replicas):
        for rng in run.trials(HARMS):
            name, harm = rng.choice(list(_HARMS.items()))
            async with admissions(cluster) as load:
                healed = partial(_healed, cluster, replicas, await cluster.secret())
                await harm(cluster, rng)
                try:
                    await eventually(healed, within=HEALED_WITHIN_S)
                except TimeoutError:
                    run.check(holds=False, otherwise=f"{name}: not healed within {HEALED_WITHIN_S} s")
                await asyncio.sleep(rng.uniform(0, 1))
            run.check(
                not load.failed, f"{name}: {len(load.failed)} failed admissions, first: {load.failed[:1]}"
            )
            run.check(load.admitted > 0, f"{name}: nothing was admitted")


async def _jumps(run: Run, lab: Lab) -> None:
    """The time of day jumps; the API server keeps its own, so it is only asked for what it stores."""
    async with _cluster(lab) as cluster:
        for _, ahead in zip(run.trials(len(AHEAD)), AHEAD, strict=True):
            jump = [timedelta()]
            async with cluster.replica(now=partial(_shifted, jump)) as replica:
                await cluster.register([replica.port])
                await ready(replica, within=HEALED_WITHIN_S)
                jump[0] = ahead
                expired = replica.certificates.unready()
                run.check("expired" in str(expired), f"{ahead}: not noticed: {expired}")
                await ready(replica, within=HEALED_WITHIN_S)
                run.check(replica.metric("seconds_left", certificate="leaf") > 0, f"{ahead}: nothing left")


@dataclass(slots=True)
class Seen:
    """What was seen during the rollovers."""

    load: Load = field(default_factory=Load)
    rollovers: int = 0
    unready: list[str] = field(default_factory=list)


async def _through_rollovers(lab: Lab) -> Seen:
    seen = Seen()
    short = {"leaf_lifetime_s": LEAF_S, "ca_lifetime_s": CA_S}
    async with _served(lab, certs=short) as (cluster, replicas), admissions(cluster) as seen.load:
        current = (await cluster.secret())["tls.crt"]
        async with asyncio.timeout(ROLLOVERS_WITHIN_S):
            # Until the CA before the last one has left every caBundle.
            while seen.rollovers < ROLLOVERS or max(map(len, await cluster.trusted())) > 1:
                await asyncio.sleep(0.5)
                found = (await cluster.secret())["tls.crt"]
                seen.rollovers += found != current
                current = found
                seen.unready += [why for replica in replicas if (why := replica.certificates.unready())]
    return seen


# What hands do to a Secret


async def _delete(cluster: Cluster, _: random.Random) -> None:
    await cluster.client.delete(SECRETS.path(cluster.namespace, CA_SECRET))


async def _empty(cluster: Cluster, _: random.Random) -> None:
    await _put(cluster, {})


async def _overwrite(cluster: Cluster, rng: random.Random) -> None:
    await _put(cluster, {"tls.crt": rng.randbytes(300), "tls.key": rng.randbytes(200)})


async def _mismatch(cluster: Cluster, _: random.Random) -> None:
    one, other = _foreign(), _foreign()
    await _put(cluster, {"tls.crt": one.certificate_pem, "tls.key": other.key_pem})


async def _another_ca(cluster: Cluster, _: random.Random) -> None:
    ca = _foreign()
    await _put(cluster, {"tls.crt": ca.certificate_pem, "tls.key": ca.key_pem})


async def _twice(cluster: Cluster, rng: random.Random) -> None:
    await _another_ca(cluster, rng)
    await asyncio.sleep(rng.uniform(0, 0.5))
    await _delete(cluster, rng)


_HARMS: dict[str, Callable[[Cluster, random.Random], Awaitable[None]]] = {
    "deleted": _delete,
    "emptied": _empty,
    "overwritten with garbage": _overwrite,
    "given another key": _mismatch,
    "given another CA": _another_ca,
    "given another CA and deleted": _twice,
}


def _foreign() -> pki.KeyPair:
    return pki.make_ca(lifetime=timedelta(days=30), now=utc_now())


async def _put(cluster: Cluster, data: dict[str, bytes]) -> None:
    encoded = {key: b64encode(value).decode() for key, value in data.items()}
    body: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": CA_SECRET},
        "data": encoded,
    }
    await cluster.client.replace(SECRETS.path(cluster.namespace, CA_SECRET), body)


async def _healed(cluster: Cluster, replicas: list[Replica], old: dict[str, bytes]) -> bool:
    """There is a usable CA that is not the old one, every webhook trusts it, and every replica serves a leaf of it."""
    try:
        data = await cluster.secret()
        ca = pki.read_pair(data["tls.crt"], data["tls.key"]).certificate
    except (NotFound, KeyError, pki.PkiError):
        return False
    if data["tls.crt"] == old.get("tls.crt") or not all(ca in trusted for trusted in await cluster.trusted()):
        return False
    served = await asyncio.gather(*(served_leaf(replica) for replica in replicas))
    return all(reading.signed_by(leaf, ca) for leaf in served)


# The ground


@contextmanager
def _lab() -> Iterator[Lab]:
    """The lab named by TENURE_LAB, or one for this proof alone."""
    if running := os.environ.get("TENURE_LAB"):
        yield Lab(running)
        return
    lab = Lab(REPOSITORY / ".lab" / "prove-certificates")
    try:
        yield lab.up()
    finally:
        lab.down()


@asynccontextmanager
async def _cluster(lab: Lab) -> AsyncIterator[Cluster]:
    """A namespace of its own."""
    name = f"prove-certificates-{secrets.token_hex(3)}"
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    await asyncio.to_thread(lab.apply, namespace)
    async with cluster_of(lab, name) as cluster:
        yield cluster
    await asyncio.to_thread(lab.api.request, Call("DELETE", f"/api/v1/namespaces/{name}"))


@asynccontextmanager
async def _served(lab: Lab, **sections: Any) -> AsyncIterator[tuple[Cluster, list[Replica]]]:
    """Two replicas, each called by a webhook of its own, so every admission needs both."""
    async with _cluster(lab) as cluster, AsyncExitStack() as stack:
        settings = cluster.settings(**sections)
        replicas = [await stack.enter_async_context(cluster.replica(settings)) for _ in range(2)]
        await cluster.register([replica.port for replica in replicas])
        await eventually(lambda: equals(cluster.admit, None), within=HEALED_WITHIN_S)
        yield cluster, replicas


@asynccontextmanager
async def _client_of(lab: Lab) -> AsyncIterator[KubeClient]:
    client = await KubeClient.connect(
        KubeSettings(kubeconfig=lab.kubeconfig), metrics=KubeMetrics(MetricSet())
    )
    yield client
    await client.close()


def _authority(cluster: Cluster, client: KubeClient) -> Authority:
    return Authority(
        AgreedSecret(client, namespace=cluster.namespace, name=CA_SECRET),
        Terms.of(cluster.settings()),
        published=lambda _: False,
        now=utc_now,
        metrics=CertificateMetrics(MetricSet()),
    )


def _shifted(jump: list[timedelta]) -> datetime:
    return utc_now() + jump[0]


async def _after(seconds: float, work: Callable[[], Awaitable[Offer]]) -> Offer:
    await asyncio.sleep(seconds)
    return await work()
