"""Profiles on a real API server: those of another daemon, who reads them, and what we say of them."""

import json
from collections.abc import Callable
from pathlib import Path

from controllers.occupancy import holdings
from controllers.occupancy.cards import DeviceNumber
from service.kube.client import KubeClient
from service.kube.metrics import KubeMetrics
from service.metrics import MetricSet
from service.settings import KubeSettings, NodeSettings, ProfileSettings, Settings
from tests.cluster import occupancy
from tests.cluster.occupancy import HELD, PROFILES, Json, Seen, eventually, running, settings
from tests.lab import Lab
from tests.lab.api import Call
from tests.unit.occupancy.ground import FULL, FUSE, ZERO, Ground, Programs

APPLY = "application/apply-patch+yaml"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


class TestOtherDaemons:
    """Another daemon owns the profiles, as rm-accel's does."""

    def profile(self, lab: Lab, seen: Seen, name: str, extra: dict[str, str]) -> None:
        body = {
            "apiVersion": "airm.ai-computing.io/v1alpha1",
            "kind": "AcceleratorProfile",
            "metadata": {"name": name},
            "spec": {"nodeName": seen.node, "vendor": "furiosa", "extra": extra},
        }
        path = f"{PROFILES}/{name}?fieldManager=rm-accel&force=true"
        lab.api.ok(Call("PATCH", path, body, APPLY))

    def values(self, lab: Lab, name: str) -> dict[str, str]:
        found: dict[str, str] = lab.api.ok(Call("GET", f"{PROFILES}/{name}"))["spec"]["extra"]
        return found

    async def test_its_objects_get_our_keys_and_their_values_back(
        self, lab: Lab, ground: Ground, programs: Programs, make_node: Callable[..., Seen]
    ) -> None:
        seen = make_node()
        theirs = {
            "uuid": "09512C86-0709-4404-8943-000000000000",
            "health": "ok",
            "healthy": "true",
            "slot": "3",
        }
        self.profile(lab, seen, name := f"{seen.node}-rngd-a", theirs)
        ground.rngd(0, "0000:03:00.0", FULL)
        ground.tool("furiosa-smi", "case $1 in ps) echo '[]';; *) exit 2;; esac")
        pid = programs.opener(ground.dev / "rngd/npu0pe0")
        async with running(lab, seen.node, settings(ground)):
            await eventually(lambda: HELD.items() <= self.values(lab, name).items())
            assert self.values(lab, name)["slot"] == "3"
            assert list(seen.profiles()) == [name], "no object of our own beside another daemon's"
            programs.end(pid)
            await eventually(lambda: self.values(lab, name).get("inUse") == "false")
            after = self.values(lab, name)
            assert theirs.items() <= after.items()
            assert after.keys() - theirs.keys() == {"inUse", "holders"}

    async def test_a_value_that_it_writes_meanwhile_is_the_one_that_comes_back(
        self, lab: Lab, ground: Ground, programs: Programs, make_node: Callable[..., Seen]
    ) -> None:
        seen = make_node()
        uuid = {"uuid": "09512C86-0709-4404-8943-000000000000"}
        self.profile(lab, seen, name := f"{seen.node}-x", uuid | {"health": "ok"})
        ground.rngd(0, "0000:03:00.0", FULL)
        ground.tool("furiosa-smi", "case $1 in ps) echo '[]';; *) exit 2;; esac")
        pid = programs.opener(ground.dev / "rngd/npu0pe0")
        async with running(lab, seen.node, settings(ground)):
            await eventually(lambda: self.values(lab, name).get("health") == "busy")
            self.profile(lab, seen, name, uuid | {"health": "degraded", "healthy": "false"})
            await eventually(lambda: self.values(lab, name).get("health") == "busy")
            programs.end(pid)
            await eventually(lambda: self.values(lab, name).get("inUse") == "false")
            assert self.values(lab, name)["health"] == "degraded"
            assert self.values(lab, name)["healthy"] == "false"

    async def test_a_kind_that_cannot_select_by_node_is_listed_whole(
        self, lab: Lab, ground: Ground, make_node: Callable[..., Seen]
    ) -> None:
        seen = make_node()
        ground.node("acme0", FUSE)
        (kind,) = (found for found in occupancy.kinds() if found["spec"]["names"]["plural"].startswith("acc"))
        kind["metadata"]["name"] = "acceleratorprofiles.other.example"
        kind["spec"]["group"] = "other.example"
        del kind["spec"]["versions"][0]["selectableFields"]
        lab.apply(kind)
        path = "/apis/other.example/v1alpha1/acceleratorprofiles"
        lab.wait_for(path)
        for name, node in (("theirs", seen.node), ("elsewhere", "another-node")):
            body = {"apiVersion": "other.example/v1alpha1", "kind": "AcceleratorProfile"}
            told = {"nodeName": node, "extra": {"id": "acme0", "slot": "3"}}
            lab.api.ok(Call("POST", path, body | {"metadata": {"name": name}, "spec": told}))

        def extra(name: str) -> dict[str, str]:
            found: dict[str, str] = lab.api.ok(Call("GET", f"{path}/{name}"))["spec"]["extra"]
            return found

        other = settings(ground, profiles=ProfileSettings(group="other.example"))
        async with running(lab, seen.node, other):
            await eventually(lambda: extra("theirs").get("inUse") == "false")
        assert extra("theirs")["slot"] == "3"
        assert extra("elsewhere").keys() == {"id", "slot"}
        assert len(lab.api.ok(Call("GET", path))["items"]) == 2
        lab.api.ok(Call("DELETE", f"{CRDS}/acceleratorprofiles.other.example"))

    async def test_where_the_settings_say_so_no_object_is_made(
        self, lab: Lab, ground: Ground, make_node: Callable[..., Seen]
    ) -> None:
        seen = make_node()
        ground.node("acme0", FUSE)
        async with running(lab, seen.node, settings(ground, profiles=ProfileSettings(create=False))):
            await eventually(lambda: seen.label() == "0")
        assert seen.profiles() == {}


