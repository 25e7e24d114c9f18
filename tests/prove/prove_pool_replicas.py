"""Three replicas on a real cluster, killed at random: `make prove ONLY=pool_replicas`.

200 pods for 64 cards. Nobody's card is anybody else's, every pod is served in the end and in the order of the queue,
the scheduler asks about once per pod, and nobody is evicted.
"""

import json
import random
import time
import urllib.request
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from service import names
from tests.lab import Lab
from tests.lab.api import Call
from tests.lab.errors import LabError
from tests.lab.product import NAMESPACE as SYSTEM
from tests.lab.product import Product, Replica, scheduler_config
from tests.lab.simulated import SimulatedNode
from tests.prove.proofs import Run, proof

PODS = 200
SERVERS = 8
CARDS = 8
REPLICAS = 3
# The figure of the issue: filter calls per pod, on average.
FILTER_CALLS = 1.2
# Seconds: all pods were served in 20 s on a quiet machine.
DEADLINE_S = 300.0
# Seconds between two looks at the cluster, and on average between two kills.
LOOK_S = 0.2
KILL_S = 4.0
# A leader that was killed is missed for the 15 s of its lease, so the kills must end for the queue to end.
KILLS = 4
NAMESPACE = "jobs"
PATH = f"/api/v1/namespaces/{NAMESPACE}/pods"


@dataclass
class Story:
    """What was seen."""

    queue: dict[str, int]
    """Pod name to its place in the queue at the start."""
    bound: list[str] = field(default_factory=list)
    done: set[str] = field(default_factory=set)
    evicted: set[str] = field(default_factory=set)
    """Gone, and not by us."""
    double: str = ""
    filters: float = 0.0
    kills: int = 0


@proof("pool_replicas")
def pool_replicas(run: Run) -> None:
    """One run of the whole story; what counts is in the checks at its end."""
    for rng in run.trials(1):
        with TemporaryDirectory() as state:
            lab = Lab(Path(state))
            lab.up()
            try:
                story = _Scene(lab, rng).play()
            finally:
                lab.down()
        late = [n for place, n in enumerate(story.bound) if abs(place - story.queue[n]) > SERVERS * CARDS]
        calls = story.filters / PODS
        run.check(not story.double, story.double)
        run.check(len(story.done) == PODS, f"only {len(story.done)} of {PODS} pods were served")
        run.check(not story.evicted, f"{len(story.evicted)} pods were evicted")
        run.check(not late, f"{len(late)} pods were served far out of order, first {late[:1]}")
        run.check(calls <= FILTER_CALLS, f"{calls:.2f} filter calls per pod")
        run.check(story.kills == KILLS, f"only {story.kills} replicas were killed")


