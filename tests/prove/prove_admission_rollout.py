"""Admission while both replicas are replaced and the CA is rotated: `make prove ONLY=admission_rollout`.

Two replicas of the product behind a balancer that sends new connections to ready replicas, as a Service does, and
leaves old ones where they are, as the API server does. One after the other they are replaced, and the CA is
succeeded by another, while a client creates pods without a pause; the failure policy is Fail, so each failed call is
a failed create.
"""

import asyncio
import base64
import contextlib
import http.client
import os
import secrets
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Self

from certs import bundle
from certs.pki import pem
from tests.lab import Lab
from tests.lab.api import Call
from tests.lab.layout import REPOSITORY
from tests.lab.product import Product, Replica
from tests.prove.proofs import Run, proof
from tests.unit.admission.pods import Json, container, pod

ADMISSIONS: Final = 1_200
# Seconds. Together more than the replacement of two replicas and one life of a CA (two thirds of CA_S).
PAUSE_S: Final = 0.1
LEAF_S, CA_S = 60.0, 180.0  # The shortest that the settings allow.
DRAIN_S: Final = 5.0
READY_S: Final = 120.0
HOST: Final = "127.0.0.1"
_HOOK: Final = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/tenure"


class Balancer:
    """Sends each new connection to a replica that is ready; looks as often as endpoints change."""

    def __init__(self) -> None:
        self.port = 0
        self._replicas: list[Replica] = []
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))
        self._turn = 0
        self._stop = asyncio.Event()

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()

    def endpoints(self, *replicas: Replica) -> None:
        """Only these get new connections from now on."""
        self._replicas = list(replicas)

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._connect, HOST, 0)
        self.port = server.sockets[0].getsockname()[1]
        self._started.set()
        await self._stop.wait()
        server.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._turn += 1
        replica = self._replicas[self._turn % len(self._replicas)]
        with suppress(OSError):
            up_reader, up_writer = await asyncio.open_connection(HOST, replica.webhook)
            await asyncio.gather(_pump(reader, up_writer), _pump(up_reader, writer))
        writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while piece := await reader.read(65_536):
            writer.write(piece)
            await writer.drain()
    writer.close()


class Server:
    """A replica of the product, ended by SIGTERM as kubelet ends it."""

    def __init__(self, product: Product, folder: Path) -> None:
        self.replica = product.prepare(f"rollout-{secrets.token_hex(2)}")
        settings = {
            "http__drain_s": str(DRAIN_S),
            "certs__leaf_lifetime_s": str(LEAF_S),
            "certs__ca_lifetime_s": str(CA_S),
            "pool__resource_count_name": "",
            "pool__resource_memory_name": "",
        }
        program = product.program(self.replica, **settings)
        self.log = folder / f"{self.replica.name}.log"
        with self.log.open("wb") as sink:
            self.process = subprocess.Popen(
                program.argv, env=os.environ | dict(program.env), stdout=sink, stderr=sink
            )

    def until_ready(self) -> None:
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline and self.process.poll() is None:
            with (
                suppress(OSError),
                contextlib.closing(http.client.HTTPConnection(HOST, self.replica.ops, timeout=5)) as c,
            ):
                c.request("GET", "/readyz")
                if c.getresponse().status == 200:
                    return
            time.sleep(0.1)
        raise RuntimeError(f"not ready: {self.log.read_text()[-2000:]}")

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(DRAIN_S + 60)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Rollout:
    """Replaces both replicas, one after the other, and waits for the next CA."""

    def __init__(self, lab: Lab, product: Product, balancer: Balancer) -> None:
        self.failure = ""
        self.done = threading.Event()
        self._lab, self._product, self._balancer = lab, product, balancer
        self._servers: list[Server] = []
        self._first = ""

    def begin(self) -> None:
        for _ in range(2):
            self._add()
        self._first = self._bundle()

    def run(self) -> None:
        try:
            for old in list(self._servers):
                self._add()
                self._servers.remove(old)
                self._direct()
                old.end()
            self._until_next_ca()
        except Exception as error:  # noqa: BLE001 - it is told at the end of the proof
            self.failure = repr(error)
        finally:
            self.done.set()

    def close(self) -> None:
        for server in self._servers:
            server.kill()

    def _add(self) -> None:
        server = Server(self._product, self._lab.logs)
        self._servers.append(server)
        server.until_ready()
        self._direct()

    def _direct(self) -> None:
        self._balancer.endpoints(*(server.replica for server in self._servers))

    def _bundle(self) -> str:
        (hook,) = self._lab.api.ok(Call("GET", _HOOK))["webhooks"]
        return base64.b64decode(hook["clientConfig"]["caBundle"]).decode()

    def _until_next_ca(self) -> None:
        """Until every replica serves a leaf of a CA that was not there at the beginning."""
        known = set(bundle.read(self._first.encode()).certificates)
        deadline = time.monotonic() + 3 * CA_S
        while time.monotonic() < deadline:
            new = [c for c in bundle.read(self._bundle().encode()).certificates if c not in known]
            if new and all(_serves(server.replica.webhook, new) for server in self._servers):
                return
            time.sleep(0.5)
        raise TimeoutError("no replica serves a leaf of the next CA")


