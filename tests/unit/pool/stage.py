"""The pool's own code before a model of an API server (see tests/prove), for what is about the order of calls."""

import asyncio
import json
import random
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec

from controllers.pool.bind import BindRequest
from controllers.pool.metrics import Filter
from controllers.pool.servers import RemoteServer
from service import names
from service.kube.events import EventRecorder
from tests.prove.pool_replica import Replica
from tests.prove.pool_world import NAMESPACE, Fault, Turnstile, World
from webhook.extender.wire import FilterResult

CLIENTS = ("n1", "n2")
# Loop turns after which every task stands before its next call or has ended.
TURNS = 8


class Stage:
    """A world with servers and client nodes, and replicas that hear everything at once unless told otherwise."""

    def __init__(self, *, replicas: int = 1, servers: Mapping[str, Sequence[int]] | None = None) -> None:
        self.turnstile = Turnstile()
        self.world = World()
        for name in CLIENTS:
            self.world.add("nodes", name, node_object({}, {}))
        for name, sizes in (servers or {"s1": [40_000]}).items():
            self.add_server(name, sizes)
        self.replicas = [Replica(self.world, self.turnstile) for _ in range(replicas)]
        self.rng = random.Random(1)

    @property
    def replica(self) -> Replica:
        return self.replicas[0]

    def add_server(self, name: str, sizes: Sequence[int], *, label: str = "") -> None:
        notes = {names.NODE_REGISTER: json.dumps(cards(name, sizes))}
        labels = {names.LUPINE_SERVER_LABEL: label}
        if name in self.world.nodes:
            kept = self.world.nodes[name]["metadata"] | {"labels": labels, "annotations": notes}
            self.world.put("nodes", name, node_object(labels, notes) | {"metadata": kept})
        else:
            self.world.add("nodes", name, node_object(labels, notes))

    def pod(self, name: str, count: int = 1, least: int = 0, *, priority: int = 0, **meta: Any) -> str:
        """A gated pod that asks; its uid."""
        made = self.world.add("pods", name, pod_object(count, least, priority))
        made["metadata"] |= meta
        return str(self.world.put("pods", name, made)["metadata"]["uid"])

    def hear(self) -> None:
        for replica in self.replicas:
            while replica.news:
                replica.hear()

    async def turns(self) -> None:
        for _ in range(TURNS):
            await asyncio.sleep(0)

    async def flow(self, fault: Fault = Fault.NONE, *, only: int = 10_000) -> int:
        """Let waiting calls go until there is none; how many went."""
        went = 0
        while went < only:
            await self.turns()
            self.turnstile.waiting = [item for item in self.turnstile.waiting if not item[0].done()]
            if not self.turnstile.waiting:
                break
            self.turnstile.waiting.pop(0)[0].set_result(fault)
            went += 1
        await self.turns()
        return went

    async def calm(self, *, rounds: int = 6) -> None:
        """All hear everything, settle every server and serve the queue, until nothing is left to do."""
        for _ in range(rounds):
            self.hear()
            for replica in self.replicas:
                for server in {*self.world.nodes, *self.world.servers}:
                    replica.settle(server)
                replica.serve()
            await self.flow()
        self.hear()
        assert not [fault for replica in self.replicas for fault in replica.faults()]

    async def filter(self, name: str, replica: Replica | None = None) -> tuple[Filter, FilterResult]:
        """What the scheduler is told about a pod, with all calls let through."""
        body = msgspec.json.encode({"Pod": self.world.pods[name], "NodeNames": [*CLIENTS, "s1", "s2"]})
        asked = asyncio.create_task((replica or self.replica).extender.filter(body))
        await self.flow()
        return await asked

    async def bind(self, name: str, node: str = "n1", replica: Replica | None = None) -> str:
        """The answer to a bind call, with all calls let through."""
        meta = self.world.pods[name]["metadata"]
        request = BindRequest(NAMESPACE, name, meta["uid"], node)
        asked = asyncio.create_task((replica or self.replica).pool.binder.bind(request))
        await self.flow()
        return await asked

    async def placed(self, name: str, node: str = "n1") -> None:
        """From the queue to a node."""
        await self.calm()
        assert await self.bind(name, node) == ""
        await self.calm()

    def server(self, name: str = "s1") -> RemoteServer:
        return msgspec.json.decode(msgspec.json.encode(self.world.servers[name]), type=RemoteServer)

    def phases(self, name: str = "s1") -> dict[str, tuple[str, str]]:
        """Card to pod uid and phase."""
        return {a.card: (a.pod_uid, a.phase) for a in self.server(name).status.allocations}

    def note(self, pod: str) -> str:
        """A pod's allocation annotation."""
        return str(self.world.pods[pod]["metadata"].get("annotations", {}).get(names.DEVICES_ALLOCATED, ""))


class Heard:
    """Takes the place of the event recorder."""

    def __init__(self) -> None:
        self.said: list[tuple[str, str]] = []

    def emit(self, ref: Any, *, reason: str, **_: object) -> None:
        self.said.append((ref.name, reason))

    @property
    def recorder(self) -> EventRecorder:
        return cast("EventRecorder", self)


def cards(server: str, sizes: Sequence[int]) -> list[dict[str, Any]]:
    return [
        {"id": f"{server}-g{i}", "index": i, "devmem": size, "devcore": 100, "mode": "remote", "health": True}
        for i, size in enumerate(sizes)
    ]


def node_object(labels: Mapping[str, str], annotations: Mapping[str, str]) -> dict[str, Any]:
    return {
        "metadata": {"labels": dict(labels), "annotations": dict(annotations)},
        "spec": {},
        "status": {
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
            "conditions": [{"type": "Ready", "status": "True"}],
            "allocatable": {"cpu": "64", "memory": "64Gi", "pods": "110"},
        },
    }


def pod_object(count: int, least: int, priority: int) -> dict[str, Any]:
    path = f"metadata.annotations['{names.LUPINE_ENDPOINT}']"
    env = {"name": names.LUPINE_SERVER_ENV, "valueFrom": {"fieldRef": {"fieldPath": path}}}
    limits = {names.REMOTE_GPU: str(count)} | ({names.REMOTE_GPU_MEMORY: str(least)} if least else {})
    return {
        "metadata": {"namespace": NAMESPACE},
        "spec": {
            "containers": [{"name": "c", "env": [env], "resources": {"limits": limits}}],
            "schedulingGates": [{"name": names.GATE}],
            "priority": priority,
        },
        "status": {"phase": "Pending"},
    }