class TestAllocatingByProfiles:
    """A small controller that reads profiles: the first N cards of a node whose `healthy` is not "false"."""

    NUMBERS = ((1, 7), (1, 5), (10, 183), (10, 200), (10, 229))

    def choose(self, profiles: list[Json], count: int) -> tuple[list[str], list[str]]:
        taken: list[str] = []
        skipped: list[str] = []
        for profile in profiles:
            extra = profile["spec"]["extra"]
            unfit = extra.get("healthy") == "false"
            if len(taken) < count:
                (skipped if unfit else taken).append(extra["id"])
        return taken, skipped

    async def test_it_takes_held_cards_without_our_keys_and_only_free_ones_with_them(
        self, lab: Lab, ground: Ground, tmp_path: Path, programs: Programs, make_node: Callable[..., Seen]
    ) -> None:
        grounds = [ground, Ground(tmp_path / "second")]
        nodes = [make_node("-a"), make_node("-b")]
        for index in range(3):
            grounds[0].node(f"acme{index}", ground_number(self.NUMBERS[index + 2]))
        for index in range(5):
            grounds[1].node(f"acme{index}", ground_number(self.NUMBERS[index]))
        programs.opener(grounds[1].dev / "acme0", grounds[1].dev / "acme1")
        async with (
            running(lab, nodes[0].node, settings(grounds[0])),
            running(lab, nodes[1].node, settings(grounds[1])),
        ):
            await eventually(lambda: nodes[0].label() == "0")
            await eventually(lambda: nodes[1].label() == "2")
            await eventually(lambda: len(nodes[0].profiles()) == 3)
            await eventually(lambda: len(nodes[1].profiles()) == 5)
        first, second = ([p for _, p in sorted(seen.profiles().items())] for seen in nodes)
        for count in (2, 3):
            free = [f"acme{index}" for index in range(count)]
            assert self.choose(first, count) == (free, [])
            bare = [strip(profile) for profile in second]
            assert self.choose(bare, count)[0][:2] == ["acme0", "acme1"], "held cards, for want of our keys"
            unheld = [f"acme{index + 2}" for index in range(count)]
            assert self.choose(second, count) == (unheld, ["acme0", "acme1"])


def ground_number(pair: tuple[int, int]) -> DeviceNumber:
    return DeviceNumber(*pair)


def strip(profile: Json) -> Json:
    extra = {k: v for k, v in profile["spec"]["extra"].items() if k not in {*HELD, "holders"}}
    return profile | {"spec": profile["spec"] | {"extra": extra}}


class TestLooking:
    async def test_a_dry_run_says_what_it_would_write_and_writes_nothing(
        self, lab: Lab, ground: Ground, programs: Programs, make_node: Callable[..., Seen]
    ) -> None:
        seen = make_node(annotations={occupancy.CORDON: "GPU-x"})
        pid = programs.opener(ground.node("acme0", FULL))
        ground.node("acme1", ZERO)
        before = seen.object()["metadata"]["resourceVersion"]
        chosen = Settings(
            node=NodeSettings(name=seen.node),
            occupancy=settings(ground),
            kube=KubeSettings(kubeconfig=lab.kubeconfig),
        )
        client = await KubeClient.connect(chosen.kube, metrics=KubeMetrics(MetricSet()))
        try:
            preview = await holdings.preview(chosen, client)
        finally:
            await client.close()
        assert (preview.label, preview.cordon) == ("1", "GPU-x")
        told = preview.profiles[f"{seen.node}-acme0"]
        assert json.loads(told["holders"])[0]["pid"] == pid
        assert HELD.items() <= told.items()
        assert list(holdings.lines(preview))[-2:] == [
            "label airm.ai-computing.io/host-held: 1",
            "annotation hami.io/device-cordon: GPU-x",
        ]
        assert seen.profiles() == {}
        assert seen.object()["metadata"]["resourceVersion"] == before

    async def test_holders_of_the_cluster_are_read_from_profiles(
        self, lab: Lab, ground: Ground, programs: Programs, make_node: Callable[..., Seen]
    ) -> None:
        seen = make_node()
        pid = programs.opener(ground.node("acme0", FULL))
        async with running(lab, seen.node, settings(ground)):
            await eventually(lambda: HELD.items() <= seen.keys("acme0").items())
        client = await KubeClient.connect(
            KubeSettings(kubeconfig=lab.kubeconfig), metrics=KubeMetrics(MetricSet())
        )
        try:
            found = await holdings.of_cluster(Settings(), client)
        finally:
            await client.close()
        (mine,) = (card for card in found.cards if card.node == seen.node)
        assert (mine.card, mine.state, mine.holders[0].pid) == ("acme0", "host", pid)
        assert found.has_findings
