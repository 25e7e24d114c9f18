"""Whole scans of this machine: real processes, device nodes and namespaces, tools that behave and tools that do not."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from controllers.occupancy.cards import DeviceNumber
from controllers.occupancy.evidence import Why
from controllers.occupancy.holders import State, Verdict
from controllers.occupancy.pods import PodIndex
from controllers.occupancy.scanner import Scan, Scanner, ScanRules
from controllers.occupancy.sources.furiosa import FuriosaSource
from controllers.occupancy.sources.generic import GenericSource
from controllers.occupancy.sources.host import Host
from controllers.occupancy.sources.look import Source
from controllers.occupancy.sources.rebellions import RebellionsSource
from controllers.occupancy.tools import Tools
from tests.unit.occupancy.ground import (
    ACME,
    FULL,
    FUSE,
    REPOSITORY,
    ZERO,
    Cgroups,
    Ground,
    Openings,
    Programs,
)

FIXTURES = REPOSITORY / "tests/fixtures"
PYTHON = Path(sys.executable).resolve().name
NPU0 = "0000:03:00.0"
UIDS = ("0f3b1c2d-4e5f-4071-8293-a4b5c6d7e8f9", "1f3b1c2d-4e5f-4071-8293-a4b5c6d7e8f9")


def generic(ground: Ground) -> GenericSource:
    return GenericSource(ground.host, ACME, deadline_s=5)


def furiosa(ground: Ground, *, deadline_s: float = 5) -> FuriosaSource:
    tools = Tools([ground.bin], deadline_s=deadline_s)
    return FuriosaSource(ground.host, tools, deadline_s=5)


def rebellions(ground: Ground) -> RebellionsSource:
    return RebellionsSource(ground.host, Tools([ground.bin], deadline_s=5), deadline_s=5)


def scanner(ground: Ground, *sources: Source, rules: ScanRules | None = None) -> Scanner:
    return Scanner(ground.host, sources or (generic(ground),), rules or ScanRules())


async def scan(ground: Ground, *sources: Source) -> Scan:
    return await scanner(ground, *sources).scan(PodIndex())


def by_card(found: Scan) -> dict[str, Verdict]:
    return {verdict.card.kernel_name: verdict for verdict in found.verdicts}


class TestOpenFiles:
    async def test_a_host_process_holds_the_card_that_it_has_open(
        self, ground: Ground, programs: Programs
    ) -> None:
        held = ground.node("acme0", FULL)
        ground.node("acme1", FUSE)
        pid = programs.opener(held)
        cards = by_card(await scan(ground))
        assert cards["acme0"].state is State.HOST
        assert [(h.pid, h.command) for h in cards["acme0"].holders] == [(pid, PYTHON)]
        assert (cards["acme1"].state, cards["acme1"].clean) == (State.FREE, True)

    async def test_it_ends_and_the_card_is_free(self, ground: Ground, programs: Programs) -> None:
        pid = programs.opener(ground.node("acme0", FULL))
        looking = scanner(ground)
        assert by_card(await looking.scan(PodIndex()))["acme0"].state is State.HOST
        programs.end(pid)
        assert by_card(await looking.scan(PodIndex()))["acme0"].state is State.FREE

    async def test_a_card_that_is_not_listed_any_more_is_not_free(self, ground: Ground) -> None:
        node = ground.node("acme0", FUSE)
        looking = scanner(ground)
        assert by_card(await looking.scan(PodIndex()))["acme0"].state is State.FREE
        node.unlink()
        lost = by_card(await looking.scan(PodIndex()))["acme0"]
        assert (lost.state, [gap.why for gap in lost.gaps]) == (State.UNKNOWN, [Why.MISSING])

    async def test_no_device_node_is_ever_opened(self, ground: Ground, programs: Programs) -> None:
        """To open a card is to hold it, and some have a side effect. inotify(7) tells of every opening."""
        nodes = [ground.node("acme0", FULL), ground.node("acme1", FUSE)]
        ground.rngd(0, NPU0, ZERO)
        ground.tool("furiosa-smi", "echo '[]'")
        with Openings([*nodes, ground.dev / "rngd/npu0pe0"]) as openings:
            found = await scan(ground, generic(ground), furiosa(ground), rebellions(ground))
            assert len(found.verdicts) == 3
            assert openings.count() == 0
            programs.opener(nodes[0])
            assert openings.count() == 1

    async def test_a_node_without_cards_is_scanned_quietly(self, ground: Ground) -> None:
        found = await scan(ground, generic(ground), furiosa(ground), rebellions(ground))
        assert (found.verdicts, found.gaps, found.complete) == ((), (), True)


class TestAProcThatDoesNotAnswer:
    async def test_the_scan_is_back_in_time_and_says_unknown(self, ground: Ground, tmp_path: Path) -> None:
        ground.node("acme0", FUSE)
        proc = tmp_path / "proc"
        (proc / "self").mkdir(parents=True)
        os.mkfifo(proc / "self/mountinfo")  # Opening it for reading does not return.
        host = Host(proc, ground.sys, ground.dev)
        began = time.monotonic()
        found = await Scanner(host, [generic(ground)], ScanRules(walk_deadline_s=1)).scan(PodIndex())
        assert time.monotonic() - began < 20
        assert found.blind == "/proc did not answer in time: occupancy not reported"
        assert by_card(found)["acme0"].state is State.UNKNOWN
        os.close(os.open(proc / "self/mountinfo", os.O_RDWR))

    async def test_without_a_list_of_processes_nothing_is_free(self, ground: Ground) -> None:
        ground.node("acme0", FUSE)
        for proc in (ground.sys, ground.sys / "missing"):
            host = Host(proc, ground.sys, ground.dev)
            looking = Scanner(host, [generic(ground)], ScanRules(assume_host_pid=True))
            assert by_card(await looking.scan(PodIndex()))["acme0"].state is State.UNKNOWN


class TestTardyMonitors:
    async def test_a_monitor_counts_when_it_stays_and_begins_anew_when_it_left(
        self, ground: Ground, programs: Programs
    ) -> None:
        program = ground.program("rbln_daemon", "open(v[1], O_RDONLY); hello(); sleep(600);")
        pid = programs.start([program, ground.node("acme0", FULL)])
        now = 0.0
        looking = Scanner(ground.host, [generic(ground)], ScanRules(monitor_hold_s=60), clock=lambda: now)
        assert by_card(await looking.scan(PodIndex()))["acme0"].state is State.FREE
        now = 59.0
        assert by_card(await looking.scan(PodIndex()))["acme0"].state is State.FREE
        now = 60.0
        assert by_card(await looking.scan(PodIndex()))["acme0"].state is State.HOST
        programs.end(pid)
        programs.start([program, ground.dev / "acme0"])
        assert by_card(await looking.scan(PodIndex()))["acme0"].state is State.FREE


class TestLupine:
    """A root-owned stand-in of the lupine server that forks and holds the device."""

    def server(self, ground: Ground, programs: Programs, *, clients: int) -> int:
        serve = (
            "open(v[1], O_RDONLY); for (int n = atoi(v[2]); n > 0; n--)"
            " if (fork() == 0) { open(v[1], O_RDONLY); sleep(600); } hello(); sleep(600);"
        )
        program = ground.program("lupine_driver_server", serve)
        return programs.start([program, ground.node("acme0", FULL), str(clients)])

    async def test_without_a_client_the_card_is_free_and_drained(
        self, ground: Ground, programs: Programs
    ) -> None:
        self.server(ground, programs, clients=0)
        card = by_card(await scan(ground))["acme0"]
        assert (card.state, card.lupine_clients, card.holders) == (State.FREE, 0, ())

    async def test_with_clients_it_is_no_host_holder_and_not_drained(
        self, ground: Ground, programs: Programs
    ) -> None:
        self.server(ground, programs, clients=2)
        card = by_card(await scan(ground))["acme0"]
        assert (card.state, card.lupine_clients, card.in_use) == (State.FREE, 2, True)

    async def test_clients_outlive_their_server(self, ground: Ground, programs: Programs) -> None:
        server = self.server(ground, programs, clients=1)
        programs.end(server)
        card = by_card(await scan(ground))["acme0"]
        assert (card.state, card.lupine_clients) == (State.FREE, 1)


class TestWhoCannotSee:
    """The scan runs in a process that lacks something; it must say unknown and why."""

    code = """
