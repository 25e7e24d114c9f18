"""The hostPath backend of regions, with the product's own process and the real Pod Security admission."""

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.process import serving
from tests.cluster.test_admission import eventually
from tests.lab import Lab
from tests.lab.api import Call
from tests.lab.product import Product
from tests.unit.admission.pods import Json, container, pod

VGPU = {"nvidia.com/vgpu-number": "1"}
# What the chart grants with settings.regions.backend=hostPath.
BY_HOST_PATH = {"settings.regions.backend": "hostPath"}


@pytest.fixture(scope="module")
def product(lab: Lab) -> Iterator[Product]:
    found = Product(lab)
    found.install()
    lab.apply(*found.manifests("templates/rbac-server.yaml", values=BY_HOST_PATH))
    yield found
    lab.kubectl("delete", "mutatingwebhookconfiguration", "tenure", "--ignore-not-found")
    lab.apply(*found.manifests("templates/rbac-server.yaml"))


def namespace_with(lab: Lab, level: str) -> str:
    """A new namespace that enforces a Pod Security level."""
    name = f"level-{level}-{secrets.token_hex(3)}"
    labels = {"pod-security.kubernetes.io/enforce": level}
    lab.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
    lab.wait_for(f"/api/v1/namespaces/{name}/serviceaccounts/default")
    return name


def create(lab: Lab, namespace: str) -> tuple[int, Json]:
    obj = pod(container(limits=VGPU), schedulerName="nobody")
    obj["metadata"] = {"generateName": "p-"}
    answer = lab.api.request(Call("POST", f"/api/v1/namespaces/{namespace}/pods?dryRun=All", obj))
    return answer.status, answer.json()


def has_regions(lab: Lab, namespace: str) -> bool:
    status, found = create(lab, namespace)
    return status == 201 and any("hostPath" in volume for volume in found["spec"].get("volumes", []))


def test_regions_come_where_pod_security_lets_them_and_no_pod_is_lost_elsewhere(
    lab: Lab, product: Product, tmp_path: Path
) -> None:
    free, strict = namespace_with(lab, "privileged"), namespace_with(lab, "baseline")
    with serving(lab, tmp_path, regions__backend="hostPath"):
        eventually(lambda: has_regions(lab, free))
        status, found = create(lab, strict)
        assert (status, found["spec"].get("volumes", [])[1:]) == (201, [])
        # A namespace of later is known at once, and so is a level that changes.
        late = namespace_with(lab, "privileged")
        eventually(lambda: has_regions(lab, late))
        lab.kubectl("label", "namespace", late, "--overwrite", "pod-security.kubernetes.io/enforce=baseline")
        eventually(lambda: create(lab, late)[0] == 201 and not has_regions(lab, late))


def test_a_pod_is_refused_with_a_sentence_where_settings_ask_for_it(
    lab: Lab, product: Product, tmp_path: Path
) -> None:
    strict = namespace_with(lab, "baseline")
    with serving(lab, tmp_path, regions__backend="hostPath", regions__refuse_when_restricted="true"):
        eventually(lambda: create(lab, strict)[0] == 403)
        assert "regions.backend" in create(lab, strict)[1]["message"]
        assert "denied the request" in create(lab, strict)[1]["message"]
