"""What node agents publish, and taint rules of others, in the answers of `tenure claims check`; all of it is real."""

import asyncio
import copy
import json
import secrets
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from service.settings import OccupancySettings
from tests.cluster import occupancy
from tests.cluster.occupancy import PROFILES, Seen, eventually, running
from tests.commands import command, environment, tenure
from tests.lab import Lab
from tests.lab.api import Call
from tests.lab.simulated import SimulatedNode
from tests.prove import claims_world
from tests.unit.occupancy.ground import FULL, Ground, Programs

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
NODE = "claims-and-nodes"
CARD = "0000:03:00.0"
RDMA = "tenure.dev/rdma-devices"
Simulate = Callable[[Iterable[SimulatedNode]], None]
Json = dict[str, Any]


@pytest.fixture
def cluster(lab: Lab, simulate: Simulate) -> Iterator[Lab]:
    """The lab with the reference node, whose first NPU says its PCI address."""
    simulate([SimulatedNode(name=NODE)])
    npus, nics = copy.deepcopy(claims_world.reference(NODE))
    npus["spec"]["devices"][0]["attributes"]["resource.kubernetes.io/pciBusID"] = {"string": CARD}
    lab.apply(*claims_world.CLASSES, npus, nics)
    yield lab
    lab.api.ok(Call("DELETE", SLICES))


def template(namespace: str, claim: Json | None = None) -> Json:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "npu-rdma", "namespace": namespace},
        "spec": {"spec": {"devices": claim or claims_world.aligned()}},
    }


def check(lab: Lab, namespace: str) -> Json:
    ran = tenure("claims", "check", f"{namespace}/npu-rdma", "-o", "json", KUBECONFIG=str(lab.kubeconfig))
    assert ran.stdout, ran.stderr
    report: Json = json.loads(ran.stdout)
    return report


def findings(report: Json, name: str) -> list[tuple[str, str]]:
    (found,) = (c for c in report["checks"] if c["name"] == name)
    return [(one["verdict"], one["sentence"]) for one in found["findings"]]


# Host-held cards


@pytest.fixture
def seen(cluster: Lab) -> Iterator[Seen]:
    """The node, whose profiles go with the test."""
    occupancy.install_kinds(cluster)
    found = Seen(cluster, NODE)
    yield found
    for profile in found.profiles():
        cluster.api.ok(Call("DELETE", f"{PROFILES}/{profile}"))


async def test_a_card_that_a_host_process_holds_lowers_the_capacity_while_it_does(
    cluster: Lab, namespace: str, seen: Seen, ground: Ground, programs: Programs
) -> None:
    await asyncio.to_thread(cluster.apply, template(namespace))
    ground.rngd(0, CARD, FULL)
    ground.tool("furiosa-smi", "case $1 in ps) echo '[]';; *) exit 2;; esac")
    settings = OccupancySettings(
        dev=ground.dev, sys=ground.sys, tool_folders=(ground.bin,), interval_s=0.5, resync_s=1.0
    )
    name = CARD.replace(":", "-")
    async with running(cluster, NODE, settings):
        await eventually(lambda: seen.keys(name).get("inUse") == "false")
        assert (await asyncio.to_thread(check, cluster, namespace))["pods"] == 2
        pid = programs.opener(ground.dev / "rngd/npu0pe0")
        await eventually(lambda: seen.keys(name).get("health") == "busy")
        report = await asyncio.to_thread(check, cluster, namespace)
        assert report["pods"] == 1
        hints = [text for verdict, text in findings(report, "capacity") if verdict == "pass"]
        assert hints == [
            "is not available on this API server: kube-scheduler is not kept off 1 host-held cards"
        ]
        programs.end(pid)
        await eventually(lambda: seen.keys(name).get("health") is None)
        assert (await asyncio.to_thread(check, cluster, namespace))["pods"] == 2


# RDMA


@pytest.mark.parametrize(
    ("entries", "capable", "expected"),
    [
        (4, 4, []),
        (3, 4, [("unknown", "3 entries in /sys/class/infiniband, and 4 devices with dra.net/rdma true")]),
        (0, 0, [("fail", "none of its NICs does RDMA, and /sys/class/infiniband is empty")]),
    ],
    ids=["as-the-slices-say", "one-driver-is-missing", "no-driver-is-loaded"],
)
def test_what_the_agent_saw_of_rdma_is_compared_with_the_slices(
    entries: int, capable: int, expected: list[tuple[str, str]], cluster: Lab, namespace: str, tmp_path: Path
) -> None:
    nics = copy.deepcopy(claims_world.reference(NODE)[1])
    for place, nic in enumerate(nics["spec"]["devices"]):
        nic["attributes"]["rdma"] = {"bool": place < capable}
    cluster.apply(template(namespace), nics)
    for number in range(entries):
        (tmp_path / f"sys/class/infiniband/bnxt_re{number}").mkdir(parents=True)
    with agent(cluster, tmp_path / "sys"):
        path = f"/api/v1/nodes/{NODE}"
        wanted = ",".join(f"bnxt_re{number}" for number in range(entries))
        cluster.wait_for(
            path, accept=lambda node: node["metadata"].get("annotations", {}).get(RDMA) == wanted
        )
    assert findings(check(cluster, namespace), "rdma") == expected


