"""A small model of an API server, for the one thing a real one cannot do: a hundred thousand steps in any order.

It knows pods, nodes and RemoteServers, resourceVersions, preconditions, and the Binding's rules (observed on a real
cluster, rows 2, 3, 24, 28, 32, 33 of the ground that the design stands on). Every call stops at a turnstile, so that
a random driver decides which call goes next, and whether its answer is lost, late, or never sent.
"""

import asyncio
import copy
import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any

import msgspec

from service import names
from service.kube.errors import AlreadyExists, Conflict, DeadlineExceeded, KubeError, NotFound, Unreachable

SERVERS = "/apis/tenure.dev/v1alpha1/remoteservers"
NAMESPACE = "ns"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
# A call that its caller gave up may still be carried out this long after.
LATE = timedelta(seconds=15)

Object = dict[str, Any]


class Fault(Enum):
    """What becomes of one call."""

    NONE = "none"
    NOT_SENT = "not sent"
    ANSWER_LOST = "answer lost"
    LATE = "late"
    SLOW = "slow"
    """Carried out now; the answer comes when the call is let go once more."""


def conflict(text: str) -> Conflict:
    return Conflict(409, reason="Conflict", message=text)


def not_found(text: str) -> NotFound:
    return NotFound(404, reason="NotFound", message=text)


@dataclass
class Change:
    """A watch event of one kind."""

    kind: str
    gone: bool
    raw: bytes


@dataclass
class World:
    """The cluster's state, and the only clock."""

    now: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    version: int = 0
    pods: dict[str, Object] = field(default_factory=dict)
    nodes: dict[str, Object] = field(default_factory=dict)
    servers: dict[str, Object] = field(default_factory=dict)
    listeners: list[Callable[[Change], None]] = field(default_factory=list)
    late: list[tuple[datetime, Callable[[], object]]] = field(default_factory=list)
    made: int = 0

    def kind(self, kind: str) -> dict[str, Object]:
        found: dict[str, Object] = getattr(self, kind)
        return found

    def put(self, kind: str, name: str, new: Object) -> Object:
        """Store an object with a new version and tell everybody."""
        self.version += 1
        new["metadata"]["resourceVersion"] = str(self.version)
        self.kind(kind)[name] = new
        self._tell(kind, new, gone=False)
        return new

    def add(self, kind: str, name: str, new: Object) -> Object:
        self.made += 1
        meta = new.setdefault("metadata", {})
        meta |= {"name": name, "uid": f"{kind}-{self.made}", "creationTimestamp": self.now.isoformat()}
        return self.put(kind, name, new)

    def drop(self, kind: str, name: str) -> None:
        self.version += 1
        gone = self.kind(kind).pop(name)
        gone["metadata"]["resourceVersion"] = str(self.version)
        self._tell(kind, gone, gone=True)

    def _tell(self, kind: str, new: Object, *, gone: bool) -> None:
        raw = json.dumps(new).encode()
        for listener in self.listeners:
            listener(Change(kind, gone, raw))

    def land_late(self, rng: random.Random) -> None:
        """Carry out one call that nobody waits for any more, unless its time is over."""
        self.late = [item for item in self.late if self.now - item[0] <= LATE]
        if self.late:
            _, act = self.late.pop(rng.randrange(len(self.late)))
            try:
                act()
            except KubeError:
                return

    # Calls, as the API server carries them out

    def call(self, verb: str, path: str, body: Any, options: Mapping[str, Any]) -> bytes:
        found = self._route(verb, path, body, options)
        return json.dumps(found).encode()

    def _route(self, verb: str, path: str, body: Any, options: Mapping[str, Any]) -> Object:
        if path.startswith(SERVERS):
            return self._servers(verb, path.removeprefix(SERVERS).strip("/"), body, options)
        name = path.removeprefix("/api/v1/pods").removeprefix(PODS).strip("/")
        if not name:
            return {"metadata": {}, "items": list(self.pods.values())}
        if name.endswith("/binding"):
            return self._bind(name.removesuffix("/binding"), body)
        if verb == "get":
            return self._existing("pods", name)
        return self._patch_pod(name, body)

    def _existing(self, kind: str, name: str) -> Object:
        if name not in self.kind(kind):
            raise not_found(name)
        return self.kind(kind)[name]

    def _servers(self, verb: str, name: str, body: Any, options: Mapping[str, Any]) -> Object:
        match verb:
            case "get" if not name:
                return {"metadata": {}, "items": list(self.servers.values())}
            case "create":
                wanted = body["metadata"]["name"]
                if wanted in self.servers:
                    raise AlreadyExists(409, reason="AlreadyExists", message=wanted)
                return self.add("servers", wanted, copy.deepcopy(body))
            case "replace":
                return self._swap(name.removesuffix("/status"), body)
            case "delete":
                old = self._existing("servers", name)["metadata"]
                asked = (options.get("uid"), options.get("resource_version"))
                if asked != (old["uid"], old["resourceVersion"]):
                    raise conflict("precondition")
                self.drop("servers", name)
                return {}
            case _:
                return self._existing("servers", name)

    def _swap(self, name: str, body: Object) -> Object:
        old = self._existing("servers", name)
        if _differs(body["metadata"], old["metadata"], "resourceVersion"):
            raise conflict("resourceVersion")
        held = [item["card"] for item in body["status"]["allocations"]]
        if len(held) != len(set(held)):
            raise AssertionError(f"a card is held twice in one status: {held}")
        return self.put("servers", name, {**copy.deepcopy(old), "status": body["status"]})

    def _bind(self, name: str, body: Object) -> Object:
        pod = copy.deepcopy(self._existing("pods", name))
        meta, spec = pod["metadata"], pod["spec"]
        asked = body["metadata"]
        if _differs(asked, meta, "uid") or _differs(asked, meta, "resourceVersion"):
            raise conflict("precondition")
        if spec.get("nodeName") or spec.get("schedulingGates") or pod["status"]["phase"] != "Pending":
            raise conflict("assigned, gated or ended")
        spec["nodeName"] = body["target"]["name"]
        meta["annotations"] = meta.get("annotations", {}) | asked["annotations"]
        self.put("pods", name, pod)
        return {}

    def _patch_pod(self, name: str, body: Object) -> Object:
        pod = copy.deepcopy(self._existing("pods", name))
        if _differs(body["metadata"], pod["metadata"], "uid"):
            raise conflict("uid")
        if body.get("spec"):
            gates = pod["spec"].get("schedulingGates", [])
            pod["spec"]["schedulingGates"] = [gate for gate in gates if gate["name"] != names.GATE]
        added = body["metadata"].get("annotations", {})
        pod["metadata"]["annotations"] = pod["metadata"].get("annotations", {}) | added
        return self.put("pods", name, pod)