class _Scene:
    def __init__(self, lab: Lab, rng: random.Random) -> None:
        self._lab = lab
        self._rng = rng
        self._product = Product(lab)
        self._replicas: list[Replica] = []
        self._counted: dict[str, float] = {}

    def play(self) -> Story:
        """Set up, let loose, and watch until all is served or time is over."""
        self._set_up()
        story = Story(self._create_pods())
        self._count(story)
        started = next_kill = time.monotonic()
        while len(story.done) < PODS and time.monotonic() - started < DEADLINE_S:
            self._look(story)
            self._disturb()
            if story.kills < KILLS and time.monotonic() >= next_kill:
                self._kill_one(story)
                next_kill = time.monotonic() + KILL_S * (0.5 + self._rng.random())
            time.sleep(LOOK_S)
        self._count(story)
        return story

    def _set_up(self) -> None:
        self._product.install()
        self._lab.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        self._lab.wait_for(f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default")
        self._lab.apply(_priority(1000), _priority(100), *_election_rights())
        self._replicas = [self._product.prepare(f"tenure-{number}") for number in range(REPLICAS)]
        self._product.register_webhook(self._replicas[0])
        for replica in self._replicas:
            self._product.run(replica)
        self._lab.simulate_nodes([SimulatedNode(name=f"client-{number}") for number in range(4)])

    def _create_pods(self) -> dict[str, int]:
        """All pods while no card is there; the servers come afterwards, so that the whole queue competes."""
        pods = [(f"p{number:03}", self._rng.choice([0, 100, 1000])) for number in range(PODS)]
        for name, priority in pods:
            self._lab.api.ok(Call("POST", PATH, _pod(name, priority)))
        created = {p["metadata"]["name"]: p for p in self._lab.api.ok(Call("GET", PATH))["items"]}

        def place(pod: tuple[str, int]) -> tuple[int, str, str]:
            meta = created[pod[0]]["metadata"]
            return -pod[1], meta["creationTimestamp"], meta["uid"]

        for replica in self._replicas:
            self._lab.start_scheduler(f"scheduler-{replica.name}", _config(replica))
        self._lab.simulate_nodes([_server(number) for number in range(SERVERS)])
        return {name: number for number, (name, _) in enumerate(sorted(pods, key=place))}

    def _look(self, story: Story) -> None:
        """One consistent list: who is placed, and on which cards. A pod that runs has done its work and goes."""
        found = self._lab.api.ok(Call("GET", PATH))["items"]
        there = {pod["metadata"]["name"] for pod in found}
        story.evicted |= story.queue.keys() - story.done - there
        placed = [pod for pod in found if pod["spec"].get("nodeName")]
        cards = Counter(card for pod in placed for card in _cards(pod))
        twice = [card for card, times in cards.items() if times > 1]
        story.double = story.double or (f"{twice[0]} was given to two pods" if twice else "")
        new = [pod for pod in placed if pod["metadata"]["name"] not in story.bound]
        story.bound += [pod["metadata"]["name"] for pod in sorted(new, key=_bound_at)]
        for pod in placed:
            name = pod["metadata"]["name"]
            if pod["status"].get("phase") == "Running" and name not in story.done:
                story.done.add(name)
                self._lab.api.ok(Call("DELETE", f"{PATH}/{name}", {"gracePeriodSeconds": 0}))

    def _disturb(self) -> None:
        """Unrelated news: a node's annotation changes."""
        node = f"/api/v1/nodes/client-{self._rng.randrange(4)}"
        body = {"metadata": {"annotations": {"example.com/beat": str(time.monotonic_ns())}}}
        self._lab.api.ok(Call("PATCH", node, body, "application/merge-patch+json"))

    def _kill_one(self, story: Story) -> None:
        """A replica and the scheduler beside it end at once, and start again."""
        self._count(story)
        replica = self._rng.choice(self._replicas)
        scheduler = f"scheduler-{replica.name}"
        for name in (replica.name, scheduler):
            self._lab.components.kill(name)
        story.kills += 1
        self._counted[replica.name] = 0.0
        for name in (replica.name, scheduler):
            self._lab.components.start(name)

    def _count(self, story: Story) -> None:
        """Filter calls since the last count; a replica's counter begins anew with its life."""
        for replica in self._replicas:
            seen = _filter_calls(replica)
            story.filters += max(0.0, seen - self._counted.get(replica.name, 0.0))
            self._counted[replica.name] = seen


def _filter_calls(replica: Replica) -> float:
    try:
        with urllib.request.urlopen(f"{replica.url}/metrics", timeout=10) as answer:  # noqa: S310 - our own loopback
            lines = answer.read().decode().splitlines()
    except OSError as error:
        raise LabError(f"{replica.name} does not answer: {error}") from error
    return sum(float(line.split()[-1]) for line in lines if line.startswith("tenure_extender_filters_total"))


def _config(replica: Replica) -> dict[str, Any]:
    election = {"leaderElect": True, "resourceNamespace": SYSTEM, "resourceName": "tenure-scheduler"}
    quick = {"leaseDuration": "4s", "renewDeadline": "3s", "retryPeriod": "1s"}
    return scheduler_config(replica) | {"leaderElection": election | quick}


def _election_rights() -> list[dict[str, Any]]:
    """The stock role lets kube-scheduler elect its leader under its own name only."""
    group = "rbac.authorization.k8s.io"
    meta = {"name": "schedulers", "namespace": SYSTEM}
    rule = {
        "apiGroups": ["coordination.k8s.io"],
        "resources": ["leases"],
        "verbs": ["get", "create", "update"],
    }
    user = {"apiGroup": group, "kind": "User", "name": "system:kube-scheduler"}
    return [
        {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": meta, "rules": [rule]},
        {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "metadata": meta,
            "roleRef": {"apiGroup": group, "kind": "Role", "name": "schedulers"},
            "subjects": [user],
        },
    ]


def _priority(value: int) -> dict[str, Any]:
    meta = {"name": f"p{value}"}
    return {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": meta, "value": value}


def _pod(name: str, priority: int) -> dict[str, Any]:
    limits = {names.REMOTE_GPU: "1"}
    spec: dict[str, Any] = {
        "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "main", "image": "example/job", "resources": {"limits": limits}}],
    }
    if priority:
        spec["priorityClassName"] = f"p{priority}"
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def _server(number: int) -> SimulatedNode:
    cards = [
        {
            "id": f"GPU-{number}-{i}",
            "index": i,
            "devmem": 80_000,
            "devcore": 100,
            "mode": "remote",
            "health": True,
        }
        for i in range(CARDS)
    ]
    return SimulatedNode(
        name=f"gpu-{number}",
        address=f"198.19.2.{number + 1}",
        labels={names.LUPINE_SERVER_LABEL: ""},
        annotations={names.NODE_REGISTER: json.dumps(cards)},
    )


def _cards(pod: dict[str, Any]) -> list[str]:
    text = pod["metadata"].get("annotations", {}).get(names.DEVICES_ALLOCATED, "")
    return [piece.split(",")[0] for piece in text.replace(";", "").split(":") if piece]


def _bound_at(pod: dict[str, Any]) -> str:
    conditions = pod["status"].get("conditions", ())
    return next((c["lastTransitionTime"] for c in conditions if c["type"] == "PodScheduled"), "")
