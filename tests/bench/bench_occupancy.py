"""What one scan of a crowded node costs: 2,000 processes with 50 open files each, one of them on a card.

Beside each scan the bare system calls (list each folder, ask for each file's number) run as a C program: about 270 ms
of CPU time on a quiet machine, and more where others use its caches. CPU time is that of the whole process, all
threads. A stall is how much later than asked the loop runs something while the scan is on; each figure is the median of
several scans.
"""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from controllers.occupancy.holders import State
from controllers.occupancy.pods import PodIndex
from controllers.occupancy.scanner import Scanner, ScanRules
from controllers.occupancy.sources.generic import GenericSource
from tests.bench.figures import Reading, figure
from tests.native.worker import SOURCE, build
from tests.unit.occupancy.ground import ACME, FULL, Ground

if TYPE_CHECKING:
    from collections.abc import Iterator

PARENTS: Final = 8
PROCESSES: Final = 2_000
FILES: Final = 50
SCANS: Final = 7
# Seconds between two looks at the loop: short beside the stall of 50 ms that would matter, and cheap.
TICK_S: Final = 0.01
# Seconds that a scan may take here: what is measured is its cost, on however busy a machine.
PATIENCE_S: Final = 120.0

# Each parent forks its share; what is open is what servers have open: devices, regular files, pipes.
CROWD = """
import os, signal, sys
share, files, card = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
kinds = ("/dev/null", sys.executable, "/etc/hostname")
held = [os.open(kinds[n % 3], os.O_RDONLY) for n in range(files - 7)] + list(os.pipe()) + list(os.pipe())
for _ in range(share - 1):
    if os.fork() == 0:
        signal.pause()
if card:
    os.open(card, os.O_RDONLY)
print(os.getpid(), flush=True)
signal.pause()
"""


@figure("occupancy_scan_cpu_ms", unit="ms")
@figure("occupancy_scan_stall_ms", unit="ms")
@figure("occupancy_bare_cpu_ms", unit="ms")
async def occupancy_scan() -> dict[str, Reading]:
    """Scan again and again, with somebody waiting on the loop."""
    cpu_ms, stalls_ms, bare_ms = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        ground = Ground(Path(folder))
        sources = [GenericSource(ground.host, ACME, deadline_s=PATIENCE_S)]
        scanner = Scanner(ground.host, sources, ScanRules(walk_deadline_s=PATIENCE_S))
        program = build(Path(folder), SOURCE.with_name("bare_scan.c"))
        with _crowd(ground.node("acme0", FULL)):
            for _ in range(SCANS):
                cpu, stall = await _scan(scanner)
                cpu_ms.append(cpu)
                stalls_ms.append(stall)
                bare_ms.append(await asyncio.to_thread(_bare, program))
    return {
        "occupancy_scan_cpu_ms": Reading(statistics.median(cpu_ms), len(cpu_ms)),
        "occupancy_scan_stall_ms": Reading(statistics.median(stalls_ms), len(stalls_ms)),
        "occupancy_bare_cpu_ms": Reading(statistics.median(bare_ms), len(bare_ms)),
    }


async def _scan(scanner: Scanner) -> tuple[float, float]:
    """CPU time of one scan and its longest stall, in ms."""
    worst = 0.0

    async def tick() -> None:
        nonlocal worst
        now = asyncio.get_running_loop().time
        while True:
            due = now() + TICK_S
            await asyncio.sleep(TICK_S)
            worst = max(worst, now() - due)

    ticking = asyncio.create_task(tick())
    began = time.process_time()
    found = await scanner.scan(PodIndex())
    cpu = time.process_time() - began
    ticking.cancel()
    (verdict,) = found.verdicts
    if verdict.state is not State.HOST:
        raise RuntimeError(f"the scan saw nothing: {verdict.state} {verdict.reason}")
    return cpu * 1000, worst * 1000


def _bare(program: Path) -> float:
    """CPU time of the bare system calls, in ms."""
    ran = subprocess.run([program, *map(str, FULL)], capture_output=True, text=True, check=True)
    cpu, found = ran.stdout.split()
    if found == "0":
        raise RuntimeError("the bare scan saw nothing")
    return float(cpu)


@contextmanager
def _crowd(card: Path) -> Iterator[None]:
    """The processes; one of them has the card open."""
    command = [sys.executable, "-S", "-c", CROWD, str(PROCESSES // PARENTS), str(FILES)]
    parents = [
        subprocess.Popen([*command, opened], stdout=subprocess.PIPE, text=True, start_new_session=True)
        for opened in (str(card), *[""] * (PARENTS - 1))
    ]
    try:
        for parent in parents:
            assert parent.stdout is not None
            parent.stdout.readline()
        yield
    finally:
        for parent in parents:
            os.killpg(parent.pid, signal.SIGKILL)
            parent.wait()
