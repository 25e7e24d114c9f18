"""Our capacity answer against kube-scheduler's allocator: `make prove ONLY=claims_capacity`; and any bytes as input.

The scheduler is the judge. For a claim it is asked with a real pod on a real API server; "one more fits", and with
which devices, must be its verdict and its choice, allocation after allocation.
"""

import asyncio
import os
import random
import secrets
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import msgspec

from controllers.claims import capacity, crosscheck, reading, recheck, requirements
from controllers.claims.allocate import AbortedError, CannotTellError
from controllers.claims.capacity import Cluster
from controllers.claims.cel import Engine
from controllers.claims.check import Subject, World, run
from controllers.claims.matching import Matching
from controllers.claims.objects import (
    Claim,
    DeviceClaim,
    DeviceClass,
    DeviceTaintRule,
    ResourceSlice,
    Template,
)
from controllers.claims.slices import Inventory
from service.kube.client import KubeClient
from service.kube.errors import ApiError, NotFound
from service.kube.metrics import KubeMetrics
from service.kube.resources import (
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
)
from service.metrics import MetricSet
from service.objects import Node
from service.settings import KubeSettings
from tests.lab import Lab
from tests.lab.layout import REPOSITORY
from tests.lab.simulated import SimulatedNode
from tests.prove import claims_world
from tests.prove.mutation import mutated, torn
from tests.prove.proofs import Run, proof

GENERATED = 200
# Trials at a time, each on a node of its own; more only queue on two cores.
WORKERS = 6
# More pods than any generated node serves.
PODS_OF_A_TRIAL = 10
# Seconds that the scheduler gets for a verdict, on a machine that does ten other things.
VERDICT_S = 60.0
# Seconds after which a refusal that we did not foresee counts: the scheduler tries again when its caches catch up.
SECOND_THOUGHT_S = 5.0
MUTATED = 100_000

Verdict = str


class Judge:
    """kube-scheduler, asked by pods; one watch tells what it said."""

    def __init__(self, client: KubeClient, namespace: str) -> None:
        self._client = client
        self._namespace = namespace
        self._said: dict[str, Verdict] = {}
        self.yes = self.no = 0
        self._changed = asyncio.Condition()

    async def watch(self) -> None:
        """Follow the pods of the namespace until cancelled."""
        params = {"watch": "true", "timeoutSeconds": "3600"}
        while True:
            with suppress(Exception):
                async with self._client.stream(
                    PODS.path(self._namespace),
                    params,
                    connect_deadline=30,
                    idle_deadline=600,
                    total_deadline=3600,
                ) as lines:
                    async for line in lines:
                        await self._hear(msgspec.json.decode(line)["object"])
            await asyncio.sleep(0.2)

    async def _hear(self, pod: Mapping[str, Any]) -> None:
        verdict = "scheduled" if (pod.get("spec") or {}).get("nodeName") else ""
        for condition in (pod.get("status") or {}).get("conditions") or ():
            if condition["type"] == "PodScheduled" and condition["status"] == "False":
                verdict = verdict or f"refused: {condition.get('reason')}: {condition.get('message')}"
        if verdict:
            async with self._changed:
                self._said[pod["metadata"]["name"]] = verdict
                self._changed.notify_all()

    async def ask(self, name: str, node: str, claim: Mapping[str, Any]) -> None:
        """Make a claim, and a pod on that node that uses it."""
        made = {"apiVersion": claims_world.API, "kind": "ResourceClaim", "metadata": {"name": name}}
        await self._client.create(RESOURCE_CLAIMS.path(self._namespace), {**made, "spec": {"devices": claim}})
        reference = {"name": "c", "resourceClaimName": name}
        await self._client.create(PODS.path(self._namespace), _pod(name, node, reference))

    async def verdict(self, name: str, *, foreseen: bool) -> bool:
        """True when it was scheduled. An unforeseen refusal has some time to change."""
        async with asyncio.timeout(VERDICT_S), self._changed:
            await self._changed.wait_for(lambda: name in self._said)
        if foreseen and not self.scheduled(name):
            with suppress(TimeoutError):
                async with asyncio.timeout(SECOND_THOUGHT_S), self._changed:
                    await self._changed.wait_for(lambda: self.scheduled(name))
        self.yes += self.scheduled(name)
        self.no += not self.scheduled(name)
        return self.scheduled(name)

    def scheduled(self, name: str) -> bool:
        return self._said.get(name) == "scheduled"

    def words(self, name: str) -> str:
        return self._said.get(name, "")

    async def claim(self, name: str) -> Claim:
        body = await self._client.get(RESOURCE_CLAIMS.path(self._namespace, name))
        return msgspec.json.decode(body, type=Claim)

    async def forget(self, names: list[str]) -> None:
        """Remove pods and claims."""
        for name in names:
            for resource in (PODS, RESOURCE_CLAIMS):
                with suppress(NotFound):
                    await self._client.delete(resource.path(self._namespace, name), grace_seconds=0)


