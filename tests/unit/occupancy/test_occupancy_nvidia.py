"""NVIDIA on this machine: a library and a command that stand in for the driver's, with real processes behind them."""

import os
import subprocess
from pathlib import Path

import pytest

from controllers.occupancy.evidence import Why
from controllers.occupancy.holders import State, Verdict
from controllers.occupancy.pods import PodIndex
from controllers.occupancy.scanner import Scanner, ScanRules
from controllers.occupancy.sources.host import Host
from controllers.occupancy.sources.nvidia import NvidiaSource
from controllers.occupancy.tools import Tools
from tests.unit.occupancy.ground import FULL, Ground, Programs

A = "GPU-aaaaaaaa-0000-4000-8000-aaaaaaaaaaaa"
B = "GPU-bbbbbbbb-0000-4000-8000-bbbbbbbbbbbb"
# The calls of nvml.h that the probe makes; struct sizes as in nvidia-ml-py.
LIBRARY = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
struct process { unsigned pid; unsigned long long memory; unsigned gi, ci; };
static const char *uuid[] = {"%(a)s", "%(b)s"};
int nvmlInitWithFlags(unsigned flags) { %(init)s }
const char *nvmlErrorString(int code) { return "Driver/library version mismatch"; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned n, long *handle) { *handle = n + 1; return 0; }
int nvmlDeviceGetUUID(long handle, char *out, unsigned size) { strcpy(out, uuid[handle - 1]); return 0; }
int nvmlDeviceGetMinorNumber(long handle, unsigned *n) { *n = handle - 1; return 0; }
int nvmlDeviceGetName(long handle, char *out, unsigned size) { strcpy(out, "Stand-in"); return 0; }
int nvmlDeviceGetPciInfo_v3(long handle, void *out) { return 3; }
int nvmlDeviceGetMigMode(long handle, unsigned *now, unsigned *later) { return 3; }
int nvmlDeviceGetComputeRunningProcesses_v3(long handle, unsigned *count, struct process *out) {
  if (handle == 2) return %(second)s;
  if (%(pid)d == 0) { *count = 0; return 0; }
  if (!out || *count < 1) { *count = 1; return 7; }
  memset(out, 0, sizeof *out); out->pid = %(pid)d; *count = 1; return 0;
}
"""


@pytest.fixture
def driver(ground: Ground, tmp_path: Path) -> "Driver":
    return Driver(ground, tmp_path)


class Driver:
    """Two cards in the driver's texts, and what answers for them."""

    def __init__(self, ground: Ground, folder: Path) -> None:
        self.ground, self.library = ground, folder / "lib"
        self.proc = folder / "proc"
        self.library.mkdir()
        for minor, uuid in enumerate((A, B)):
            bdf = f"0000:0{minor + 1}:00.0"
            card = self.proc / "driver/nvidia/gpus" / bdf
            card.mkdir(parents=True)
            (card / "information").write_text(
                f"Model: \t H200\nGPU UUID: \t {uuid}\nBus Location: \t {bdf}\nDevice Minor: \t {minor}\n"
            )

    def nvml(self, *, init: str = "return 0;", pid: int = 0, second: str = "(*count = 0, 0)") -> None:
        source = LIBRARY % {"a": A, "b": B, "init": init, "pid": pid, "second": second}
        target = self.library / "libnvidia-ml.so.1"
        subprocess.run(
            ["cc", "-shared", "-w", "-x", "c", "-o", target, "-"], input=source, text=True, check=True
        )

    def smi(self, rows: str, *, code: int = 0, listed: tuple[str, ...] = (A, B)) -> None:
        gpus = "".join(
            f"{n}, {uuid}, H200, 00000000:0{n + 1}:00.0, [N/A]\\n" for n, uuid in enumerate(listed)
        )
        script = f"case $1 in --query-gpu*) printf '{gpus}';; *) printf '{rows}';; esac; exit {code}"
        self.ground.tool("nvidia-smi", script)

    async def scan(self, monkeypatch: pytest.MonkeyPatch, *, deadline_s: float = 20) -> dict[str, Verdict]:
        monkeypatch.setenv("LD_LIBRARY_PATH", str(self.library))
        host = Host(self.proc, self.ground.sys, self.ground.dev)
        tools = Tools([self.ground.bin], deadline_s=deadline_s)
        source = NvidiaSource(host, tools, deadline_s=5)
        found = await Scanner(self.ground.host, [source], ScanRules()).scan(PodIndex())
        return {verdict.card.id: verdict for verdict in found.verdicts}


