"""`tenure claims check` on a real API server, beside the comparison that people do by hand."""

import asyncio
import copy
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from controllers.claims.metrics import ClaimMetrics
from controllers.claims.slices import DeviceId
from controllers.claims.taintrules import TaintRules
from controllers.claims.watch import Watcher
from service.cli import run
from service.kube.client import KubeClient
from service.kube.events import ObjectRef, Type
from service.kube.metrics import KubeMetrics
from service.metrics import MetricSet
from service.settings import KubeSettings
from tests.lab import Lab
from tests.lab.api import Call
from tests.lab.errors import LabError
from tests.lab.layout import REPOSITORY
from tests.lab.simulated import SimulatedNode
from tests.prove import claims_world

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
EXAMPLES = REPOSITORY / "charts" / "tenure" / "examples"
NODE = "claims-node"
CLASSES = [
    claims_world.device_class("npu.rebellions.ai", claims_world.NPU),
    claims_world.device_class("dranet", claims_world.NIC),
    claims_world.device_class("npu", claims_world.NPU),
    claims_world.device_class("nic", claims_world.NIC),
]
Simulate = Callable[[Iterable[SimulatedNode]], None]


@pytest.fixture
def cluster(lab: Lab, simulate: Simulate, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    """The lab with a node and the classes; slices go with the test."""
    simulate([SimulatedNode(name=NODE)])
    lab.apply(*CLASSES)
    monkeypatch.setenv("TENURE_KUBE__KUBECONFIG", str(lab.kubeconfig))
    yield lab
    lab.api.ok(Call("DELETE", SLICES))


def template(claim: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "npu-rdma"},
        "spec": {"spec": {"devices": claim or claims_world.aligned()}},
    }


