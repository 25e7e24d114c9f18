"""No series grows without bound: `make prove ONLY=series_growth`.

2,000 pods of ever new names come, get a card each and go, wave after wave. What a server tells Prometheus after the
last wave must be what it told after the second: a series that goes with its pod is gone, and nothing new has come.
"""

import json
import random
import time
import urllib.request
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from service import names
from tests.lab import Lab
from tests.lab.api import Call
from tests.lab.errors import LabError
from tests.lab.product import Product, Replica
from tests.lab.simulated import SimulatedNode
from tests.prove.proofs import Run, proof

PODS = 2_000
SERVERS = 8
CARDS = 8
NAMESPACE = "waves"
PATH = f"/api/v1/namespaces/{NAMESPACE}/pods"
# Seconds for one wave to be placed, and then for everything of it to be gone.
WAVE_S = 120.0
LOOK_S = 0.25


@proof("series_growth")
def series_growth(run: Run) -> None:
    """One run of all waves."""
    for rng in run.trials(1):
        with TemporaryDirectory() as state:
            lab = Lab(Path(state))
            lab.up()
            try:
                grown = _Waves(lab, rng).play()
            finally:
                lab.down()
        run.check(not grown, f"series that were not there after the second wave: {grown}")


class _Waves:
    def __init__(self, lab: Lab, rng: random.Random) -> None:
        self._lab = lab
        self._rng = rng
        self._made = 0

    def play(self) -> dict[str, int]:
        """By metric, how many series more there are after the last wave than after the second."""
        replica = self._start()
        waves, second = 0, Counter[str]()
        while self._made < PODS:
            self._wave(self._rng.randint(SERVERS * CARDS // 2, SERVERS * CARDS))
            waves += 1
            if waves == 2:
                second = _series(replica)
        if not second or not second["hami_remote_gpu_allocated"]:
            raise LabError("nothing was counted")
        return dict(_series(replica) - second)

    def _start(self) -> Replica:
        product = Product(self._lab)
        product.install()
        self._lab.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        replica = product.prepare()
        product.register_webhook(replica)
        product.run(replica)
        product.start_scheduler(replica)
        servers = [_server(number) for number in range(SERVERS)]
        self._lab.simulate_nodes([*servers, SimulatedNode(name="client")])
        return replica

    def _wave(self, size: int) -> None:
        """So many pods come, run with a card, and go."""
        pods = [_pod(f"pod-{self._made + number}-{self._rng.randrange(16**6):06x}") for number in range(size)]
        self._made += size
        self._lab.api.all_ok(Call("POST", PATH, pod) for pod in pods)
        self._until(lambda found: all(pod["spec"].get("nodeName") for pod in found) and len(found) == size)
        self._lab.api.ok(Call("DELETE", PATH, {"gracePeriodSeconds": 0}))
        self._until(lambda found: not found)
        self._lab.wait_for(
            "/apis/tenure.dev/v1alpha1/remoteservers",
            accept=lambda found: sum(server["status"]["held"] for server in found["items"]) == 0,
            seconds=WAVE_S,
        )

    def _until(self, accept: Any) -> None:
        deadline = time.monotonic() + WAVE_S
        while not accept(self._lab.api.ok(Call("GET", PATH))["items"]):
            if time.monotonic() > deadline:
                raise LabError(f"after {self._made} pods the wave stands still")
            time.sleep(LOOK_S)


def _server(number: int) -> SimulatedNode:
    common = {"devmem": 80_000, "devcore": 100, "mode": "remote", "health": True}
    cards = [common | {"id": f"GPU-{number}-{index}", "index": index} for index in range(CARDS)]
    return SimulatedNode(
        name=f"server-{number}",
        address=f"198.19.3.{number + 1}",
        labels={names.LUPINE_SERVER_LABEL: ""},
        annotations={names.NODE_REGISTER: json.dumps(cards)},
    )


def _pod(name: str) -> dict[str, Any]:
    limits = {names.REMOTE_GPU: "1"}
    container = {"name": "main", "image": "lab.local/busybox:1", "resources": {"limits": limits}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 0},
    }


def _series(replica: Replica) -> Counter[str]:
    """Number of series by metric."""
    with urllib.request.urlopen(f"{replica.url}/metrics", timeout=10) as answer:  # noqa: S310 - our own loopback
        text = answer.read().decode()
    return Counter(
        sample.name for family in text_string_to_metric_families(text) for sample in family.samples
    )