import asyncio, json, re, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from controllers.occupancy.pods import PodIndex
from controllers.occupancy.scanner import Scanner, ScanRules
from controllers.occupancy.sources.generic import GenericSource
from controllers.occupancy.sources.host import Host
from controllers.occupancy.sources.host import Host
from controllers.occupancy.vendors.generic import CardClass
host = Host(Path("/proc"), Path(sys.argv[2]), Path(sys.argv[3]))
source = GenericSource(host, [CardClass("acme", re.compile(r"acme[0-9]+"))], deadline_s=5)
scan = asyncio.run(Scanner(host, [source], ScanRules()).scan(PodIndex()))
held = lambda v: [[h.pid, h.managed, h.pod_uid] for h in v.holders]
print(json.dumps([[v.card.kernel_name, v.state, v.reason, held(v)] for v in scan.verdicts]))
"""

    def run(self, ground: Ground, prefix: Sequence[str]) -> list[list[Any]]:
        folders = (str(folder) for folder in (REPOSITORY, ground.sys, ground.dev))
        command = [*prefix, sys.executable, "-c", self.code, *folders]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert ran.returncode == 0, ran.stderr
        found: list[list[Any]] = json.loads(ran.stdout)
        return found

    def test_another_pid_namespace(self, ground: Ground, programs: Programs) -> None:
        programs.opener(ground.node("acme0", FULL))
        ground.node("acme1", FUSE)
        sentence = "host processes are not visible (run with hostPID): occupancy not reported"
        found = self.run(ground, ["unshare", "--pid", "--fork", "--mount-proc"])
        assert found == [["acme0", "unknown", sentence, []], ["acme1", "unknown", sentence, []]]

    def test_a_cgroup_namespace_of_its_own_at_the_root_changes_nothing(
        self, ground: Ground, programs: Programs
    ) -> None:
        pid = programs.opener(ground.node("acme0", FULL))
        assert self.run(ground, ["unshare", "--cgroup"]) == [["acme0", "host", "", [[pid, "host", ""]]]]

    def test_an_agent_in_the_cgroup_namespace_of_its_pod_tells_pods_and_host_apart(
        self, ground: Ground, programs: Programs, cgroups: Cgroups
    ) -> None:
        """Finding 2: it reads `/../../podB/ID` for the pod, without `kubepods`, and a path of dots for the host."""
        agent, other = f"pod{UIDS[0]}/{'a' * 64}", f"pod{UIDS[1]}/{'b' * 64}"
        in_pod = programs.opener(ground.node("acme0", FULL))
        cgroups.put_into_pod(in_pod, other)
        on_host = programs.opener(ground.node("acme1", FUSE))
        cgroups.put_on_host(on_host)
        enter = f'echo $$ > {cgroups.pod(agent)}/cgroup.procs && exec unshare --cgroup "$@"'
        first, second = self.run(ground, ["sh", "-c", enter, "sh"])
        assert first == ["acme0", "k8s", "", [[in_pod, "k8s", UIDS[1]]]]
        assert second == ["acme1", "host", "", [[on_host, "host", ""]]]

    def test_without_the_right_to_trace(self, ground: Ground, programs: Programs) -> None:
        programs.opener(ground.node("acme0", FULL))
        ground.node("acme1", FUSE)
        drop = ["setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace"]
        found = self.run(ground, drop)
        assert [card[:2] for card in found] == [["acme0", "unknown"], ["acme1", "unknown"]]
        assert "CAP_SYS_PTRACE" in found[0][2]

    def test_with_hidepid(self, ground: Ground) -> None:
        ground.node("acme0", FUSE)
        drop = "setpriv --bounding-set=-sys_ptrace --inh-caps=-sys_ptrace"
        hide = f'mount -t proc -o hidepid=invisible proc /proc && exec {drop} "$@"'
        found = self.run(ground, ["unshare", "--mount", "sh", "-c", hide, "sh"])
        assert [card[:2] for card in found] == [["acme0", "unknown"]]
        assert "hidepid" in found[0][2]


class TestFuriosa:
    def cards(self, ground: Ground) -> None:
        ground.rngd(0, NPU0, FULL)
        ground.rngd(1, "0000:04:00.0", FUSE)

    def tool(self, ground: Ground, ps: str, status: str = "[]", drain: str = "") -> None:
        ground.tool(
            "furiosa-smi",
            f"case $1 in ps) {ps};; status) echo '{status}';; drain) echo '{drain}';; *) exit 2;; esac",
        )

    async def test_tool_and_open_files_agree_on_one_holder(self, ground: Ground, programs: Programs) -> None:
        self.cards(ground)
        pid = programs.opener(ground.dev / "rngd/npu0pe0")
        record = json.dumps([{"pid": pid, "dev_name": "npu0:[0, 7]", "cmdline": "/usr/bin/python3 train.py"}])
        self.tool(ground, f"echo '{record}'")
        cards = by_card(await scan(ground, furiosa(ground)))
        assert [h.pid for h in cards["npu0"].holders] == [pid]
        assert (cards["npu0"].state, cards["npu1"].state) == (State.HOST, State.FREE)
        assert cards["npu0"].card.id == NPU0

    async def test_a_tool_that_shows_nobody_does_not_free_a_card_that_is_open(
        self, ground: Ground, programs: Programs
    ) -> None:
        """Finding 4: furiosa-smi under-reported while pods held the cards."""
        self.cards(ground)
        programs.opener(ground.dev / "rngd/npu0pe0")
        self.tool(ground, "echo '[]'")
        assert by_card(await scan(ground, furiosa(ground)))["npu0"].state is State.HOST

    @pytest.mark.parametrize(
        ("ps", "why", "reason"),
        [
            ("sleep 600", Why.SLOW, "furiosa-smi did not answer within 0.5 s"),
            ("echo 'Segmentation fault'", Why.GARBLED, "furiosa-smi ps printed no JSON list"),
            ("exit 1", Why.FAILED, "furiosa-smi ps failed (1)"),
            ("yes", Why.GARBLED, "furiosa-smi printed more than 4194304 bytes"),
        ],
        ids=["hangs", "prints garbage", "exits 1", "prints for ever"],
    )
    async def test_a_bad_tool_costs_its_own_vendor_and_nobody_else(
        self, ground: Ground, ps: str, why: Why, reason: str
    ) -> None:
        self.cards(ground)
        ground.node("acme0", ZERO)
        self.tool(ground, ps)
        began = time.monotonic()
        deadline_s = 0.5 if why is Why.SLOW else 10
        cards = by_card(await scan(ground, furiosa(ground, deadline_s=deadline_s), generic(ground)))
        assert time.monotonic() - began < 30
        assert {(cards[n].state, cards[n].reason) for n in ("npu0", "npu1")} == {(State.UNKNOWN, reason)}
        assert {gap.why for gap in cards["npu0"].gaps} == {why}
        assert cards["acme0"].state is State.FREE

    async def test_a_missing_tool_is_a_gap_unless_the_setting_says_otherwise(self, ground: Ground) -> None:
        self.cards(ground)
        assert by_card(await scan(ground, furiosa(ground)))["npu0"].reason == "furiosa-smi is not installed"
        tools = Tools([ground.bin], deadline_s=5)
        alone = FuriosaSource(ground.host, tools, deadline_s=5, optional_tools=["furiosa-smi"])
        assert by_card(await scan(ground, alone))["npu0"].state is State.FREE

    async def test_a_tool_that_a_user_may_change_is_not_run(self, ground: Ground, tmp_path: Path) -> None:
        self.cards(ground)
        self.tool(ground, f"touch {tmp_path}/ran; echo '[]'")
        (ground.bin / "furiosa-smi").chmod(0o777)
        card = by_card(await scan(ground, furiosa(ground)))["npu0"]
        assert (card.state, {gap.why for gap in card.gaps}) == (State.UNKNOWN, {Why.DENIED})
        assert not (tmp_path / "ran").exists()

    async def test_a_claimed_card_without_a_holder_is_unknown(self, ground: Ground) -> None:
        """C11: npu0 is claimed and idle, npu1 may be free."""
        self.cards(ground)
        self.tool(ground, "echo '[]'", status="status npu0: Core 0: 0.00%   npu1: Core 0: -")
        cards = by_card(await scan(ground, furiosa(ground)))
        assert (cards["npu0"].state, cards["npu1"].state) == (State.UNKNOWN, State.FREE)
        assert "claimed" in cards["npu0"].reason

    async def test_a_claim_in_sysfs_counts_too(self, ground: Ground) -> None:
        self.cards(ground)
        ground.text("class/rngd_mgmt/rngd!npu0mgmt/pe_occupancy", "0\n1\n")
        self.tool(ground, "echo '[]'")
        assert by_card(await scan(ground, furiosa(ground)))["npu0"].state is State.UNKNOWN

    async def test_a_drained_card_is_unknown_and_not_gone(self, ground: Ground) -> None:
        """C11: the fourth card is missing from every list but that of drained cards."""
        self.cards(ground)
        self.tool(ground, "echo '[]'", drain="Drained device BDF: 0000:45:00.0")
        found = await scan(ground, furiosa(ground))
        drained = next(v for v in found.verdicts if v.card.id == "0000:45:00.0")
        assert (drained.state, drained.gaps[0].text) == (State.UNKNOWN, "drained")
        assert by_card(found)["npu0"].state is State.FREE


class TestRebellions:
    def tool(self, ground: Ground, document: str) -> None:
        file = ground.bin / "document.json"
        file.write_text(document)
        ground.tool("rbln-stat", f"exec cat {file}")

    async def test_the_loaded_node_with_its_processes_gone(self, ground: Ground) -> None:
        """The recording's processes do not live here: memory without a process, on the cards that can be told."""
        recording = (FIXTURES / "rebellions/rbln-stat.loaded-8-cards.json").read_text()
        for device in json.loads(recording)["devices"]:
            number = int(device["device"].removeprefix("rbln"))
            ground.rbln(number, device["pci"]["bus_id"], DeviceNumber(240, number))
        self.tool(ground, recording)
        found = by_card(await scan(ground, rebellions(ground)))
        assert len(found) == 8
        assert {name for name, card in found.items() if card.in_use} == {"rbln6", "rbln7"}
        assert {card.state for card in found.values()} == {State.UNKNOWN}
        assert found["rbln6"].card.uuid == "00000000-0000-4000-8000-000000000003"

    async def test_an_open_file_places_a_context_that_the_tool_could_not(
        self, ground: Ground, programs: Programs
    ) -> None:
        """Finding 5: several cards bear the number; the open file tells which is meant."""
        ground.rbln(0, "0000:03:00.0", FULL)
        ground.rbln(1, "0000:04:00.0", FUSE)
        pid = programs.opener(ground.dev / "rbln0")
        devices = [
            {"npu": 0, "device": f"rbln{n}", "pci": {"bus_id": f"0000:0{n + 3}:00.0"}} for n in range(2)
        ]
        self.tool(ground, json.dumps({"devices": devices, "contexts": [{"npu": 0, "pid": str(pid)}]}))
        found = by_card(await scan(ground, rebellions(ground)))
        assert (found["rbln0"].state, found["rbln1"].state) == (State.HOST, State.FREE)

    async def test_a_group_node_leaves_its_members_open_and_no_others(
        self, ground: Ground, programs: Programs
    ) -> None:
        for number in range(3):
            ground.rbln(number, f"0000:0{number + 3}:00.0", DeviceNumber(240, number))
        ground.text("class/rebellions/rsd/rsd_group", "group,count,device\n1,2,rbln0\n1,2,rbln1\n2,1,rbln2\n")
        programs.opener(ground.node("rsd1", FULL))
        self.tool(ground, '{"devices": [], "contexts": []}')
        found = by_card(await scan(ground, rebellions(ground)))
        states = [found[f"rbln{n}"].state for n in range(3)]
        assert states == [State.UNKNOWN, State.UNKNOWN, State.FREE]

    async def test_a_group_of_one_is_that_card(self, ground: Ground, programs: Programs) -> None:
        ground.rbln(0, "0000:03:00.0", FUSE)
        ground.text("class/rebellions/rsd/rsd_group", "1,1,rbln0\n")
        programs.opener(ground.node("rsd1", FULL))
        self.tool(ground, '{"devices": [], "contexts": []}')
        assert by_card(await scan(ground, rebellions(ground)))["rbln0"].state is State.HOST

    async def test_ctx_info_names_holders_and_spoils_its_own_card_only(
        self, ground: Ground, programs: Programs
    ) -> None:
        pid = programs.opener(ground.node("other", FULL))
        ground.rbln(0, "0000:03:00.0", ZERO, ctx_info=f"{pid} 10001 normal 0 3.5GiB idle 1.1\n")
        ground.rbln(1, "0000:04:00.0", FUSE, ctx_info="no context here\n")
        self.tool(ground, '{"devices": [], "contexts": []}')
        found = by_card(await scan(ground, rebellions(ground)))
        assert (found["rbln0"].state, found["rbln1"].state) == (State.HOST, State.UNKNOWN)

    async def test_a_hidden_device_node_makes_the_card_unknown(self, ground: Ground) -> None:
        ground.rbln(0, "0000:03:00.0", None)
        self.tool(ground, '{"devices": [], "contexts": []}')
        card = by_card(await scan(ground, rebellions(ground)))["rbln0"]
        assert (card.state, card.reason) == (State.UNKNOWN, "no compute device node of rbln0 is visible")