@contextmanager
def agent(lab: Lab, sys: Path) -> Iterator[None]:
    """`tenure node` on that node, without the duties that this machine cannot serve."""
    settings = {
        "TENURE_NODE__NAME": NODE,
        "TENURE_OCCUPANCY__SYS": str(sys),
        "TENURE_OCCUPANCY__ENABLED": "false",
        "TENURE_REGIONS__BACKEND": "off",
        "TENURE_HTTP__OPS_HOST": "127.0.0.1",
        "TENURE_HTTP__OPS_PORT": "0",
        "TENURE_HTTP__DRAIN_S": "0",
    }
    log = sys.parent / "agent.log"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            command("node"),
            env=environment(KUBECONFIG=str(lab.kubeconfig), **settings),
            stdout=sink,
            stderr=sink,
        )
    try:
        yield
    finally:
        process.terminate()
        assert process.wait(30) == 0, log.read_text()


# Taint rules of others


@pytest.fixture(scope="module")
def with_rules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A cluster that serves DeviceTaintRule, as 1.37 does by itself."""
    lab = Lab(tmp_path_factory.mktemp("claims") / "rules").up(
        feature_gates={"DRADeviceTaintRules": True},
        api_server_flags=["--runtime-config=resource.k8s.io/v1beta2=true"],
    )
    try:
        lab.simulate_nodes([SimulatedNode(name=NODE)])
        lab.apply(*claims_world.CLASSES, *claims_world.reference(NODE))
        yield lab
    finally:
        lab.down()


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("selector", "effect", "pods"),
    [
        ({"driver": claims_world.NPU, "device": "npu0"}, "NoSchedule", 1),
        ({"driver": claims_world.NPU, "device": "npu0"}, "NoExecute", 1),
        ({"driver": claims_world.NPU, "device": "npu0"}, "None", 2),
        ({"driver": claims_world.NIC}, "NoSchedule", 0),
        ({"driver": "another.example"}, "NoSchedule", 2),
    ],
    ids=["one-device", "no-execute", "no-effect", "all-of-a-driver", "another-driver"],
)
def test_taint_rules_of_others_count_as_the_scheduler_counts_them(
    selector: dict[str, str], effect: str, pods: int, with_rules: Lab
) -> None:
    namespace = f"rules-{secrets.token_hex(3)}"
    rule = {
        "apiVersion": "resource.k8s.io/v1beta2",
        "kind": "DeviceTaintRule",
        "metadata": {"name": namespace},
        "spec": {"deviceSelector": selector, "taint": {"key": "example.com/broken", "effect": effect}},
    }
    with_rules.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    with_rules.wait_for(f"/api/v1/namespaces/{namespace}/serviceaccounts/default")
    with_rules.apply(template(namespace), rule)
    try:
        report = check(with_rules, namespace)
        assert report["pods"] == pods
        assert findings(report, "capacity") == [] or pods == 0
        with_rules.apply(*(user(namespace, f"user-{number}") for number in range(3)))
        assert placed(with_rules, namespace, 3) == pods
    finally:
        with_rules.api.ok(Call("DELETE", f"/api/v1/namespaces/{namespace}/pods", {"gracePeriodSeconds": 0}))
        with_rules.kubectl("delete", "devicetaintrule", namespace)
        claims = f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims"
        with_rules.wait_for(claims, accept=lambda found: not found["items"])


def placed(lab: Lab, namespace: str, pods: int) -> int:
    """How many of the pods kube-scheduler placed, once it has said about each of them yes or no."""
    listed = lab.wait_for(
        f"/api/v1/namespaces/{namespace}/pods",
        accept=lambda found: len([pod for pod in found["items"] if decided(pod)]) == pods,
    )
    return sum("nodeName" in pod["spec"] for pod in listed["items"])


def decided(pod: Json) -> bool:
    conditions = {c["type"]: c for c in pod["status"].get("conditions", [])}
    reason = conditions.get("PodScheduled", {}).get("reason")
    return "nodeName" in pod["spec"] or reason == "Unschedulable"


def user(namespace: str, name: str) -> Json:
    """A pod that names the template."""
    container = {"name": "c", "image": "none", "resources": {"claims": [{"name": "npu"}]}}
    claims = [{"name": "npu", "resourceClaimTemplateName": "npu-rdma"}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"containers": [container], "resourceClaims": claims},
    }
