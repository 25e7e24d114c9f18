"""The chart against the real API server: every value set as a dry run, and what an admission of pods makes of them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chart.values import CHART
from tests.lab import Lab, LabError
from tests.lab.api import Call
from tests.lab.product import NAMESPACE

CI = sorted((CHART / "ci").glob("*.yaml"))
# Kinds of operators that a cluster has or has not: plural and group, by kind.
FOREIGN = {
    "ServiceMonitor": "servicemonitors.monitoring.coreos.com",
    "PrometheusRule": "prometheusrules.monitoring.coreos.com",
    "Issuer": "issuers.cert-manager.io",
    "Certificate": "certificates.cert-manager.io",
}


def rendered(lab: Lab, *words: str) -> list[dict[str, Any]]:
    """With `lookup`, and every hook. Other tests leave objects of these names that Helm did not make."""
    options = ("--dry-run=server", "--take-ownership", "--output=json")
    said = json.loads(lab.helm("install", "tenure", str(CHART), f"--namespace={NAMESPACE}", *options, *words))
    texts = [said["manifest"], *(hook["manifest"] for hook in said["hooks"])]
    return [found for text in texts for found in yaml.safe_load_all(text) if found]


@pytest.fixture(scope="module")
def foreign_kinds(lab: Lab) -> Iterator[None]:
    """They take any field: what is in them is their operators' business."""
    made = [_definition(kind, name) for kind, name in FOREIGN.items()]
    lab.apply(*made)
    lab.kubectl(
        "wait", "--for=condition=Established", "--timeout=30s", *(f"crd/{n}" for n in FOREIGN.values())
    )
    yield
    lab.kubectl("delete", "crd", *FOREIGN.values())


def _definition(kind: str, name: str) -> dict[str, Any]:
    plural, _, group = name.partition(".")
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": name},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
            "versions": [version],
        },
    }


@pytest.fixture
def release_namespace(lab: Lab) -> Iterator[str]:
    """With the account of the test's pod: the API server asks for it even in a dry run."""
    account = {"name": "tenure-test", "namespace": NAMESPACE}
    lab.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account},
    )
    yield NAMESPACE
    lab.kubectl("delete", "serviceaccount", "tenure-test", f"--namespace={NAMESPACE}")


@pytest.mark.parametrize("values", CI, ids=lambda path: path.stem)
def test_the_api_server_takes_every_object_of_every_value_set(
    lab: Lab, release_namespace: str, foreign_kinds: None, values: Path
) -> None:
    """Strictly: an unknown field is an error."""
    objects = rendered(lab, f"--values={values}")
    text = yaml.safe_dump_all(objects)
    options = ("--dry-run=server", "--server-side", "--force-conflicts", "--validate=strict")
    said = lab.kubectl("apply", *options, "-f", "-", stdin=text)
    assert len(said.splitlines()) == len(objects)


def test_servers_and_hooks_pass_pod_security_restricted(lab: Lab, namespace: str) -> None:
    label = {"pod-security.kubernetes.io/enforce": "restricted"}
    lab.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": label}})
    workloads = [one for one in rendered(lab) if one["kind"] in {"Deployment", "Job"}]
    assert len(workloads) == 3
    for workload in workloads:
        found = workload["spec"]["template"]
        spec = found["spec"] | {"serviceAccountName": "default", "priorityClassName": None}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "chart-"}, "spec": spec}
        lab.api.ok(Call("POST", f"/api/v1/namespaces/{namespace}/pods?dryRun=All", pod))


def test_a_definition_of_accelerator_profiles_that_is_there_already_is_left_alone(
    lab: Lab, release_namespace: str
) -> None:
    name = "acceleratorprofiles.airm.ai-computing.io"
    crd = yaml.safe_load((CHART / "files" / "crds" / "acceleratorprofiles.yaml").read_text())
    lab.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=yaml.safe_dump(crd))
    lab.wait_for(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}")
    kinds = {one["metadata"]["name"] for one in rendered(lab) if one["kind"] == "CustomResourceDefinition"}
    assert kinds == {"remoteservers.tenure.dev"}
    owner = {"meta.helm.sh/release-name": "tenure", "meta.helm.sh/release-namespace": NAMESPACE}
    lab.kubectl("annotate", "crd", name, *(f"{key}={value}" for key, value in owner.items()))
    try:
        kinds = {
            one["metadata"]["name"] for one in rendered(lab) if one["kind"] == "CustomResourceDefinition"
        }
        assert kinds == {"remoteservers.tenure.dev", name}
    finally:
        lab.kubectl("annotate", "crd", name, *(f"{key}-" for key in owner))


def test_a_second_release_is_refused_by_name(lab: Lab, release_namespace: str) -> None:
    """Names are fixed, because accounts and webhooks of a cluster know them: Helm itself says whose they are."""
    lab.kubectl("create", "priorityclass", "tenure-server", "--value=1")
    try:
        with pytest.raises(LabError, match="tenure-server"):
            lab.helm("install", "other", str(CHART), f"--namespace={NAMESPACE}", "--dry-run=server")
    finally:
        lab.kubectl("delete", "priorityclass", "tenure-server")
