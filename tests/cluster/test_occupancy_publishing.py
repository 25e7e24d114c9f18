"""What the agent writes on a real API server: on evidence, only its own, and taken back."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from controllers.occupancy.scanner import Scanner, ScanRules
from controllers.occupancy.sources.generic import GenericSource
from controllers.occupancy.sources.host import Host
from controllers.occupancy.sources.nvidia import NvidiaSource
from controllers.occupancy.tools import Tools
from controllers.occupancy.vendors.generic import CardClass as GenericCards
from service.settings import ProfileSettings
from tests.cluster import occupancy
from tests.cluster.occupancy import HELD, MERGE, SERVERS, Seen, eventually, running, settings
from tests.lab import Lab
from tests.lab.api import Call
from tests.unit.occupancy.ground import FULL, FUSE, Ground, Programs, lupine_client


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
