"""The account of the node agents: enough for its own node, nothing on any other."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from service.kube.client import KubeClient, PatchKind
from service.kube.errors import Forbidden
from service.kube.metrics import KubeMetrics
from service.metrics import MetricSet
from service.settings import KubeSettings
from tests.cluster import occupancy
from tests.cluster.occupancy import PROFILES, SERVERS, Seen, eventually, running, settings
from tests.lab import Lab, LabError
from tests.lab.api import Call
from tests.lab.product import NAMESPACE, Product
from tests.unit.occupancy.ground import FULL, Ground, Programs

ACCOUNT = f"system:serviceaccount:{NAMESPACE}:tenure-node"
_ADMISSION = "/apis/admissionregistration.k8s.io/v1"
_KINDS = {"ValidatingAdmissionPolicy": "policies", "ValidatingAdmissionPolicyBinding": "policybindings"}
Node = Callable[..., Seen]


@pytest.fixture(scope="module")
def fenced(lab: Lab) -> Iterator[Lab]:
    """The lab with the agents' account, its rights and its fence."""
    occupancy.install_kinds(lab)
    lab.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    objects = Product(lab).manifests("templates/rbac-node.yaml", "templates/agent-fence.yaml")
    lab.apply(*objects)
    yield lab
    for found in objects:
        if found["kind"] in _KINDS:
            path = f"{_ADMISSION}/validatingadmission{_KINDS[found['kind']]}/{found['metadata']['name']}"
            lab.api.ok(Call("DELETE", path))


@pytest.fixture
def make_node(fenced: Lab, make_node: Callable[..., Seen]) -> Node:
    return lambda suffix: make_node(suffix, serves=True)


def credential(lab: Lab, seen: Seen | None) -> Path:
    """A kubeconfig with a real token of the account, bound to a node like that of a pod there, or to nothing."""
    bound = [] if seen is None else ["--bound-object-kind=Node", f"--bound-object-name={seen.node}"]
    token = lab.kubectl("create", "token", "tenure-node", "-n", NAMESPACE, "--duration=1h", *bound)
    name = f"agent-{seen.node if seen else 'nowhere'}"
    return lab._plane.write_credential(name, ACCOUNT, token.strip())


async def test_an_agent_does_all_its_work_with_its_own_account(
    fenced: Lab, make_node: Node, ground: Ground, programs: Programs
) -> None:
    mine = make_node("-a")
    programs.opener(ground.node("acme0", FULL))
    async with running(fenced, mine.node, settings(ground), kubeconfig=credential(fenced, mine)):
        await eventually(lambda: mine.label() == "1")
        await eventually(lambda: mine.keys("acme0").get("healthy") == "false")
        await eventually(lambda: mine.state("acme0") == "host")
        await eventually(mine.events)


PATCHES: dict[str, tuple[str, str, dict[str, object]]] = {
    "a label of another node": ("node", "b", {"metadata": {"labels": {occupancy.HOST_HELD: "0"}}}),
    "another label of its node": ("node", "a", {"metadata": {"labels": {"team": "x"}}}),
    "another annotation of its node": ("node", "a", {"metadata": {"annotations": {"hami.io/x": "y"}}}),
    "the cordon of another node": ("node", "b", {"metadata": {"annotations": {occupancy.CORDON: "GPU-x"}}}),
    "the schedulability of its node": ("node", "a", {"spec": {"unschedulable": True}}),
    "what another node sees": ("server", "b", {"spec": {"observed": [{"card": "x", "state": "free"}]}}),
    "a profile of another node": ("profile", "b", {"spec": {"extra": {"healthy": "true"}}}),
    "to move its profile to another node": ("profile", "a", {"spec": {"nodeName": "elsewhere"}}),
}


@pytest.mark.parametrize("what", PATCHES)
def test_it_is_forbidden(fenced: Lab, make_node: Node, what: str) -> None:
    nodes = {"a": make_node("-a"), "b": make_node("-b")}
    for seen in nodes.values():
        profile(fenced, seen)
    kind, on, patch = PATCHES[what]
    with pytest.raises(Forbidden, match="a node agent"):
        change(credential(fenced, nodes["a"]), kind, nodes[on].node, patch)


def test_a_profile_of_another_node_cannot_be_made_or_deleted(fenced: Lab, make_node: Node) -> None:
    mine, other = make_node("-a"), make_node("-b")
    profile(fenced, other)
    account = credential(fenced, mine)
    body = f"""
apiVersion: airm.ai-computing.io/v1alpha1
kind: AcceleratorProfile
metadata: {{name: {other.node}-forged}}
spec: {{nodeName: {other.node}}}
"""
    with pytest.raises(LabError, match="profiles of cards of its own node only"):
        fenced.kubectl("create", "-f", "-", stdin=body, kubeconfig=account)
    with pytest.raises(LabError, match="profiles of cards of its own node only"):
        fenced.kubectl("delete", "acceleratorprofile", f"{other.node}-card", kubeconfig=account)


def test_a_token_that_names_no_node_speaks_for_none(fenced: Lab, make_node: Node) -> None:
    mine = make_node("-a")
    patch: dict[str, object] = {"metadata": {"labels": {occupancy.HOST_HELD: "0"}}}
    with pytest.raises(Forbidden, match="a node agent"):
        change(credential(fenced, None), "node", mine.node, patch)


def test_others_are_not_fenced(fenced: Lab, make_node: Node) -> None:
    mine = make_node("-a")
    fenced.kubectl("label", "node", mine.node, "team=x")
    assert mine.object()["metadata"]["labels"]["team"] == "x"


def profile(lab: Lab, seen: Seen) -> None:
    kind = {"apiVersion": "airm.ai-computing.io/v1alpha1", "kind": "AcceleratorProfile"}
    lab.apply(
        kind | {"metadata": {"name": f"{seen.node}-card"}, "spec": {"nodeName": seen.node, "extra": {}}}
    )


def change(account: Path, kind: str, node: str, patch: dict[str, object]) -> None:
    """As the agent does it: it may patch what it may not read by name, and kubectl would read first."""
    path = {
        "node": f"/api/v1/nodes/{node}",
        "server": f"{SERVERS}/{node}",
        "profile": f"{PROFILES}/{node}-card",
    }[kind]

    async def send() -> None:
        client = await KubeClient.connect(KubeSettings(kubeconfig=account), metrics=KubeMetrics(MetricSet()))
        try:
            await client.patch(path, patch, kind=PatchKind.MERGE)
        finally:
            await client.close()

    asyncio.run(send())