def _pod(name: str, node: str, claim: Mapping[str, str]) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": "none", "resources": {"claims": [{"name": "c"}]}}],
            "resourceClaims": [dict(claim)],
        },
    }


@contextmanager
def _lab() -> Iterator[Lab]:
    """The lab named by TENURE_LAB, or one for this proof alone."""
    if running := os.environ.get("TENURE_LAB"):
        yield Lab(running)
        return
    lab = Lab(REPOSITORY / ".lab" / "prove-claims")
    try:
        yield lab.up()
    finally:
        lab.down()


@asynccontextmanager
async def _court(lab: Lab) -> AsyncIterator[tuple[KubeClient, Judge, list[str]]]:
    """A namespace, the classes, a node per worker, and the judge."""
    suffix = secrets.token_hex(3)
    namespace, nodes = f"prove-claims-{suffix}", [f"claims-{suffix}-{i}" for i in range(WORKERS)]
    made = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    await asyncio.to_thread(lab.apply, made, *claims_world.CLASSES)
    await asyncio.to_thread(lab.simulate_nodes, [SimulatedNode(name=node) for node in nodes])
    await asyncio.to_thread(lab.wait_for, f"/api/v1/namespaces/{namespace}/serviceaccounts/default")
    kubeconfig = await asyncio.to_thread(lambda: lab.kubeconfig)
    client = await KubeClient.connect(
        KubeSettings(kubeconfig=kubeconfig, deadline_s=30.0), metrics=KubeMetrics(MetricSet())
    )
    judge = Judge(client, namespace)
    watching = asyncio.create_task(judge.watch())
    try:
        yield client, judge, nodes
    finally:
        watching.cancel()
        await client.close()
        await asyncio.to_thread(lab.remove_nodes, nodes)


@proof("claims_capacity")
async def claims_capacity(run_: Run) -> None:
    """The reference node first, then generated ones, several at a time."""
    with _lab() as lab:
        async with _court(lab) as (client, judge, nodes):
            for _ in run_.trials(1):
                run_.check(*await _reference(client, judge, nodes[0]))
            await _generated(run_, client, judge, nodes)


async def _reference(client: KubeClient, judge: Judge, node: str) -> tuple[bool, str]:
    """Capacity says 2; of three pods from the template exactly two are scheduled, and then it says 0."""
    namespace = judge._namespace
    for found in claims_world.reference(node):
        await client.create(RESOURCE_SLICES.path(), found)
    template = {
        "apiVersion": claims_world.API,
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "npu-rdma"},
        "spec": {"spec": {"devices": claims_world.aligned()}},
    }
    await client.create(RESOURCE_CLAIM_TEMPLATES.path(namespace), template)
    subject = await reading.template(client, namespace, "npu-rdma")
    before = run(subject, await reading.world(client))
    names = [f"reference-{i}" for i in range(3)]
    for name in names:
        use = {"name": "c", "resourceClaimTemplateName": "npu-rdma"}
        await client.create(PODS.path(namespace), _pod(name, node, use))
    scheduled = [await judge.verdict(name, foreseen=True) for name in names]
    after = run(subject, await reading.world(client))
    seen = before.verdict.value, before.pods, sum(scheduled), after.pods, after.verdict.value
    for name in names:
        await client.delete(PODS.path(namespace, name), grace_seconds=0)
    for found in claims_world.reference(node):
        await client.delete(RESOURCE_SLICES.path(name=found["metadata"]["name"]))
    return seen == ("pass", 2, 2, 0, "fail"), f"verdict, pods, scheduled, pods after, verdict after: {seen}"


async def _generated(run_: Run, client: KubeClient, judge: Judge, nodes: list[str]) -> None:
    trials = list(enumerate(run_.trials(GENERATED)))
    base = run_.tried - GENERATED
    queue = iter(trials)
    explained = 0

    async def work(node: str) -> None:
        nonlocal explained
        for place, rng in queue:
            wrong, scheduler_fault = await _trial(client, judge, node, f"t{place}", rng)
            explained += scheduler_fault
            run_.tried = base + place + 1  # checks count for the trial that they are of
            run_.check(holds=not wrong, otherwise=wrong)
            run_.tried = base + GENERATED

    async with asyncio.TaskGroup() as group:
        for node in nodes:
            group.create_task(work(node))
    print(
        f"kube-scheduler said yes {judge.yes} times and no {judge.no} times; {explained} of its allocations broke a"
        " constraint, and each of them was found",
        file=sys.stderr,
    )


