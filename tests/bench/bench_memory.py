"""What a cluster's pods cost in memory: the whole server, following 10,000 of them."""

import time
import urllib.request
import uuid
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.bench.figures import Reading, figure
from tests.lab import Lab
from tests.lab.etcd import put
from tests.lab.product import Product, Replica

PODS = 10_000
NAMESPACE = "crowd"
# Seconds for the list to settle, and for Python to give back what decoding it took.
SETTLE_S = 5.0


@figure("resident_mib_10k_pods", unit="MiB")
def resident_mib_10k_pods() -> Reading:
    """Resident memory of `tenure serve` that follows 10,000 pods as applications write them."""
    with TemporaryDirectory() as state:
        lab = Lab(Path(state))
        lab.up()
        try:
            product = Product(lab)
            product.install()
            lab.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
            lab.wait_for(f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default")
            put(lab, ((f"/registry/pods/{NAMESPACE}/pod-{number}", _pod(number)) for number in range(PODS)))
            replica = product.prepare()
            product.register_webhook(replica)
            product.run(replica)
            time.sleep(SETTLE_S)
            _check_follows_all(replica)
            return Reading(_resident_mib(lab.components.pid(replica.name)), n=PODS)
        finally:
            lab.down()


def _check_follows_all(replica: Replica) -> None:
    """A server that lost its pods would be small for the wrong reason."""
    with urllib.request.urlopen(f"{replica.url}/metrics", timeout=10) as answer:  # noqa: S310 - our own loopback
        text = answer.read().decode()
    line = next(line for line in text.splitlines() if line.startswith('tenure_kube_objects{resource="pods"}'))
    followed = float(line.split()[-1])
    if followed < PODS:
        raise ValueError(f"the server follows {followed:.0f} of {PODS} pods")


def _pod(number: int) -> dict[str, Any]:
    """About 3 KiB stored: labels, annotations and variables as a chart writes them; nobody schedules it."""
    notes = {f"example.com/note-{i}": "x" * 80 for i in range(6)}
    labels = {"app.kubernetes.io/name": f"app-{number % 50}", "app.kubernetes.io/instance": f"i-{number}"}
    env = [{"name": f"VARIABLE_{i}", "value": "y" * 40} for i in range(10)]
    resources = {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "256Mi"}}
    container = {"name": "main", "image": "example.com/app:1", "env": env, "resources": resources}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"pod-{number}",
            "namespace": NAMESPACE,
            "uid": str(uuid.uuid4()),
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": labels,
            "annotations": notes,
        },
        "spec": {"schedulerName": "nobody", "containers": [container]},
        "status": {"phase": "Pending"},
    }


def _resident_mib(pid: int) -> float:
    """VmRSS of a process (Linux, proc_pid_status)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    kib = next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))
    return round(kib / 1024, 1)
