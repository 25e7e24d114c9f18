"""Whole scans of this machine: real processes, device nodes and namespaces, tools that behave and tools that do not."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from controllers.occupancy.evidence import Why
from controllers.occupancy.holders import State
from controllers.occupancy.pods import PodIndex
from controllers.occupancy.scanner import Scanner, ScanRules
from controllers.occupancy.sources.host import Host
from tests.unit.occupancy.ground import FULL, FUSE, REPOSITORY, ZERO, Cgroups, Ground, Openings, Programs
from tests.unit.occupancy.scanning import by_card, furiosa, generic, rebellions, scan, scanner

PYTHON = Path(sys.executable).resolve().name
NPU0 = "0000:03:00.0"
UIDS = ("0f3b1c2d-4e5f-4071-8293-a4b5c6d7e8f9", "1f3b1c2d-4e5f-4071-8293-a4b5c6d7e8f9")


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
