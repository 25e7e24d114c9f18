"""What one check of a claim template costs on a large cluster: 1,000 nodes of 16 devices, from the bytes of the slices.

Seconds are CPU time, so that a busy machine does not change them. Nodes differ: cards in use, NICs on either side.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
from typing import TYPE_CHECKING, Any, Final

import msgspec

from controllers.claims.check import Subject, World, run
from controllers.claims.objects import Claim, DeviceClass, ResourceSlice, Template
from controllers.claims.report import Verdict
from tests.bench.figures import Reading, figure
from tests.prove import claims_world

if TYPE_CHECKING:
    from collections.abc import Iterator

NODES: Final = 1_000
ROUNDS: Final = 3
SEED: Final = 1


@figure("claims_check_s_1000_nodes", unit="s")
def claims_check() -> Reading:
    """The median of a few whole checks, each with a fresh CEL engine."""
    rng = random.Random(SEED)
    slices = [msgspec.json.encode(found) for place in range(NODES) for found in _node(rng, place)]
    claims = [msgspec.json.encode(_used(place)) for place in range(0, NODES, 2)]
    seconds = [_once(slices, claims) for _ in range(ROUNDS)]
    return Reading(statistics.median(seconds), n=ROUNDS)


def _once(slices: list[bytes], claims: list[bytes]) -> float:
    gc.collect()
    began = time.process_time()
    world = World(
        classes={c["metadata"]["name"]: msgspec.convert(c, DeviceClass) for c in claims_world.CLASSES},
        slices=tuple(msgspec.json.decode(raw, type=ResourceSlice) for raw in slices),
        claims=tuple(msgspec.json.decode(raw, type=Claim) for raw in claims),
    )
    template = msgspec.convert(_template(), Template)
    report = run(Subject("team/npu-rdma", template), world)
    seconds = time.process_time() - began
    if report.verdict is not Verdict.PASS or not NODES < report.pods < 2 * NODES:
        raise AssertionError(f"another answer than the cluster has: {report.verdict}, {report.pods} pods")
    return seconds


def _node(rng: random.Random, place: int) -> Iterator[dict[str, Any]]:
    """10 NPUs and 6 NICs on two NUMA nodes."""
    node = f"node-{place:04}"
    numa, root, bus = claims_world.NUMA, claims_world.ROOT, "resource.kubernetes.io/pciBusID"
    npus = [
        {
            "name": f"npu{i}",
            "attributes": {
                numa: {"int": i // 5},
                root: {"string": f"pci0000:{i:02x}"},
                bus: {"string": f"0000:{i:02x}:00.0"},
                "uuid": {"string": f"{place:08}-{i:04}"},
                "arch": {"string": "rngd"},
                "driverVersion": {"version": "2026.3.0"},
            },
            "capacity": {"memory": {"value": "48Gi"}},
        }
        for i in range(10)
    ]
    side = rng.choice([2, 3, 4])
    nics = [
        {
            "name": f"pci-{i:04}-00-00-0",
            "attributes": {
                "rdma": {"bool": True},
                "pciSubsystem": {"string": "9140"},
                "rdmaDevice": {"string": f"bnxt_re{i}"},
                "mac": {"string": f"02:00:00:00:{place % 100:02}:{i:02}"},
                numa: {"int": int(i >= side)},
                root: {"string": f"pci0001:{i:02x}"},
            },
        }
        for i in range(6)
    ]
    yield claims_world.slice_(f"{node}-npu", claims_world.NPU, node, npus)
    yield claims_world.slice_(f"{node}-nic", claims_world.NIC, node, nics)


def _used(place: int) -> dict[str, Any]:
    """A pod of another template has two NPUs."""
    pool = f"node-{place:04}-{claims_world.NPU}"
    results = [
        {"request": "other", "driver": claims_world.NPU, "pool": pool, "device": f"npu{i}"} for i in (0, 1)
    ]
    return {
        "metadata": {"name": f"claim-{place}", "namespace": "other"},
        "status": {"allocation": {"devices": {"results": results}}},
    }


def _template() -> dict[str, Any]:
    return {
        "metadata": {"name": "npu-rdma", "namespace": "team"},
        "spec": {"spec": {"devices": claims_world.aligned()}},
    }
