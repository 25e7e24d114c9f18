import pytest

from controllers.regions.names import ContainerId, Owner

UUID = "0a1b2c3d-0000-4000-8000-000000000001"
HASH = "0123456789abcdef0123456789abcdef"


@pytest.mark.parametrize("uid", [UUID, HASH])
def test_a_pod_has_a_uuid_and_a_static_pod_its_manifests_hash(uid: str) -> None:
    found = ContainerId.parse(f"{uid}_main")
    assert found == ContainerId(uid, "main")
    assert str(found) == f"{uid}_main"


@pytest.mark.parametrize(
    "name",
    [
        "checkpoints", "watcher", "tools", "claims", "registry", "my_folder", f"{UUID}", f"{UUID}_", f"_{UUID}",
        f"{UUID}_a/b", f"{UUID}_..", f"{UUID}_Main", f"{UUID}_{'a' * 64}", f"{UUID}_-a", f"{UUID.upper()}_main",
        f"{UUID}_main\n", "..",
    ],
)  # fmt: skip
def test_every_other_name_is_not_ours(name: str) -> None:
    assert ContainerId.parse(name) is None


def test_a_container_id_that_is_no_name_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="is not <pod-uid>_<container>"):
        ContainerId("../../etc", "passwd")


def test_a_mount_remembers_its_owner_in_its_source() -> None:
    owner = Owner(ContainerId(UUID, "main"), "tenant", "trainer-0")
    assert Owner.parse(str(owner)) == owner
    assert Owner.parse(str(Owner(owner.id))) == Owner(owner.id)
    assert Owner.parse("somebody's own") is None