def checked(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = run(["claims", "check", *arguments, "-o", "json"])
    said = capsys.readouterr()
    answer = json.loads(said.out or "{}")
    return code, answer[0] if isinstance(answer, list) else answer


def findings(report: dict[str, Any]) -> dict[str, str]:
    return {f["code"]: f["sentence"] for check in report["checks"] for f in check["findings"]}


def by_hand(lab: Lab, namespace: str) -> set[str]:
    """Attributes that the template names and the first device of no slice advertises: kubectl, grep and jq."""
    text = lab.kubectl("-n", namespace, "get", "resourceclaimtemplate", "npu-rdma", "-o", "json")
    rules = json.loads(text)["spec"]["spec"]["devices"]["constraints"]
    named = {rule.get("matchAttribute") or rule.get("distinctAttribute") for rule in rules}
    slices = json.loads(lab.kubectl("get", "resourceslices", "-o", "json"))["items"]
    first = [set(found["spec"]["devices"][0]["attributes"]) for found in slices]
    return {name for name in named if not all(name in keys for keys in first)}


def apply(lab: Lab, namespace: str, slices: list[dict[str, Any]]) -> None:
    lab.apply({**template(), "metadata": {"name": "npu-rdma", "namespace": namespace}}, *slices)


def nic(slices: list[dict[str, Any]], place: int) -> dict[str, Any]:
    attributes: dict[str, Any] = slices[1]["spec"]["devices"][place]["attributes"]
    return attributes


def test_by_hand_and_by_the_check_the_reference_node_is_fine(
    cluster: Lab, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    apply(cluster, namespace, claims_world.reference(NODE))
    assert by_hand(cluster, namespace) == set()
    code, report = checked([f"{namespace}/npu-rdma"], capsys)
    assert (code, report["verdict"], report["pods"]) == (0, "pass", 2), findings(report)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda slices: nic(slices, 1).pop(claims_world.NUMA), "ATTR_PARTIAL"),
        (lambda slices: nic(slices, 1).update({claims_world.NUMA: {"string": "0"}}), "TYPE_MIX"),
        (
            lambda slices: nic(slices, 0).update({claims_world.ROOT: {"string": "0000:60:01.1"}}),
            "FORMAT_MISMATCH",
        ),
    ],
    ids=["second-device-lacks-it", "same-key-other-type", "same-key-other-format"],
)
def test_the_comparison_by_hand_passes_where_the_check_rightly_fails(
    change: Callable[[list[dict[str, Any]]], object],
    code: str,
    cluster: Lab,
    namespace: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    slices = copy.deepcopy(claims_world.reference(NODE))
    change(slices)
    apply(cluster, namespace, slices)
    assert by_hand(cluster, namespace) == set()
    exit_code, report = checked([f"{namespace}/npu-rdma"], capsys)
    assert exit_code == 1
    assert code in findings(report)


@pytest.mark.parametrize(
    "file",
    sorted([*EXAMPLES.glob("manifests/rct/*.yaml"), *EXAMPLES.glob("models/*/rct-*.yaml")]),
    ids=lambda path: path.stem,
)
def test_each_example_passes_by_a_dry_run(
    file: Path, cluster: Lab, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.apply(*claims_world.reference(NODE))
    code, report = checked(["-f", str(file), "--namespace", namespace], capsys)
    assert (code, report["verdict"]) == (0, "pass"), findings(report)
    path = f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaimtemplates"
    assert cluster.api.ok(Call("GET", path))["items"] == []  # nothing was written


def test_a_template_that_is_not_there_and_one_that_the_api_server_refuses(
    cluster: Lab, namespace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, report = checked([f"{namespace}/npu-rdma"], capsys)
    assert (code, set(findings(report))) == (1, {"TEMPLATE_MISSING"})
    wrong = template()
    wrong["spec"]["spec"]["devices"]["requests"][0]["exactly"]["selectors"] = [{"cel": {"expression": "1 +"}}]
    file = tmp_path / "t.json"
    file.write_text(json.dumps(wrong))
    code, report = checked(["-f", str(file), "--namespace", namespace], capsys)
    assert code == 1
    assert "selectors[0].cel.expression" in findings(report)["TEMPLATE_INVALID"]


def test_a_node_whose_driver_s_slice_was_refused_is_named(
    cluster: Lab, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    npus, nics = claims_world.reference(NODE)
    name = "MT27500/MT27520 Family [ConnectX-3/ConnectX-3 Pro Virtual Function]"
    nics["spec"]["devices"][0]["attributes"]["pciDevice"] = {"string": name}
    apply(cluster, namespace, [npus])
    with pytest.raises(LabError, match=r"may not be more than 64 bytes|Too long"):
        cluster.apply(nics)
    cluster.apply(_driver(namespace))
    selector = f"/api/v1/namespaces/{namespace}/pods?labelSelector=app%3Ddranet"
    cluster.wait_for(selector, accept=lambda found: any(p["spec"].get("nodeName") for p in found["items"]))
    _, report = checked([f"{namespace}/npu-rdma"], capsys)
    assert NODE in findings(report)["NO_SLICE_OF_DRIVER_POD"]


def _driver(namespace: str) -> dict[str, Any]:
    """A DaemonSet that mounts what a DRA driver's kubelet plugin mounts."""
    volume = {"name": "plugin", "hostPath": {"path": "/var/lib/kubelet/plugins/dra.net"}}
    pod = {
        "containers": [{"name": "driver", "image": "none"}],
        "volumes": [volume],
        "nodeSelector": {"kubernetes.io/hostname": NODE},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "dranet", "namespace": namespace},
        "spec": {
            "selector": {"matchLabels": {"app": "dranet"}},
            "template": {"metadata": {"labels": {"app": "dranet"}}, "spec": pod},
        },
    }


def test_who_may_not_list_slices_is_told_so_in_one_sentence(
    cluster: Lab, namespace: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TENURE_KUBE__KUBECONFIG", str(cluster.kubeconfig_for("nobody")))
    assert run(["claims", "check", f"{namespace}/npu-rdma"]) == 2
    said = capsys.readouterr().err.strip()
    assert "the right to list resourceslices" in said
    assert "\n" not in said


@pytest.fixture(scope="module")
def altered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A cluster with other gates: as Kubernetes 1.34 for one of them, as 1.37 for the other."""
    lab = Lab(tmp_path_factory.mktemp("claims") / "altered").up(
        feature_gates={"DRAConsumableCapacity": False, "DRADeviceTaintRules": True},
        api_server_flags=["--runtime-config=resource.k8s.io/v1beta2=true"],
    )
    try:
        lab.simulate_nodes([SimulatedNode(name=NODE)])
        lab.apply(*CLASSES, *claims_world.reference(NODE))
        yield lab
    finally:
        lab.down()


@pytest.mark.timeout(300)
def test_with_the_gate_off_the_api_server_drops_distinct_attribute_and_the_check_says_which_gate(
    altered: Lab, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TENURE_KUBE__KUBECONFIG", str(altered.kubeconfig))
    file = EXAMPLES / "manifests" / "rct" / "numa-aligned.yaml"
    code, report = checked(["-f", str(file)], capsys)
    told = findings(report)
    assert code == 1
    assert "constraints[1]" in told["TEMPLATE_INVALID"]
    assert "constraints[1].distinctAttribute" in told["GATE_DROPPED"]
    assert "DRAConsumableCapacity" in told["GATE_DROPPED"]


@pytest.mark.timeout(300)
async def test_a_host_held_card_gets_a_taint_rule_and_pods_get_it_again_when_it_is_free(altered: Lab) -> None:
    client = await _client(altered)
    rules = TaintRules(client)
    npus = [DeviceId(claims_world.NPU, f"{NODE}-{claims_world.NPU}", f"npu{i}") for i in range(8)]
    await rules.settle(npus)
    await rules.settle(npus)
    assert rules.available
    made = json.loads(await asyncio.to_thread(altered.kubectl, "get", "devicetaintrules", "-o", "json"))[
        "items"
    ]
    assert [sorted(one["spec"]["deviceSelector"]) for one in made] == [["device", "driver", "pool"]] * 8
    claim = {"requests": [{"name": "npu", "exactly": {"deviceClassName": "npu"}}]}
    await asyncio.to_thread(
        altered.apply, {**template(claim), "metadata": {"name": "npu-rdma"}}, _user("default")
    )
    path = "/api/v1/namespaces/default/pods/user"
    refused = await asyncio.to_thread(
        altered.wait_for, path, accept=lambda pod: pod["status"].get("conditions")
    )
    assert refused["status"]["conditions"][0]["reason"] == "Unschedulable"
    await rules.settle(npus[1:])
    bound = await asyncio.to_thread(altered.wait_for, path, accept=lambda pod: pod["spec"].get("nodeName"))
    assert bound["spec"]["nodeName"] == NODE
    await rules.settle([])
    left = await asyncio.to_thread(altered.kubectl, "get", "devicetaintrules", "-o", "json")
    assert json.loads(left)["items"] == []
    await client.close()


async def test_without_taint_rules_that_is_known_and_nothing_fails(lab: Lab) -> None:
    client = await _client(lab)
    rules = TaintRules(client)
    await rules.settle([DeviceId("d", "p", "x")])
    assert rules.available is False
    await client.close()


class Said:
    """Keeps what was said."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []

    def emit(self, ref: ObjectRef, *, reason: str, message: str, type_: Type) -> None:
        assert (reason, type_) == ("ClaimCheckFailed", "Warning")
        self.events.append((f"{ref.namespace}/{ref.name}", message))


async def test_a_driver_that_drops_an_attribute_is_one_event_and_a_metric(
    cluster: Lab, namespace: str
) -> None:
    await asyncio.to_thread(apply, cluster, namespace, claims_world.reference(NODE))
    await asyncio.to_thread(cluster.apply, _user(namespace))
    client, said, metrics = await _client(cluster), Said(), MetricSet()
    watcher = Watcher(client, events=said, metrics=ClaimMetrics(metrics), interval_s=60)
    labels = {"template": f"{namespace}/npu-rdma", "check": "attributes"}
    assert watcher.seen is None
    await watcher.round()
    assert watcher.seen is not None
    assert f"{namespace}/npu-rdma" in {report.template for report in watcher.seen.reports}
    assert metrics.registry.get_sample_value("tenure_claims_check_verdict", labels) == 1
    dropped = copy.deepcopy(claims_world.reference(NODE))
    for device in dropped[0]["spec"]["devices"]:
        del device["attributes"][claims_world.NUMA]
    await asyncio.to_thread(cluster.apply, *dropped)
    await watcher.round()
    await watcher.round()
    told = [message for name, message in said.events if name == f"{namespace}/npu-rdma"]
    assert len([message for message in told if message.startswith("check attributes:")]) == 1
    assert metrics.registry.get_sample_value("tenure_claims_check_verdict", labels) == 0
    await client.close()


async def _client(lab: Lab) -> KubeClient:
    file = await asyncio.to_thread(lambda: lab.kubeconfig)
    return await KubeClient.connect(KubeSettings(kubeconfig=file), metrics=KubeMetrics(MetricSet()))


def _user(namespace: str) -> dict[str, Any]:
    """A pod that names the template."""
    container = {"name": "c", "image": "none", "resources": {"claims": [{"name": "npu"}]}}
    claims = [{"name": "npu", "resourceClaimTemplateName": "npu-rdma"}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "user", "namespace": namespace},
        "spec": {"containers": [container], "resourceClaims": claims},
    }
