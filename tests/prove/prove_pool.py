"""The pool against everything at once: `make prove ONLY=pool_state_machine`.

A card is promised to at most one pod, an allocated card is never offered, and a free card is never hidden once the
last read succeeded.
"""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from service import names
from tests.prove.pool_replica import Replica
from tests.prove.pool_world import NAMESPACE, Turnstile, World
from tests.prove.proofs import Run, proof

# 500 worlds of 250 steps: 125,000 steps.
WORLDS = 500
STEPS = 250
SERVERS = ("s1", "s2", "s3")
CLIENTS = ("n1", "n2")
# Rounds of the quiet end; each one settles every server and serves the queue once.
QUIET_ROUNDS = 40
# Loop turns after which every task stands at the turnstile or has ended.
TURNS = 6


class Universe:
    """A world, its replicas, and the random driver of both."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._turnstile = Turnstile()
        self.world = World()
        for number, name in enumerate(SERVERS):
            self._add_server(name, number)
        for name in CLIENTS:
            self.world.add("nodes", name, _node({}, {}))
        self.replicas = [Replica(self.world, self._turnstile) for _ in range(2)]
        self._pods = 0

    async def step(self) -> str | None:
        """One random step; what it broke, if anything."""
        self._rng.choices(self._actions(), weights=self._weights())[0]()
        return await self._after()

    async def _after(self) -> str | None:
        for _ in range(TURNS):
            await asyncio.sleep(0)
        return self.broken()

    def _actions(self) -> list[Callable[[], object]]:
        return [
            self._let_a_call_go,
            self._hear,
            self._work,
            self._schedule,
            self._create_pod,
            self._end_pod,
            self._change_node,
            self._delete_server_object,
            self._crash,
            self._relist,
            self._pass_time,
            self._land_late,
        ]

    def _weights(self) -> list[int]:
        return [40, 30, 14, 14, 5, 4, 2, 1, 1, 1, 3, 3]

    def _let_a_call_go(self) -> None:
        self._turnstile.next(self._rng, trouble=0.1)

    def _hear(self) -> None:
        self._rng.choice(self.replicas).hear()

    def _work(self) -> None:
        replica = self._rng.choice(self.replicas)
        if self._rng.random() < 0.5:
            replica.serve()
        else:
            replica.settle(self._rng.choice(SERVERS))

    def _schedule(self) -> None:
        open_pods = [
            pod
            for pod in self.world.pods.values()
            if not pod["spec"].get("schedulingGates") and not _placed(pod)
        ]
        if open_pods:
            replica = self._rng.choice(self.replicas)
            replica.schedule(self._rng.choice(open_pods), [*CLIENTS, *SERVERS], self._rng)

    def _create_pod(self) -> None:
        self._pods += 1
        # A name comes back, so that a successor of the same name meets its predecessor's late news.
        name = f"p{self._pods % 7}"
        if name not in self.world.pods:
            wanted = self._rng.choice([1, 1, 1, 2, 4])
            self.world.add(
                "pods", name, _pod(wanted, self._rng.choice([0, 0, 5]), self._rng.choice([0, 20_000]))
            )

    def _end_pod(self) -> None:
        if self.world.pods:
            name = self._rng.choice(sorted(self.world.pods))
            if self._rng.random() < 0.7:
                self.world.drop("pods", name)
            else:
                pod = self.world.pods[name]
                self.world.put("pods", name, {**pod, "status": {"phase": "Succeeded"}})

    def _change_node(self) -> None:
        name = self._rng.choice(SERVERS)
        if name not in self.world.nodes:
            self._add_server(name, SERVERS.index(name))
        elif self._rng.random() < 0.2:
            self.world.drop("nodes", name)
        else:
            self._alter(name)

    def _alter(self, name: str) -> None:
        """Health, cordon, readiness, or the label."""
        cards = _cards(name, SERVERS.index(name))
        for card in cards:
            card["health"] = self._rng.random() < 0.8
        notes = {names.NODE_REGISTER: json.dumps(cards)}
        if self._rng.random() < 0.2:
            notes[names.DEVICE_CORDON] = str(cards[0]["id"])
        labels = {names.LUPINE_SERVER_LABEL: ""} if self._rng.random() < 0.9 else {}
        node = self.world.nodes[name]
        changed = _node(labels, notes, ready=self._rng.random() < 0.9)
        self.world.put("nodes", name, changed | {"metadata": node["metadata"] | changed["metadata"]})

    def _add_server(self, name: str, number: int) -> None:
        notes = {names.NODE_REGISTER: json.dumps(_cards(name, number))}
        self.world.add("nodes", name, _node({names.LUPINE_SERVER_LABEL: ""}, notes))

    def _delete_server_object(self) -> None:
        if self.world.servers:
            self.world.drop("servers", self._rng.choice(sorted(self.world.servers)))

    def _crash(self) -> None:
        self._rng.choice(self.replicas).crash()

    def _relist(self) -> None:
        self._rng.choice(self.replicas).relist()

    def _pass_time(self) -> None:
        self.world.now += timedelta(seconds=self._rng.choice([1, 5, 30, 120, 600, -20]))

    def _land_late(self) -> None:
        self.world.land_late(self._rng)

    # What must hold

    def broken(self) -> str | None:
        """The first promise that does not hold, in words."""
        for replica in self.replicas:
            for fault in replica.faults():
                return f"a bug: {fault!r}"
        holders = [(card, pod["metadata"]["uid"]) for pod in self._alive() for card in _held(pod)]
        twice = [card for card, times in Counter(card for card, _ in holders).items() if times > 1]
        if twice:
            return f"{twice[0]} is in the hands of two placed pods"
        promised = {
            (name, item["card"]): item["podUID"]
            for name, server in self.world.servers.items()
            for item in server.get("status", {}).get("allocations", ())
        }
        for card, uid in holders:
            if promised.get(card, uid) != uid:
                return f"{card} belongs to placed pod {uid} and is promised to {promised[card]}"
        return None

    def _alive(self) -> list[dict[str, Any]]:
        return [
            pod for pod in self.world.pods.values() if pod["status"]["phase"] not in {"Succeeded", "Failed"}
        ]

    async def quiet(self) -> str | None:
        """No more trouble: everybody catches up, and then no pod may wait beside cards that could serve it."""
        for _ in range(QUIET_ROUNDS):
            self.world.now += timedelta(seconds=21)
            for replica in self.replicas:
                while replica.news:
                    replica.hear()
                for server in SERVERS:
                    replica.settle(server)
                replica.serve()
            for pod in list(self.world.pods.values()):
                if not pod["spec"].get("schedulingGates") and not _placed(pod):
                    self.replicas[0].schedule(pod, list(CLIENTS), self._rng)
            if broken := await self._drain():
                return broken
        return self._asleep() or self._hidden()

    async def _drain(self) -> str | None:
        for _ in range(10_000):
            if broken := await self._after():
                return broken
            went = self._turnstile.next(self._rng, trouble=0)
            if not went and all(replica.idle for replica in self.replicas):
                return None
        return "the calls do not come to an end"

    def _asleep(self) -> str | None:
        """A pod that waits although one server's free cards, none of them kept for a starving pod, could serve it."""
        free = {
            name: [
                card.get("memoryMiB", 0)
                for card in server["status"].get("cards", ())
                if card.get("offered")
                and (name, card["id"]) not in self._taken()
                and (name, card["id"]) not in self.replicas[0].pool.kept
            ]
            for name, server in self.world.servers.items()
        }
        for pod in self._alive():
            if not _placed(pod):
                count, least = _wanted(pod)
                for name, sizes in free.items():
                    if sum(size >= least for size in sizes) >= count:
                        return (
                            f"pod {pod['metadata']['uid']} waits although {name} has {sizes} free for {count}"
                        )
        return None

    def _hidden(self) -> str | None:
        """A card in the hands of a pod that is gone."""
        alive = {pod["metadata"]["uid"] for pod in self._alive()}
        for name, server in self.world.servers.items():
            for item in server["status"].get("allocations", ()):
                if item["podUID"] not in alive:
                    return (
                        f"{name}/{item['card']} is kept for {item['podUID']}, which is gone: {item['phase']}"
                    )
        return None

    def _taken(self) -> set[tuple[str, str]]:
        return {
            (name, item["card"])
            for name, server in self.world.servers.items()
            for item in server.get("status", {}).get("allocations", ())
        }


