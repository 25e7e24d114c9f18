"""What an admission costs the webhook's process, and how long a caller waits: TLS, a review of 1.8 KB.

The webhook runs in a process of its own, whose CPU time is what it says itself (getrusage). The caller is this
process; it sends what the API server sends for a pod that asks for one card.
"""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from tests.bench.figures import Reading, figure
from tests.cluster.admission_bare import BARE
from tests.cluster.admission_client import Caller
from tests.cluster.admission_server import Webhook, serving
from tests.lab.api import Call
from tests.lab.lab import Lab
from tests.lab.layout import REPOSITORY
from tests.unit.admission.pods import CARD, admission, container, pod
from webhook.admission.handler import PATH

REVIEW_BYTES: Final = 1_800
WARM_UP: Final = 2_000
CALLS: Final = 20_000
SLICES: Final = 10
RATE: Final = 200
RATE_S: Final = 20
CONNECTIONS: Final = 16
RELISTED: Final = 10_000
PAGE: Final = 1_000


def review() -> bytes:
    """A review of REVIEW_BYTES as the API server sends it for a pod of a Deployment."""
    token = {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}}
    ca = {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}}
    access = {"name": "kube-api-access-x2x9k", "projected": {"sources": [token, ca], "defaultMode": 420}}
    mount = {
        "name": "kube-api-access-x2x9k",
        "readOnly": True,
        "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
    }
    obj = pod(
        container(
            limits=CARD | {"cpu": "2", "memory": "8Gi"},
            env=[{"name": "MODEL", "value": "resnet"}, {"name": "EPOCHS", "value": "90"}],
            volumeMounts=[mount],
            terminationMessagePath="/dev/termination-log",
            terminationMessagePolicy="File",
            imagePullPolicy="IfNotPresent",
        ),
        labels={"app": "train", "pod-template-hash": "6b7f8c9d4"},
        annotations={"team": "vision"},
        volumes=[access],
        restartPolicy="Always",
        terminationGracePeriodSeconds=30,
        dnsPolicy="ClusterFirst",
        serviceAccountName="default",
        securityContext={},
    )
    full = admission(obj, options={"apiVersion": "meta.k8s.io/v1", "kind": "CreateOptions"})
    full["request"]["padding"] = ""
    bare = len(_encoded(full))
    assert bare <= REVIEW_BYTES, bare
    full["request"]["padding"] = "x" * (REVIEW_BYTES - bare)
    return _encoded(full)


def _encoded(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


async def _calls(webhook: Webhook, body: bytes, *, connections: int, calls: int, path: str = PATH) -> None:
    async def one() -> None:
        async with Caller(webhook.port, webhook.context, f"{path}?timeout=5s") as caller:
            for _ in range(calls // connections):
                status, answer = await caller.call(body)
                assert (status, b"JSONPatch" in answer) == (200, True)

    await asyncio.gather(*(one() for _ in range(connections)))


async def _cpu_us(connections: int) -> dict[str, Reading]:
    """Admission, and the bare handler of the same process; in slices by turns, so that both meet the same machine."""
    body, spent = review(), {PATH: 0.0, BARE: 0.0}
    with serving() as webhook:
        for path in spent:
            await _calls(webhook, body, connections=connections, calls=WARM_UP, path=path)
        for _ in range(SLICES):
            for path in spent:
                before = webhook.cost().cpu_s
                await _calls(webhook, body, connections=connections, calls=CALLS // SLICES, path=path)
                spent[path] += webhook.cost().cpu_s - before
    return {
        f"admission_cpu_us_c{connections}": Reading(spent[PATH] / CALLS * 1e6, CALLS),
        f"admission_bare_cpu_us_c{connections}": Reading(spent[BARE] / CALLS * 1e6, CALLS),
        f"admission_cpu_ratio_c{connections}": Reading(spent[PATH] / spent[BARE], CALLS),
    }


@figure("admission_cpu_us_c1", unit="us")
@figure("admission_bare_cpu_us_c1", unit="us")
@figure("admission_cpu_ratio_c1", unit="ratio")
async def cpu_on_one_connection() -> dict[str, Reading]:
    return await _cpu_us(1)


@figure("admission_cpu_us_c16", unit="us")
@figure("admission_bare_cpu_us_c16", unit="us")
@figure("admission_cpu_ratio_c16", unit="ratio")
async def cpu_on_sixteen_connections() -> dict[str, Reading]:
    return await _cpu_us(16)


async def _p99_ms(webhook: Webhook, *, rate: int, seconds: float) -> Reading:
    """The 99th percentile of the time from when a call was due, so that a queue of our own making counts."""
    body, loop = review(), asyncio.get_running_loop()
    waits: list[float] = []
    due: asyncio.Queue[float] = asyncio.Queue()

    async def one() -> None:
        async with Caller(webhook.port, webhook.context) as caller:
            while (at := await due.get()) >= 0:
                status, _ = await caller.call(body)
                assert status == 200
                waits.append(loop.time() - at)

    callers = [asyncio.create_task(one(), name="caller") for _ in range(CONNECTIONS)]
    began = loop.time()
    for number in range(int(rate * seconds)):
        at = began + number / rate
        await asyncio.sleep(max(0.0, at - loop.time()))
        due.put_nowait(at)
    for _ in callers:
        due.put_nowait(-1.0)
    await asyncio.gather(*callers)
    return Reading(sorted(waits)[int(len(waits) * 0.99)] * 1e3, n=len(waits))


@figure("admission_p99_ms_200rps", unit="ms")
async def wait_at_two_hundred_a_second() -> Reading:
    with serving() as webhook:
        await _calls(webhook, review(), connections=CONNECTIONS, calls=WARM_UP)
        return await _p99_ms(webhook, rate=RATE, seconds=RATE_S)


@contextmanager
def _crowded() -> Iterator[Lab]:
    """A cluster with RELISTED pods that nobody schedules."""
    lab = Lab(REPOSITORY / ".lab" / "bench-admission")
    lab.up()
    try:
        path = "/api/v1/namespaces/default/pods"
        lab.api.all_ok(Call("POST", path, _waiting(number)) for number in range(RELISTED))
        yield lab
    finally:
        lab.down()


def _waiting(number: int) -> dict[str, Any]:
    obj = pod(container(limits=CARD), schedulerName="nobody", labels={"app": f"job-{number % 50}"})
    obj["metadata"]["name"] = f"p{number}"
    return obj


@figure("admission_p99_ms_relist_10k", unit="ms")
async def wait_while_ten_thousand_pods_are_listed() -> Reading:
    """The webhook's process lists all pods of a real API server again and again, beside its calls."""
    with (
        _crowded() as lab,
        serving(environment={"KUBECONFIG": str(lab.kubeconfig)}, relisting=True) as webhook,
    ):
        await _calls(webhook, review(), connections=CONNECTIONS, calls=WARM_UP)
        before = webhook.metric("tenure_test_relists")
        reading = await _p99_ms(webhook, rate=RATE, seconds=RATE_S)
        relists = webhook.metric("tenure_test_relists") - before
    if relists < 1:
        raise RuntimeError("no list of all pods was finished while the calls were measured")
    return reading