async def test_nvml_names_the_holder(
    driver: Driver, programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = programs.opener()
    driver.nvml(pid=pid)
    cards = await driver.scan(monkeypatch)
    assert [h.pid for h in cards[A].holders] == [pid]
    assert (cards[A].state, cards[B].state, cards[B].clean) == (State.HOST, State.FREE, True)


async def test_an_open_node_alone_never_makes_a_card_held(
    driver: Driver, programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA opens every card that it can see."""
    driver.nvml()
    programs.opener(driver.ground.node("nvidia0", FULL))
    cards = await driver.scan(monkeypatch)
    assert (cards[A].state, cards[B].state) == (State.FREE, State.FREE)


async def test_without_nvml_nvidia_smi_decides(
    driver: Driver, programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = programs.opener()
    driver.smi(f"{A}, {pid}, /usr/bin/python3, 1024\\n")
    cards = await driver.scan(monkeypatch)
    assert [h.pid for h in cards[A].holders] == [pid]
    assert (cards[A].state, cards[B].state) == (State.HOST, State.FREE)


async def test_a_card_whose_processes_nvml_cannot_list_is_asked_of_nvidia_smi(
    driver: Driver, programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = programs.opener()
    driver.nvml(second="999")
    driver.smi(f"{B}, {pid}, python3, 1024\\n")
    cards = await driver.scan(monkeypatch)
    assert (cards[A].state, cards[B].state) == (State.FREE, State.HOST)


async def test_when_neither_answers_every_card_is_unknown(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.nvml(init="return 18;")
    driver.smi("Failed to initialize NVML: Driver/library version mismatch\\n", code=18)
    cards = await driver.scan(monkeypatch)
    assert {card.state for card in cards.values()} == {State.UNKNOWN}
    assert "nvidia-smi failed (18)" in cards[A].reason


async def test_both_are_missing(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    card = (await driver.scan(monkeypatch))[A]
    assert card.state is State.UNKNOWN
    assert "nvidia-smi is not installed" in card.reason
    assert "NVML" in card.reason


@pytest.mark.parametrize("init", ["for (;;) sleep(1);", "abort();"], ids=["hangs", "crashes"])
async def test_a_library_that_hangs_or_crashes_costs_nothing_but_its_answer(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, init: str
) -> None:
    driver.nvml(init=init)
    driver.smi("")
    cards = await driver.scan(monkeypatch, deadline_s=3)
    assert {card.state for card in cards.values()} == {State.FREE}


async def test_memory_of_a_dead_process_holds_the_card(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C6, first card."""
    driver.smi(f"{A}, 4194299, [Not Found], 10151\\n")
    cards = await driver.scan(monkeypatch)
    assert (cards[A].in_use, cards[A].state, cards[B].state) == (True, State.UNKNOWN, State.FREE)
    assert cards[A].gaps[-1].why is Why.PROCESS_GONE


async def test_a_card_that_fell_off_the_bus_is_unknown(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.smi("", listed=(A,))
    cards = await driver.scan(monkeypatch)
    assert (cards[A].state, cards[B].state) == (State.FREE, State.UNKNOWN)


async def test_the_agent_itself_never_counts(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    driver.smi(f"{A}, {os.getpid()}, python3, 1\\n")
    assert (await driver.scan(monkeypatch))[A].holders == ()
