from controllers.regions.leftovers import Leftovers, known_uids
from controllers.regions.names import ContainerId
from service.objects import ObjectMeta, Pod

UID = "0a1b2c3d-0000-4000-8000-000000000001"
HASH = "0123456789abcdef0123456789abcdef"
ONE, TWO = ContainerId(UID, "one"), ContainerId(UID, "two")


def test_a_folder_is_asked_about_only_after_it_was_unused_for_the_grace_time() -> None:
    leftovers = Leftovers(120)
    assert leftovers.due([ONE], now=0) == []
    assert leftovers.due([ONE], now=119.9) == []
    assert leftovers.due([ONE], now=120) == [ONE]


def test_a_folder_that_was_used_in_between_starts_anew() -> None:
    leftovers = Leftovers(120)
    leftovers.due([ONE, TWO], now=0)
    leftovers.due([TWO], now=60)
    assert leftovers.due([ONE, TWO], now=120) == [TWO]
    assert leftovers.due([ONE, TWO], now=240) == [ONE, TWO]


def test_a_static_pod_is_known_by_its_manifests_hash_too() -> None:
    mirror = Pod(ObjectMeta(name="p", uid=UID, annotations={"kubernetes.io/config.mirror": HASH}))
    assert known_uids([mirror]) == {UID, HASH}
    static = Pod(ObjectMeta(name="p", uid=UID, annotations={"kubernetes.io/config.hash": HASH}))
    assert known_uids([static]) == {UID, HASH}