def _cards(server: str, number: int) -> list[dict[str, Any]]:
    sizes = ([10_000, 40_000], [10_000, 10_000, 40_000, 80_000], [40_000])[number]
    return [
        {"id": f"{server}-g{i}", "index": i, "devmem": size, "devcore": 100, "mode": "remote", "health": True}
        for i, size in enumerate(sizes)
    ]


def _node(labels: dict[str, str], annotations: dict[str, str], *, ready: bool = True) -> dict[str, Any]:
    return {
        "metadata": {"labels": labels, "annotations": annotations},
        "spec": {},
        "status": {
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
            "allocatable": {"cpu": "64", "memory": "64Gi", "pods": "110"},
        },
    }


def _pod(count: int, priority: int, least: int) -> dict[str, Any]:
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


def _wanted(pod: dict[str, Any]) -> tuple[int, int]:
    limits = pod["spec"]["containers"][0]["resources"]["limits"]
    return int(limits[names.REMOTE_GPU]), int(limits.get(names.REMOTE_GPU_MEMORY, 0))


def _placed(pod: dict[str, Any]) -> bool:
    return bool(pod["spec"].get("nodeName"))


def _held(pod: dict[str, Any]) -> list[tuple[str, str]]:
    text = pod["metadata"].get("annotations", {}).get(names.DEVICES_ALLOCATED, "")
    pieces = [piece.split(",")[0] for piece in text.replace(";", "").split(":") if piece]
    return [(piece.partition("/")[0], piece.partition("/")[2]) for piece in pieces]


async def story(rng: random.Random) -> str | None:
    """One world from its beginning to its quiet end; what broke in it."""
    universe = Universe(rng)
    try:
        for number in range(STEPS):
            if broken := await universe.step():
                return f"step {number}: {broken}"
        return await universe.quiet()
    finally:
        for replica in universe.replicas:
            replica.crash()


@proof("pool_state_machine")
async def pool_state_machine(run: Run) -> None:
    """Random steps, and after each of them nobody holds what another one holds; at the end nobody sleeps."""
    for rng in run.trials(WORLDS):
        broken = await story(rng)
        run.check(broken is None, broken or "")
