"""What `helm test` asks: does an installed Tenure do its work on this cluster? Pods are created as dry runs only.

Our own readiness cannot see what stands between the API server and us (a mesh's proxy, a NetworkPolicy): only a pod
that comes back changed can.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from service import names
from service.asking import NoAccessError, ThroughApiServer
from service.kube.client import KubeClient
from service.kube.errors import Forbidden, KubeError
from service.kube.metrics import KubeMetrics
from service.kube.resources import PODS
from service.metrics import MetricSet
from service.objects import Pod
from service.settings import Settings

# Seconds that a new installation gets: the caBundle and the policies reach each API server by watches of its own.
PATIENCE_S: Final = 60.0
PAUSE_S: Final = 2.0
_FORGED: Final = {names.LUPINE_ENDPOINT: "192.0.2.1:1"}
_GUARD: Final = "tenure-decision-keys"


@dataclass(frozen=True, slots=True)
class Result:
    """One question and its answer: `fault` is None when all is well, else a sentence that says where to look."""

    question: str
    fault: str | None


async def selftest(
    settings: Settings, *, namespace: str, patience_s: float = PATIENCE_S, pause_s: float = PAUSE_S
) -> list[Result]:
    """Ask everything until it is well or the patience ends. `namespace` is one whose pods are admitted by us."""
    client = await KubeClient.connect(settings.kube, metrics=KubeMetrics(MetricSet()))
    questions: dict[str, Callable[[], Awaitable[str | None]]] = {
        "the API server calls the webhook": lambda: _webhook(client, settings, namespace),
        "the guard denies forged allocations": lambda: _guard(client, settings),
        "the server answers behind its Service": lambda: _server(settings),
    }
    ends = time.monotonic() + patience_s
    try:
        return [Result(text, await _patiently(ask, ends, pause_s)) for text, ask in questions.items()]
    finally:
        await client.close()


async def _patiently(ask: Callable[[], Awaitable[str | None]], ends: float, pause_s: float) -> str | None:
    while True:
        fault = await ask()
        if fault is None or time.monotonic() >= ends:
            return fault
        await asyncio.sleep(pause_s)


async def _webhook(client: KubeClient, settings: Settings, namespace: str) -> str | None:
    """Forged keys are stripped, and a request for a remote card comes back with our gate."""
    try:
        made = await _dry_run(client, namespace, _limits(settings))
    except KubeError as error:
        return f"a pod could not be created in {namespace}: {error}"
    if _FORGED.keys() & made.metadata.annotations.keys():
        return (
            "a pod came back as it was sent: look whether the tenure-server pods are ready, whether a proxy of a mesh"
            " stands before them, and whether a NetworkPolicy lets the API server's node addresses through"
        )
    gated = any(gate.name == names.GATE for gate in made.spec.scheduling_gates or ())
    if settings.pool.enabled and not gated:
        return f"a pod that asks for {settings.pool.resource_count_name} came back without gate {names.GATE}"
    return None


async def _guard(client: KubeClient, settings: Settings) -> str | None:
    """In our own namespace the webhook is never called, so the policy stands alone."""
    try:
        await _dry_run(client, settings.kube.namespace, {})
    except Forbidden as error:
        return None if _GUARD in error.message else f"something else refused the pod: {error.message}"
    except KubeError as error:
        return f"a pod could not be tried in {settings.kube.namespace}: {error}"
    return f"a pod with annotation {names.LUPINE_ENDPOINT} was admitted: is policy {_GUARD} there, with its binding?"


async def _server(settings: Settings) -> str | None:
    try:
        await ThroughApiServer(settings.kube).get("/readyz")
    except NoAccessError as error:
        return str(error)
    return None


def _limits(settings: Settings) -> dict[str, str]:
    return {settings.pool.resource_count_name: "1"} if settings.pool.enabled else {}


async def _dry_run(client: KubeClient, namespace: str, limits: dict[str, str]) -> Pod:
    """The pod as it would be stored. It passes Pod Security `restricted`."""
    security = {"allowPrivilegeEscalation": False, "runAsNonRoot": True, "capabilities": {"drop": ["ALL"]}}
    container = {
        "name": "main",
        "image": "none",
        "resources": {"limits": limits},
        "securityContext": security | {"seccompProfile": {"type": "RuntimeDefault"}},
    }
    pod: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "tenure-test-", "annotations": _FORGED},
        "spec": {"containers": [container], "automountServiceAccountToken": False},
    }
    body = await client.create(PODS.path(namespace), pod, params={"dryRun": "All"})
    return msgspec.json.decode(body, type=Pod)
