"""Review finding R1 (rules 1 and 2): renamed resources work, and the old names are nobody's business any more."""

from collections.abc import Iterator

import pytest

from service import names
from tests.cluster.pool import Tenure, manifest, running
from tests.lab import Lab

COUNT, MEMORY = "example.com/far-gpu", "example.com/far-gpu-mib"


@pytest.fixture(scope="module")
def tenure(lab: Lab) -> Iterator[Tenure]:
    with running(lab, pool__resource_count_name=COUNT, pool__resource_memory_name=MEMORY) as found:
        yield found


def test_a_pod_that_asks_by_the_new_names_gets_its_cards(tenure: Tenure, namespace: str) -> None:
    """Fails when the scheduler's managedResources are literals: the extender is not asked, and nothing is written."""
    tenure.create(namespace, manifest("renamed", {COUNT: "1", MEMORY: "100000"}))
    notes = tenure.bound(namespace, "renamed")["metadata"]["annotations"]
    assert notes[names.DEVICES_ALLOCATED].startswith(f"{tenure.large}/")


def test_the_old_names_mean_nothing(tenure: Tenure, namespace: str) -> None:
    pod = tenure.create(namespace, manifest("old", {names.REMOTE_GPU: "1"}))
    assert "schedulingGates" not in pod["spec"]
    assert names.LUPINE_SERVER_ENV not in str(pod["spec"])
