"""What the agent writes on a real API server: on evidence, only its own, and taken back."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from controllers.occupancy import holdings
from controllers.occupancy.cards import DeviceNumber
from controllers.occupancy.scanner import Scanner, ScanRules
from controllers.occupancy.sources.generic import GenericSource
from controllers.occupancy.sources.host import Host
from controllers.occupancy.sources.nvidia import NvidiaSource
from controllers.occupancy.tools import Tools
from controllers.occupancy.vendors.generic import CardClass as GenericCards
from service.kube.client import KubeClient
from service.kube.metrics import KubeMetrics
from service.metrics import MetricSet
from service.settings import (
    CardClass,
    KubeSettings,
    NodeSettings,
    OccupancySettings,
    ProfileSettings,
    Settings,
)
from tests.cluster import occupancy
from tests.cluster.occupancy import MERGE, PROFILES, SERVERS, Json, Seen, eventually, running
from tests.lab import Lab
from tests.lab.api import Call
from tests.unit.occupancy.ground import FULL, FUSE, ZERO, Ground, Programs, devices_to_oneself, lupine_client

HELD = {"health": "busy", "healthy": "false", "inUse": "true"}
APPLY = "application/apply-patch+yaml"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    with devices_to_oneself():
        yield Ground(tmp_path / "host")


@pytest.fixture
def programs() -> Iterator[Programs]:
    started = Programs()
    yield started
    started.close()


@pytest.fixture(scope="module")
def kinds(lab: Lab) -> None:
    occupancy.install_kinds(lab)


@pytest.fixture
def make_node(lab: Lab, kinds: None, namespace: str) -> Iterator[Callable[..., Seen]]:
    """Make a node object named after the test; with `serves` it is a lupine server."""
    made: list[str] = []

    def make(suffix: str = "", *, serves: bool = False, **metadata: Json) -> Seen:
        name = f"{namespace}{suffix}"
        occupancy.node(lab, name, **metadata)
        made.append(name)
        if serves:
            kind = {"apiVersion": "tenure.dev/v1alpha1", "kind": "RemoteServer", "metadata": {"name": name}}
            lab.apply(kind)
        return Seen(lab, name)

    yield make
    for name in made:
        for path in (f"/api/v1/nodes/{name}", f"{SERVERS}/{name}"):
            lab.api.request(Call("DELETE", path))
        for profile in Seen(lab, name).profiles():
            lab.api.request(Call("DELETE", f"{PROFILES}/{profile}"))


def settings(ground: Ground, **more: object) -> OccupancySettings:
    fields: dict[str, object] = {
        "dev": ground.dev,
        "sys": ground.sys,
        "tool_folders": (ground.bin,),
        "cards": (CardClass(vendor="acme", nodes="acme[0-9]+"),),
        "interval_s": 0.5,
        "resync_s": 1.0,
    }
    return OccupancySettings.model_validate(fields | more)


class TestTheWholeWay:
    async def test_a_host_process_comes_and_goes(
        self, lab: Lab, ground: Ground, programs: Programs, make_node: Callable[..., Seen]
    ) -> None:
        seen = make_node(serves=True)
        held = ground.node("acme0", FULL)
        ground.node("acme1", FUSE)
        async with running(lab, seen.node, settings(ground)) as agent:
            await eventually(lambda: seen.label() == "0")
            await eventually(lambda: seen.keys("acme1") == {"id": "acme1", "inUse": "false", "holders": "[]"})
            pid = programs.opener(held)
            await eventually(lambda: seen.label() == "1")
            await eventually(lambda: HELD.items() <= seen.keys("acme0").items())
            assert [(h["pid"], h["managed"]) for h in seen.holders("acme0")] == [(pid, "host")]
            assert {card: entry["state"] for card, entry in seen.observed().items()} == {
                "acme0": "host",
                "acme1": "free",
            }
            labels = {"component": "tenure-node", "vendor": "acme", "model": ""}
            assert agent.sample("rm_accel_accelerators_host_held", **labels) == 1
            assert agent.sample("rm_accel_accelerators_in_use", **labels) == 1
            (note,) = await eventually(seen.events)
            assert f"(pid {pid})" in note
            assert "acme0" in note

            programs.end(pid)
            await eventually(lambda: seen.label() == "0")
            await eventually(lambda: seen.keys("acme0") == {"id": "acme0", "inUse": "false", "holders": "[]"})
            assert seen.state("acme0") == "free"
            assert agent.sample("rm_accel_accelerators_host_held", **labels) == 0

    async def test_what_nobody_could_see_is_withdrawn_and_what_was_done_stays(
        self, lab: Lab, ground: Ground, programs: Programs, make_node: Callable[..., Seen]
    ) -> None:
        seen = make_node(serves=True)
        ground.rngd(0, "0000:03:00.0", FULL)
        ground.tool("furiosa-smi", "case $1 in ps) echo '[]';; *) exit 2;; esac")
        pid = programs.opener(ground.dev / "rngd/npu0pe0")
        card = "0000-03-00.0"
        async with running(lab, seen.node, settings(ground)) as agent:
            await eventually(lambda: HELD.items() <= seen.keys(card).items())
            ground.tool("furiosa-smi", "exit 1")
            programs.end(pid)
            await eventually(lambda: not seen.keys(card).keys() & {*HELD, "holders"})
            assert seen.label() is None
            assert seen.state("0000:03:00.0") == "host"
            labels = {"component": "tenure-node", "vendor": "furiosa", "model": "rngd"}
            assert agent.sample("rm_accel_accelerators_host_held", **labels) is None
            assert agent.sample("tenure_occupancy_unknown_cards", **labels) == 1
            errors = agent.sample(
                "tenure_occupancy_source_errors_total", source="furiosa-smi ps", reason="failed"
            )
            assert errors is not None
            assert errors >= 1
            ground.tool("furiosa-smi", "case $1 in ps) echo '[]';; *) exit 2;; esac")
            await eventually(lambda: seen.state("0000:03:00.0") == "free")
            await eventually(lambda: seen.label() == "0")

    async def test_an_agent_that_starts_again_goes_on_with_what_was_kept_out(
        self, lab: Lab, ground: Ground, programs: Programs, make_node: Callable[..., Seen]
    ) -> None:
        seen = make_node(serves=True)
        ground.rngd(0, "0000:03:00.0", FULL)
        ground.tool("furiosa-smi", "case $1 in ps) echo '[]';; *) exit 2;; esac")
        pid = programs.opener(ground.dev / "rngd/npu0pe0")
        async with running(lab, seen.node, settings(ground)):
            await eventually(lambda: seen.state("0000:03:00.0") == "host")
        programs.end(pid)
        ground.tool("furiosa-smi", "exit 1")
        async with running(lab, seen.node, settings(ground)):
            await eventually(lambda: not seen.keys("0000-03-00.0").keys() & HELD.keys())
            assert seen.state("0000:03:00.0") == "host"
            ground.tool("furiosa-smi", "case $1 in ps) echo '[]';; *) exit 2;; esac")
            await eventually(lambda: seen.state("0000:03:00.0") == "free")

    async def test_an_agent_that_cannot_see_the_host_warns_once_and_publishes_nothing(
        self, lab: Lab, ground: Ground, make_node: Callable[..., Seen]
    ) -> None:
        seen = make_node(serves=True)
        ground.node("acme0", FUSE)
        (ground.sys / "proc/self").mkdir(parents=True)
        host = Host(ground.sys / "proc", ground.sys, ground.dev)
        cards = [GenericCards("acme", re.compile("acme0"))]
        blind = Scanner(host, [GenericSource(host, cards, deadline_s=5)], ScanRules())
        with capture_logs() as logs:
            async with running(lab, seen.node, settings(ground), scanner=blind) as agent:
                await eventually(lambda: seen.state("acme0") == "unknown")
                rounds = "tenure_occupancy_scan_seconds_count"
                await eventually(lambda: (agent.sample(rounds) or 0) >= 3)
        warnings = [entry["event"] for entry in logs if entry["log_level"] == "warning"]
        assert warnings == ["host processes are not visible (run with hostPID): occupancy not reported"]
        assert seen.label() is None
        assert seen.keys("acme0") == {"id": "acme0"}

    async def test_a_kind_that_is_not_installed_keeps_nothing_else_from_being_written(
        self, lab: Lab, ground: Ground, make_node: Callable[..., Seen]
    ) -> None:
        seen = make_node(serves=True)
        ground.node("acme0", FUSE)
        nowhere = ProfileSettings(group="nowhere.example")
        async with running(lab, seen.node, settings(ground, profiles=nowhere)):
            await eventually(lambda: seen.label() == "0")
            assert seen.state("acme0") == "free"
            assert seen.profiles() == {}

    async def test_another_version_that_the_cluster_serves_is_found(
        self, lab: Lab, ground: Ground, make_node: Callable[..., Seen]
    ) -> None:
        seen = make_node()
        ground.node("acme0", FUSE)
        async with running(lab, seen.node, settings(ground, profiles=ProfileSettings(version="v1beta7"))):
            await eventually(lambda: seen.keys("acme0").get("inUse") == "false")


class TestDraining:
    async def test_a_draining_card_is_said_to_be_empty_when_the_client_is_gone_and_not_before(
        self, lab: Lab, ground: Ground, programs: Programs, make_node: Callable[..., Seen]
    ) -> None:
        seen = make_node(serves=True)
        client = lupine_client(ground, programs, card=ground.node("acme0", FULL))
        slow = settings(ground, interval_s=600, drain_interval_s=1)
        async with running(lab, seen.node, slow):
            await eventually(lambda: seen.observed().get("acme0", {}).get("lupineClients") == 1)
            assert seen.state("acme0") == "free"
            allocation = {
                "card": "acme0",
                "podUID": "u",
                "namespace": "ml",
                "name": "p",
                "phase": "Draining",
                "since": "2026-01-01T00:00:00Z",
            }
            path = f"{SERVERS}/{seen.node}/status"
            lab.api.ok(Call("PATCH", path, {"status": {"allocations": [allocation]}}, MERGE))

            def looked() -> str:
                server = lab.api.ok(Call("GET", f"{SERVERS}/{seen.node}"))
                at: str = server["spec"].get("seen", "")
                return at

            first = looked()
            await eventually(lambda: looked() > first)
            assert seen.observed()["acme0"]["lupineClients"] == 1
            programs.end(client)
            await eventually(lambda: seen.observed()["acme0"]["lupineClients"] == 0, seconds=5)
            lab.api.ok(Call("PATCH", path, {"status": {"allocations": []}}, MERGE))


class TestCordon:
    A = "GPU-aaaaaaaa-0000-4000-8000-aaaaaaaaaaaa"
    B = "GPU-bbbbbbbb-0000-4000-8000-bbbbbbbbbbbb"

    def scanner(self, ground: Ground, folder: Path) -> Scanner:
        for minor, uuid in enumerate((self.A, self.B)):
            bdf = f"0000:0{minor + 1}:00.0"
            card = folder / "proc/driver/nvidia/gpus" / bdf
            card.mkdir(parents=True)
            text = f"Model: H200\nGPU UUID: {uuid}\nBus Location: {bdf}\nDevice Minor: {minor}\n"
            (card / "information").write_text(text)
        host = Host(folder / "proc", ground.sys, ground.dev)
        source = NvidiaSource(host, Tools([ground.bin], deadline_s=10), deadline_s=5)
        return Scanner(ground.host, [source], ScanRules())

    def smi(self, ground: Ground, rows: str) -> None:
        gpus = "".join(
            f"{n}, {u}, H200, 00000000:0{n + 1}:00.0, [N/A]\\n" for n, u in enumerate((self.A, self.B))
        )
        ground.tool("nvidia-smi", f"case $1 in --query-gpu*) printf '{gpus}';; *) printf '{rows}';; esac")

    async def test_host_held_nvidia_cards_are_added_and_only_these_are_taken_back(
        self,
        lab: Lab,
        ground: Ground,
        programs: Programs,
        make_node: Callable[..., Seen],
        tmp_path: Path,
    ) -> None:
        seen = make_node(annotations={occupancy.CORDON: "GPU-x,GPU-y"})
        pid = programs.opener()
        self.smi(ground, f"{self.A}, {pid}, python3, 1\\n")
        async with running(lab, seen.node, settings(ground), scanner=self.scanner(ground, tmp_path)):
            await eventually(lambda: seen.cordon() == f"GPU-x,GPU-y,{self.A}")
            note = {"metadata": {"annotations": {occupancy.CORDON: f"GPU-y,GPU-z,{self.A}"}}}
            lab.api.ok(Call("PATCH", f"/api/v1/nodes/{seen.node}", note, MERGE))
            self.smi(ground, "")
            programs.end(pid)
            await eventually(lambda: seen.cordon() == "GPU-y,GPU-z")
            assert seen.label() == "0"


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


class TestOff:
    async def test_turned_off_everything_is_taken_back(
        self,
        lab: Lab,
        ground: Ground,
        programs: Programs,
        make_node: Callable[..., Seen],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        seen = make_node(serves=True, annotations={occupancy.CORDON: "GPU-x"})
        programs.opener(ground.node("acme0", FULL))
        async with running(lab, seen.node, settings(ground)):
            await eventually(lambda: HELD.items() <= seen.keys("acme0").items())
        monkeypatch.setenv("AIRM_OCCUPANCY", "0")
        async with running(lab, seen.node, settings(ground)):
            await eventually(lambda: seen.profiles() == {})
            await eventually(lambda: seen.label() is None)
            await eventually(lambda: seen.observed() == {})
        assert seen.cordon() == "GPU-x"


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
