"""What goes wrong in a `scene`, one thing after the other; after each the alert that is about it fires."""

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from service import names
from tests.cluster.scene import AGENT, PODS, Scene
from tests.lab.api import Call
from tests.lab.errors import LabError
from tests.lab.layout import REPOSITORY
from tests.lab.simulated import SimulatedNode
from tests.unit.occupancy.ground import FULL, FUSE, Ground
from webhook.guard import Policy

REGISTERS = json.loads((REPOSITORY / "tests/fixtures/hami/node-nvidia-register.json").read_text())
LEDGER = REPOSITORY / "tests/fixtures/vmem_node.v1.config"
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/tenure"
BINDINGS = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
ROLE = "/apis/rbac.authorization.k8s.io/v1/clusterroles/tenure-server"


def nobody_is_there(scene: Scene) -> None:
    scene.product.install()
    scene.watch()
    scene.fires("TenureAbsent")


def servers_come(scene: Scene) -> None:
    """One leads; the other competes for a lease that it may not have, with a leaf that is short of life."""
    first, second = scene.replicas["tenure-0"], scene.replicas["tenure-1"]
    scene.product.register_webhook(first)
    nodes = [
        ("gpu-0", "198.19.2.1", "json-remote-h200"),
        ("gpu-1", "198.19.2.2", "json-remote-a100-four-cards"),
    ]
    scene.lab.simulate_nodes(
        [
            *(
                SimulatedNode(
                    name=name,
                    address=address,
                    labels={names.LUPINE_SERVER_LABEL: ""},
                    annotations={names.NODE_REGISTER: REGISTERS[register]},
                )
                for name, address, register in nodes
            ),
            SimulatedNode(name="client"),
        ]
    )
    scene.product.run(first, claims__interval_s="5")
    scene.prometheus.until(
        lambda: not scene.prometheus.firing() - {"TenureNotReady"}, "a healthy server is quiet"
    )
    scene.product.start_scheduler(first)
    scene.product.run(second, lease__name="other", certs__leaf_lifetime_s="3600", http__drain_s="0")
    scene.fires("TenureNoLeader")
    scene.fires("TenureCertificateEndsSoon")


def pods_come(scene: Scene) -> None:
    """One runs with a card, one waits for more than there are, one brings forged keys, one asks for nonsense."""
    assert scene.create(scene.pod("runs", cards=1)) == 201
    scene.lab.wait_for(f"{PODS}/runs", accept=lambda pod: bool(pod["spec"].get("nodeName")))
    assert scene.create(scene.pod("waits", cards=5)) == 201
    assert scene.create(scene.pod("forges", annotations={names.LUPINE_ENDPOINT: "203.0.113.9:1"})) == 201
    assert scene.create(scene.pod("asks-nonsense", cards=5000)) == 403
    claims = [{"name": "npu", "resourceClaimTemplateName": "not-there"}]
    assert scene.create(scene.pod("claims", resourceClaims=claims)) == 201


def an_agent_comes(scene: Scene, stack: ExitStack) -> None:
    """A node agent with a card that a process holds, one that is not known, and a container with a ledger."""
    ground = Ground(scene.folder / "host")
    held = ground.node("acme0", FULL)
    ground.rngd(0, "0000:03:00.0", FUSE)  # Its vendor's tool is missing.
    stack.enter_context(_holding(held))
    regions = scene.folder / "regions"
    stack.enter_context(_region(scene, regions))
    scene.start_agent(
        AGENT,
        node="client",
        port=scene.agent_port,
        ground=ground,
        regions__backend="hostPath",
        regions__root=str(regions),
        regions__sweep_s="1",
    )
    scene.fires("TenureOccupancyUnknown")


@contextmanager
def _holding(card: Path) -> Iterator[None]:
    with card.open("rb") as opened:
        holder = subprocess.Popen(["sleep", "600"], stdin=opened)
    try:
        yield
    finally:
        holder.kill()
        holder.wait()


