"""A pod may be 3 MiB of anything. Each of these would take minutes if the cost grew with the square of the size."""

import pytest

from tests.unit.admission.pods import (
    CARD,
    Json,
    asking,
    body,
    container,
    decision,
    mutated,
    operations,
    pod,
    refusal,
)
from webhook.admission import review

VGPU = {"nvidia.com/vgpu-number": "1"}
REQUEST_BYTES = 3 * 1024 * 1024


def volumes(count: int) -> list[Json]:
    return [{"name": f"v{i}", "emptyDir": {}} for i in range(count)]


def test_as_many_containers_as_are_looked_at_with_as_many_volumes_as_fit() -> None:
    obj = pod(*(container(f"c{i}", CARD | VGPU) for i in range(1000)), volumes=volumes(40_000))
    assert len(body(obj)) < REQUEST_BYTES
    found = decision(obj)
    assert found.refusal is None
    assert len([o for o in found.patch if o.path.startswith("/spec/volumes")]) == 1000


def test_more_containers_are_refused_with_a_sentence() -> None:
    assert "split it" in refusal(pod(*(container(f"c{i}") for i in range(1001))))
    assert "50000 containers" in refusal(pod(initContainers=[{"name": "c"}] * 49_999))


def test_one_container_with_very_many_mounts() -> None:
    mounts = [{"name": f"v{i}", "mountPath": "/tmp"} for i in range(20_000)]
    found = decision(pod(container(limits=VGPU, volumeMounts=mounts), volumes=volumes(20_000)))
    assert found.refusal is None


@pytest.mark.parametrize("count", [33, 60_000])
def test_a_variable_of_ours_that_is_there_too_often_is_refused(count: int) -> None:
    entries = [{"name": name} for _ in range(count) for name in ("A", "LUPINE_SERVER")]
    assert f"{count} times" in refusal(pod(container(limits=CARD, env=entries)))


def test_very_many_forged_keys_are_removed_with_one_warning() -> None:
    obj = asking(annotations={f"allocation.tenure.dev/{i}": "x" for i in range(50_000)})
    found = decision(obj)
    assert (found.stripped_keys, len(found.warnings)) == (50_000, 1)


def test_volumes_that_take_our_names_one_after_the_other() -> None:
    name = mutated(pod(container(limits=VGPU)))["spec"]["volumes"][0]["name"]
    taken = [{"name": name, "emptyDir": {}}]
    taken += [{"name": f"{name}-{i}", "emptyDir": {}} for i in range(2, 30_000)]
    found = operations(decision(pod(container(limits=VGPU), volumes=taken)))
    assert [o["value"]["name"] for o in found if o["path"].startswith("/spec/volumes")] == [f"{name}-30000"]


def test_warnings_end_before_the_api_server_cuts_them_off() -> None:
    own = [{"name": "v", "mountPath": "/tmp/.sm_node"}]
    obj = pod(*(container(f"c{i}", VGPU, volumeMounts=own) for i in range(500)), volumes=volumes(1))
    assert len(decision(obj).warnings) == 32


def test_a_body_of_the_largest_size_that_is_one_list_is_read() -> None:
    count = 300_000
    data = body(pod(container(limits=CARD, env=[{"name": "A"}] * count)))
    obj = review.read(data).object
    assert obj is not None
    assert [len(c.env or ()) for c in obj.spec.containers or ()] == [count]