async def _trial(
    client: KubeClient, judge: Judge, node: str, name: str, rng: random.Random
) -> tuple[str, bool]:
    """What disagreed, if anything; and whether the scheduler broke a constraint, which we then must find."""
    claim = claims_world.claim(rng)
    stored = []
    asked: list[str] = []
    canary = claims_world.slice_(
        f"{name}-zz", "canary.example", node, [{"name": "d"}], pool={"name": f"{name}-zz"}
    )
    try:
        for found in (*claims_world.cluster(rng, node, name), canary):
            body = await client.create(RESOURCE_SLICES.path(), found)
            stored.append(msgspec.json.decode(body, type=ResourceSlice))
        asked.append(f"{name}-canary")
        await judge.ask(asked[0], node, _canary(f"{name}-zz"))
        if not await judge.verdict(asked[0], foreseen=True):
            return f"the canary was refused: {judge.words(asked[0])}", False
        return await _pods(client, judge, node, name, claim, stored, asked)
    except ApiError as error:
        return f"{claim}: {error}", False
    finally:
        await judge.forget(asked)
        for made in stored:
            await client.delete(RESOURCE_SLICES.path(name=made.metadata.name))


def _canary(pool: str) -> dict[str, Any]:
    """When this is allocated, the scheduler has seen every slice that was made before its slice."""
    expression = 'device.driver == "canary.example"'
    exactly = {"deviceClassName": "canary", "selectors": [{"cel": {"expression": expression}}]}
    return {"requests": [{"name": pool[-60:], "exactly": exactly}]}


async def _pods(
    client: KubeClient,
    judge: Judge,
    node: str,
    name: str,
    claim: Mapping[str, Any],
    slices: list[ResourceSlice],
    asked: list[str],
) -> tuple[str, bool]:
    classes = {
        found["metadata"]["name"]: msgspec.convert(found, DeviceClass) for found in claims_world.CLASSES
    }
    wanted = requirements.of(msgspec.convert(claim, DeviceClaim), classes)
    known = {node: msgspec.json.decode(await client.get(NODES.path(name=node)), type=Node)}
    inventory = Inventory(slices, known)
    matching = Matching(Engine())
    claims: list[Claim] = []
    for place in range(PODS_OF_A_TRIAL):
        cluster = Cluster(inventory, matching.matches, tuple(claims))
        ours = _ours(wanted, cluster, node)
        pod = f"{name}-{place}"
        asked.append(pod)
        await judge.ask(pod, node, claim)
        scheduled = await judge.verdict(pod, foreseen=ours is not None)
        told = f"pod {place}: ours {ours}, kube-scheduler {judge.words(pod)!r}; {claim}; {_shown(slices)}"
        if not scheduled:
            return ("" if ours is None else told), False
        given = await judge.claim(pod)
        if ours != [(r.request, r.driver, r.pool, r.device) for r in given.results]:
            offers = recheck.device_map(crosscheck.devices(inventory))
            return ("", True) if list(recheck.findings(given, wanted, offers)) else (told, False)
        claims.append(given)
    return "", False


def _ours(wanted: requirements.Requirements, cluster: Cluster, node: str) -> list[tuple[str, ...]] | None:
    try:
        given = capacity.fits(wanted, cluster, node)
    except AbortedError:
        return None
    except CannotTellError as error:
        raise AssertionError(f"nothing that was generated is beyond the search: {error}") from error
    return None if given is None else [(one.alternative.name, *one.offer.id) for one in given]


def _shown(slices: list[ResourceSlice]) -> str:
    return msgspec.json.encode([found.spec for found in slices]).decode()


# Any bytes.


@proof("claims_inputs")
def claims_inputs(run_: Run) -> None:
    """Slices and templates that break every rule: an answer or a finding, never an unhandled error."""
    engine = Engine()
    classes = {
        found["metadata"]["name"]: msgspec.convert(found, DeviceClass) for found in claims_world.CLASSES
    }
    for rng in run_.trials(MUTATED):
        if run_.tried % 1000 == 0:
            engine = Engine()  # it keeps what it compiled
        try:
            _answer(rng, engine, classes)
        except Exception as error:  # noqa: BLE001 - the claim is that there is none
            run_.check(holds=False, otherwise=f"{type(error).__name__}: {error}")


def _answer(rng: random.Random, engine: Engine, classes: Mapping[str, DeviceClass]) -> None:
    unreadable: list[str] = []
    slices = []
    for found in claims_world.cluster(rng, "n1", "t"):
        raw = msgspec.json.encode(mutated(rng, found))
        one = reading.decoded(torn(rng, raw), ResourceSlice, "ResourceSlice", unreadable)
        if one is not None:
            slices.append(one)
    template = {
        "metadata": {"name": "t", "namespace": "n"},
        "spec": {"spec": {"devices": claims_world.claim(rng)}},
    }
    sent = mutated(rng, template)
    made = reading.decoded(
        torn(rng, msgspec.json.encode(sent)), Template, "ResourceClaimTemplate", unreadable
    )
    raw = msgspec.json.encode(mutated(rng, claims_world.rule(rng, "t")))
    rule = reading.decoded(torn(rng, raw), DeviceTaintRule, "DeviceTaintRule", unreadable)
    world = World(
        classes=classes,
        slices=tuple(slices),
        taint_rules=rng.choice([None, (), (rule,) if rule else ()]),
        unreadable=tuple(unreadable),
    )
    plain = sent if isinstance(sent, dict) else {}
    report = run(Subject("n/t", made, plain, template), world, engine)
    msgspec.json.encode(report)