def _serves(port: int, authorities: list[Any]) -> bool:
    context = ssl.create_default_context(cadata=pem(*authorities).decode())
    with (
        suppress(OSError),
        contextlib.closing(http.client.HTTPSConnection(HOST, port, timeout=5, context=context)) as c,
    ):
        c.connect()
        return True
    return False


@contextmanager
def _running() -> Iterator[tuple[Lab, Rollout]]:
    lab = Lab(REPOSITORY / ".lab" / "prove-rollout")
    lab.up()
    try:
        product = Product(lab)
        product.install()
        with Balancer() as balancer, ExitStack() as stack:
            (found,) = product.manifests("templates/webhook.yaml", values={"webhook.failurePolicy": "Fail"})
            found["webhooks"][0]["clientConfig"] = {"url": f"https://{HOST}:{balancer.port}/admission/pods"}
            # Restarts and certificates are on trial, not how busy the machine is.
            found["webhooks"][0]["timeoutSeconds"] = 30
            lab.apply(found)
            rollout = Rollout(lab, product, balancer)
            stack.callback(rollout.close)
            rollout.begin()
            yield lab, rollout
    finally:
        lab.down()


@proof("admission_rollout")
def no_create_fails_while_replicas_and_ca_change(run: Run) -> None:
    with _running() as (lab, rollout):
        _until_called(lab)
        thread = threading.Thread(target=rollout.run)
        thread.start()
        _create(run, lab, ADMISSIONS)
        while not rollout.done.is_set():
            _create(run, lab, 20)
        thread.join()
        for _ in run.trials(1):
            run.check(not rollout.failure, f"the rollout did not come to its end: {rollout.failure}")


def _until_called(lab: Lab) -> None:
    deadline = time.monotonic() + 60
    while not _fine(*_created(lab, "?dryRun=All")):
        if time.monotonic() > deadline:
            raise RuntimeError("the API server never called the webhook")
        time.sleep(0.1)


def _create(run: Run, lab: Lab, count: int) -> None:
    for _ in run.trials(count):
        status, answer = _created(lab)
        run.check(_fine(status, answer), f"{status}: {str(answer)[:500]}")
        time.sleep(PAUSE_S)


def _created(lab: Lab, query: str = "") -> tuple[int, Json]:
    obj = pod(container(limits={"nvidia.com/vgpu-number": "1"}), schedulerName="nobody")
    obj["metadata"] = {"generateName": "rollout-"}
    answer = lab.api.request(Call("POST", f"/api/v1/namespaces/default/pods{query}", obj), seconds=60)
    return answer.status, answer.json()


def _fine(status: int, answer: Json) -> bool:
    """Created, and by way of the webhook."""
    return status == 201 and any("csi" in volume for volume in answer["spec"].get("volumes", []))
