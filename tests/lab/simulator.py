"""The process behind simulated nodes: `python -m tests.lab.simulator`, started by the lab.

It imitates what a kubelet tells the API server, and nothing else: it keeps the lease of each node fresh, says
of pods bound to them that they run, and removes pods that are being deleted. Nothing is ever executed.
API server, scheduler and controllers are the real ones.
"""

import argparse
import asyncio
import itertools
import random
import ssl
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any

import aiohttp
import msgspec
from aiohttp import web

from tests.lab.kubelet import (
    Condition,
    Event,
    Leased,
    Object,
    Page,
    lease,
    pod_address,
    pod_path,
    ready,
    running,
)
from tests.lab.simulated import LABEL, NODES

WORKERS = 16  # Requests under way at once; more only queue in the API server on two cores.
QUEUED_JOBS = 20_000  # Four times the pods of the largest lab; a full queue slows the watches down.
PAGE = 500  # Objects per page of a list.
RENEW_SECONDS = 10.0  # As kubelet's.
# A renewal costs the API server several milliseconds, so above 200 nodes each renews less often: a thousand every 50 s,
# well within the time that the lab's node controller waits (NODE_GRACE).
RENEWALS_PER_SECOND = 20
RETRY_SECONDS = 0.5
WATCH_SECONDS = 300  # The API server ends a watch then, and it starts again from a new list.
REQUEST_SECONDS = 10
MAX_EVENT_BYTES = 4 << 20  # etcd takes objects of 1.5 MiB; an event holds one, encoded in JSON.

_PODS = "/api/v1/pods"
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_SETTLED = {"Running", "Succeeded", "Failed"}
_SUCCESS = range(200, 300)
_CONFLICT, _TOO_MANY, _SERVER_ERROR = 409, 429, 500
_NO_ANSWER = (aiohttp.ClientError, TimeoutError, msgspec.DecodeError)


Job = Callable[[], Awaitable[None]]