def _differs(asked: Object, has: Object, precondition: str) -> bool:
    """A precondition that nobody gave always holds, as in a real API server."""
    return bool(asked.get(precondition, has[precondition]) != has[precondition])


@dataclass
class Turnstile:
    """Calls of all replicas that wait for their turn."""

    waiting: list[tuple[asyncio.Future[Fault], bool]] = field(default_factory=list)

    async def turn(self, *, write: bool) -> Fault:
        future: asyncio.Future[Fault] = asyncio.get_running_loop().create_future()
        self.waiting.append((future, write))
        return await future

    def next(self, rng: random.Random, trouble: float) -> bool:
        """Let one call go, perhaps into trouble. False when none waits."""
        self.waiting = [item for item in self.waiting if not item[0].done()]
        if not self.waiting:
            return False
        future, write = self.waiting.pop(rng.randrange(len(self.waiting)))
        lost = [Fault.ANSWER_LOST, Fault.LATE] if write else []
        faults = [Fault.NOT_SENT, Fault.SLOW, Fault.SLOW, *lost]
        future.set_result(rng.choice(faults) if rng.random() < trouble else Fault.NONE)
        return True


class ModelClient:
    """The calls of service.kube.client.KubeClient that the pool makes, on a World."""

    def __init__(self, world: World, turnstile: Turnstile) -> None:
        self._world = world
        self._turnstile = turnstile

    async def get(self, path: str, **options: Any) -> bytes:
        return await self._call("get", path, None, options)

    async def create(self, path: str, body: Any, **options: Any) -> bytes:
        return await self._call("create", path, body, options)

    async def replace(self, path: str, body: Any, **options: Any) -> bytes:
        return await self._call("replace", path, body, options)

    async def patch(self, path: str, body: Any, **options: Any) -> bytes:
        return await self._call("patch", path, body, options)

    async def delete(self, path: str, **options: Any) -> bytes:
        return await self._call("delete", path, None, options)

    async def _call(self, verb: str, path: str, body: Any, options: Mapping[str, Any]) -> bytes:
        sent = msgspec.json.decode(msgspec.json.encode(body))
        begun = self._world.now
        fault = await self._turnstile.turn(write=verb != "get")
        if fault is Fault.NOT_SENT:
            raise Unreachable("no connection", outcome_unknown=False)
        if fault is Fault.LATE:
            self._world.late.append((begun, lambda: self._world.call(verb, path, sent, options)))
            raise DeadlineExceeded("no answer", outcome_unknown=True)
        answer = self._world.call(verb, path, sent, options)
        if fault is Fault.SLOW:
            await self._turnstile.turn(write=False)
        if fault is Fault.ANSWER_LOST:
            raise DeadlineExceeded("no answer", outcome_unknown=True)
        return answer