@contextmanager
def _region(scene: Scene, root: Path) -> Iterator[None]:
    """A region folder of a pod's container, and a process that has it mounted, as the container would."""
    uid = scene.lab.wait_for(f"{PODS}/runs")["metadata"]["uid"]
    leaf = root / f"{uid}_main" / "vmem_node"
    leaf.mkdir(parents=True)
    (leaf / LEDGER.name.replace(".v1", "")).write_bytes(LEDGER.read_bytes())
    command = ["unshare", "--mount", "sh", "-c", f"mount --bind {leaf} /mnt && exec sleep 600"]
    container = subprocess.Popen(command)
    try:
        yield
    finally:
        container.kill()
        container.wait()


def guard_goes(scene: Scene) -> None:
    """Its bindings are deleted; whoever may write pods then writes an allocation."""
    scene.quiet("TenureGuardPolicyMissing", "TenureAllocationNotBelieved")
    for name in ("tenure-gate", "tenure-decision-keys"):
        scene.lab.api.ok(Call("DELETE", f"{BINDINGS}/{name}"))
    scene.lab.components.restart("tenure-1")  # It looks at its start, and then once a minute.
    scene.fires("TenureGuardPolicyMissing")
    forged = "gpu-0/GPU-forged,NVIDIA,143771,100:;"
    _with_retries(
        lambda: scene.patch(f"{PODS}/runs", {"metadata": {"annotations": {names.DEVICES_ALLOCATED: forged}}})
    )
    scene.fires("TenureAllocationNotBelieved")


def _with_retries(act: Any, seconds: float = 30.0) -> None:
    """Policies are taken away in the API server some moments after their object."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            act()
        except LabError:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        else:
            return


def rights_go(scene: Scene) -> None:
    """The server may write no RemoteServer and look at no policy any more: cards are free and stay so."""
    scene.quiet("TenurePodsWaitBesideFreeCards", "TenureGuardPolicyUnknown")
    role = scene.lab.api.ok(Call("GET", ROLE))
    kept = [
        rule
        for rule in role["rules"]
        if "remoteservers/status" not in rule["resources"]
        and "validatingadmissionpolicies" not in rule["resources"]
    ]
    scene.patch(ROLE, {"rules": kept})
    assert scene.create(scene.pod("beside", cards=1)) == 201
    scene.fires("TenurePodsWaitBesideFreeCards")
    scene.lab.components.restart("tenure-1")
    scene.fires("TenureGuardPolicyUnknown")
    scene.patch(ROLE, {"rules": role["rules"]})
    scene.lab.components.restart("tenure-1")
    sees = 'tenure_guard_policy_in_force{job="tenure-1"} == 0'
    scene.prometheus.until(lambda: len(scene.prometheus.query(sees)) == len(Policy), "it may look again")


def webhook_goes(scene: Scene) -> None:
    """Calls fail, first with one failure policy and then with the other; then the configuration itself is gone."""
    scene.quiet("TenureWebhookFailsOpen", "TenureWebhookErrors", "TenureCertificateNotTrusted")
    found = scene.lab.api.ok(Call("GET", WEBHOOKS))
    nowhere = {
        "url": "https://127.0.0.1:1/admission/pods",
        "caBundle": found["webhooks"][0]["clientConfig"]["caBundle"],
    }
    for policy, status, alert in (
        ("Ignore", 201, "TenureWebhookFailsOpen"),
        ("Fail", 500, "TenureWebhookErrors"),
    ):
        hook = found["webhooks"][0] | {"clientConfig": nowhere, "failurePolicy": policy}
        scene.patch(WEBHOOKS, {"webhooks": [hook]})
        _until_created(scene, f"to-{policy.lower()}", status, alert)
    scene.lab.api.ok(Call("DELETE", WEBHOOKS))
    scene.fires("TenureCertificateNotTrusted")
    scene.fires("TenureNotReady")


def _until_created(scene: Scene, name: str, status: int, alert: str) -> None:
    """Ask for cards until the API server knows the changed configuration."""
    for number in range(100):
        if (
            scene.create(scene.pod(f"{name}-{number}", cards=1)) == status
            and alert in scene.prometheus.firing()
        ):
            break
        time.sleep(0.2)
    scene.fires(alert)