class Simulator:
    """All simulated kubelets: state changes are synchronous, and what they cause are jobs in one queue."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session
        self._jobs: asyncio.Queue[Job] = asyncio.Queue(QUEUED_JOBS)
        self._nodes: dict[str, Object] = {}
        self._lease_versions: dict[str, str] = {}
        self._next_renewal: dict[str, float] = {}
        self._retired: set[str] = set()  # Deleted nodes: their pods must still go when they are deleted.
        self._early: dict[str, dict[str, Object]] = {}  # Pods by the node that we have not seen (yet).
        self._addresses = itertools.count(256)
        self.synced: set[str] = set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow(NODES, {"labelSelector": LABEL}, self._node_changed))
            tasks.create_task(self._follow(_PODS, {"fieldSelector": "spec.nodeName!="}, self._pod_changed))
            tasks.create_task(self._renew_leases())
            for _ in range(WORKERS):
                tasks.create_task(self._work())

    # What happens

    def _node_changed(self, kind: str, node: Object) -> Iterable[Job]:
        name = node.metadata.name
        if kind == "DELETED":
            self._nodes.pop(name, None)
            self._next_renewal.pop(name, None)
            self._lease_versions.pop(name, None)
            self._retired.add(name)
            return
        if Condition("Ready", "Unknown") in node.status.conditions:
            yield lambda: self._say_it_is_ready(
                node
            )  # The node controller missed renewals; `False` is a test's.
        is_new = name not in self._nodes
        self._nodes[name] = node
        if is_new:
            self._next_renewal[name] = 0.0
            for pod in self._early.pop(name, {}).values():
                yield from self._pod_changed("ADDED", pod)

    def _pod_changed(self, kind: str, pod: Object) -> Iterable[Job]:
        name, uid = pod.spec.node_name, pod.metadata.uid
        if name not in self._nodes and name not in self._retired:
            early = self._early.setdefault(name, {})
            early.pop(uid, None)
            if kind != "DELETED":
                early[uid] = pod
            return
        if kind == "DELETED":
            return
        if pod.metadata.deletion_timestamp is not None:
            yield lambda: self._remove(pod)
        elif pod.status.phase not in _SETTLED and name in self._nodes:
            yield lambda: self._say_it_runs(pod, self._nodes.get(name))

    # What a kubelet writes

    async def _remove(self, pod: Object) -> None:
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod.metadata.uid}}
        await self._send("DELETE", pod_path(pod), options)

    async def _say_it_runs(self, pod: Object, node: Object | None) -> None:
        if node is not None:
            body = running(pod, node, address=pod_address(next(self._addresses)))
            await self._send(
                "PATCH", f"{pod_path(pod)}/status", body, "application/strategic-merge-patch+json"
            )

    async def _say_it_is_ready(self, node: Object) -> None:
        path = f"{NODES}/{node.metadata.name}/status"
        await self._send("PATCH", path, ready(node), "application/strategic-merge-patch+json")

    async def _renew(self, name: str) -> None:
        node = self._nodes.get(name)
        if node is None:
            return
        version = self._lease_versions.get(name)
        body = lease(node, version=version)
        if version is None:
            status, answer = await self._send("POST", _LEASES, body)
        else:
            status, answer = await self._send("PUT", f"{_LEASES}/{name}", body)
        if status == _CONFLICT:  # It is there, from an earlier simulator or a write whose answer was lost.
            status, answer = await self._send("GET", f"{_LEASES}/{name}", None)
        if status in _SUCCESS:
            self._lease_versions[name] = msgspec.json.decode(answer, type=Leased).metadata.resource_version
        else:
            self._lease_versions.pop(name, None)

    # How it is done

    async def _renew_leases(self) -> None:
        while True:
            now = time.monotonic()
            pause = max(RENEW_SECONDS, len(self._nodes) / RENEWALS_PER_SECOND)
            for name, due in list(self._next_renewal.items()):
                if due <= now:
                    first = due == 0.0  # A random start spreads the renewals of many nodes over time.
                    self._next_renewal[name] = now + pause * (random.random() if first else 1.0)
                    await self._jobs.put(lambda name=name: self._renew(name))  # type: ignore[misc]
            await asyncio.sleep(RETRY_SECONDS)

    async def _work(self) -> None:
        while True:
            job = await self._jobs.get()
            while True:
                try:
                    await job()
                except _NO_ANSWER:
                    await asyncio.sleep(RETRY_SECONDS)
                else:
                    break

    async def _send(
        self, method: str, path: str, body: object, content_type: str = "application/json"
    ) -> tuple[int, bytes]:
        """One request; its status and answer. After a refusal an event will tell what to do instead."""
        data = None if body is None else msgspec.json.encode(body)
        headers = {"Content-Type": content_type}
        async with self._session.request(method, path, data=data, headers=headers) as answer:
            content = await answer.read()
            if answer.status == _TOO_MANY or answer.status >= _SERVER_ERROR:
                answer.raise_for_status()
            return answer.status, content

    async def _follow(
        self, path: str, query: dict[str, str], changed: Callable[[str, Object], Iterable[Job]]
    ) -> None:
        """List and watch for ever; `changed` hears of everything that is there and of each change."""
        known: dict[str, Object] = {}
        while True:
            with suppress(*_NO_ANSWER):
                version, listed = await self._list(path, query)
                for uid in known.keys() - listed.keys():
                    await self._enqueue(changed("DELETED", known[uid]))
                for item in listed.values():
                    await self._enqueue(changed("ADDED", item))
                known = listed
                self.synced.add(path)
                async for kind, item in self._watch(path, query, version):
                    if kind == "DELETED":
                        known.pop(item.metadata.uid, None)
                    else:
                        known[item.metadata.uid] = item
                    await self._enqueue(changed(kind, item))
            await asyncio.sleep(RETRY_SECONDS)

    async def _enqueue(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            await self._jobs.put(job)

    async def _list(self, path: str, query: dict[str, str]) -> tuple[str, dict[str, Object]]:
        found: dict[str, Object] = {}
        params = query | {"limit": str(PAGE)}
        while True:
            async with self._session.get(path, params=params, raise_for_status=True) as answer:
                page = msgspec.json.decode(await answer.read(), type=Page)
            found |= {item.metadata.uid: item for item in page.items}
            if not page.metadata.following:
                return page.metadata.resource_version, found
            params = params | {"continue": page.metadata.following}

    async def _watch(self, path: str, query: dict[str, str], version: str) -> Any:
        params = query | {"watch": "1", "resourceVersion": version, "timeoutSeconds": str(WATCH_SECONDS)}
        timeout = aiohttp.ClientTimeout(total=WATCH_SECONDS + REQUEST_SECONDS)
        async with self._session.get(path, params=params, timeout=timeout, raise_for_status=True) as answer:
            async for line in answer.content:
                event = msgspec.json.decode(line, type=Event)
                if event.type == "ERROR":  # The version is too old: a new list is needed.
                    return
                yield event.type, msgspec.json.decode(event.object, type=Object)


async def serve(server: str, context: ssl.SSLContext, port: int) -> None:
    """Simulate until the process is ended; `/healthz` answers 200 when nodes and pods are known."""
    connector = aiohttp.TCPConnector(ssl=context, limit=WORKERS + 2)  # And the two watches.
    async with aiohttp.ClientSession(
        server,
        connector=connector,
        timeout=aiohttp.ClientTimeout(total=REQUEST_SECONDS),
        read_bufsize=MAX_EVENT_BYTES,
    ) as session:
        simulator = Simulator(session)

        async def health(_: web.Request) -> web.Response:
            return web.Response(status=200 if simulator.synced == {NODES, _PODS} else 503)

        app = web.Application()
        app.router.add_get("/healthz", health)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        await simulator.run()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.simulator", description=__doc__)
    parser.add_argument("--server", required=True, help="URL of the API server")
    parser.add_argument("--authority", required=True, help="certificate that signs the server's")
    parser.add_argument("--certificate", required=True, help="client certificate")
    parser.add_argument("--key", required=True, help="its key")
    parser.add_argument("--port", required=True, type=int, help="port of /healthz on loopback")
    args = parser.parse_args()
    context = ssl.create_default_context(cafile=args.authority)
    context.load_cert_chain(args.certificate, args.key)
    asyncio.run(serve(args.server, context, args.port))


if __name__ == "__main__":
    main()
