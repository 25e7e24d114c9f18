"""What a node's agent costs while nothing happens: `tenure node` beside a real kubelet, with the chart's settings.

The node has 20 containers with regions, whose processes live and charge nothing more, and four idle cards: sysfs and a
stand-in of the vendor's tool that prints a recording. Kubelet's probes and Prometheus come as often as the chart lets
them. CPU time is the agent's own and that of the tools that it runs; memory is that of its process.
"""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.request
import uuid
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from controllers.occupancy.cards import DeviceNumber
from controllers.regions.ground import Ground as Regions
from controllers.regions.names import ContainerId, Owner
from tests.bench.figures import Reading, figure
from tests.lab import Lab, LabError
from tests.lab.layout import REPOSITORY
from tests.lab.ports import free_ports
from tests.lab.process import Health, Program
from tests.lab.product import Product
from tests.native.worker import Worker, build
from tests.unit.occupancy.ground import Ground

if TYPE_CHECKING:
    from collections.abc import Iterator

AGENT: Final = "tenure-node"
CONTAINERS: Final = 20
RECORDING: Final = Path(__file__).parents[1] / "fixtures/rebellions/rbln-stat.idle-4-cards.json"
# Seconds for the first scans, for writing what they found, and for the pool's caches to fill.
WARM_UP_S: Final = 40.0
MEASURED_S: Final = 180.0
# Of the chart: the readiness probe's period, and the ServiceMonitor's interval in such periods.
PROBE_S: Final = 5.0
PROBES_A_SCRAPE: Final = 6
# proc_pid_stat(5): utime, stime, cutime, cstime are fields 14 to 17; behind the name, which ends with a parenthesis,
# comes field 3.
_TIMES: Final = slice(11, 15)


@figure("agent_idle_core_percent", unit="%")
@figure("agent_idle_resident_mib", unit="MiB")
@figure("agent_idle_private_mib", unit="MiB")
def agent_idle() -> dict[str, Reading]:
    """Let an agent rest for three minutes."""
    with TemporaryDirectory() as state, ExitStack() as stack:
        lab = Lab(Path(state))
        lab.up(node=True)
        stack.callback(lab.down)
        if lab.node_missing:
            raise LabError(f"an agent needs a kubelet: {lab.node_missing}")
        Product(lab).install()
        root = Path(state) / "regions"
        stack.enter_context(_containers(Path(state), root))
        (port,) = free_ports(1)
        lab.components.run(_program(lab, port, root=root, host=_host(Path(state) / "host")))
        stack.callback(lab.components.stop, AGENT)
        pid = lab.components.pid(AGENT)
        _rest(port, WARM_UP_S)
        before, began = _cpu_s(pid), time.monotonic()
        _rest(port, MEASURED_S)
        share = (_cpu_s(pid) - before) / (time.monotonic() - began)
        _check_works(port)
        memory = _memory_kib(pid)
    private = memory["Private_Clean"] + memory["Private_Dirty"]
    return {
        "agent_idle_core_percent": Reading(round(share * 100, 3), 1),
        "agent_idle_resident_mib": Reading(round(memory["Rss"] / 1024, 1), 1),
        "agent_idle_private_mib": Reading(round(private / 1024, 1), 1),
    }


@contextmanager
def _containers(folder: Path, root: Path) -> Iterator[None]:
    """Processes in mount and pid namespaces of their own, each with its ledger mapped and one charge in it."""
    regions = Regions(root, kib=0)
    binary = build(folder)
    with ExitStack() as stack:
        for number in range(CONTAINERS):
            container = ContainerId(str(uuid.UUID(int=number)), "main")
            regions.make(Owner(container))
            worker = Worker.in_container(binary, root / str(container), folder / f"view-{number}")
            stack.enter_context(worker)
            for command in ("map", "charge 0 4096"):
                worker(command)
        yield


def _host(folder: Path) -> Ground:
    """Four idle cards of Rebellions."""
    ground = Ground(folder)
    for number, device in enumerate(json.loads(RECORDING.read_bytes())["devices"]):
        ground.rbln(number, device["pci"]["bus_id"], DeviceNumber(240, number), ctx_info="")
    ground.tool("rbln-stat", f"exec cat '{RECORDING}'")
    return ground


def _program(lab: Lab, port: int, *, root: Path, host: Ground) -> Program:
    """The agent; but for places and names, everything is as the chart leaves it: the default."""
    env = {
        "TENURE_KUBE__KUBECONFIG": str(lab.kubeconfig),
        "TENURE_NODE__NAME": lab.node_name,
        "TENURE_HTTP__OPS_HOST": "127.0.0.1",
        "TENURE_HTTP__OPS_PORT": str(port),
        "TENURE_HTTP__DRAIN_S": "0",
        "TENURE_REGIONS__ROOT": str(root),
        "TENURE_REGIONS__KUBELET_ROOT": str(lab.kubelet_folder),
        "TENURE_OCCUPANCY__DEV": str(host.dev),
        "TENURE_OCCUPANCY__SYS": str(host.sys),
        "TENURE_OCCUPANCY__TOOL_FOLDERS": json.dumps([str(host.bin)]),
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(REPOSITORY),
    }
    health = Health(port=port, path="/readyz", tls=False)
    return Program(AGENT, [sys.executable, "-m", "service", "node"], env, health=health)


def _rest(port: int, seconds: float) -> None:
    """Do nothing for a while, but what kubelet and Prometheus do."""
    for probe in range(int(seconds / PROBE_S)):
        time.sleep(PROBE_S)
        _get(port, "readyz")
        if probe % PROBES_A_SCRAPE == 0:
            _get(port, "metrics")


def _get(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=10) as answer:
        text: str = answer.read().decode()
        return text


def _check_works(port: int) -> None:
    """An agent that looks at nothing would be cheap for the wrong reason."""
    samples = dict(line.rsplit(" ", 1) for line in _get(port, "metrics").splitlines() if line[0] != "#")
    regions = float(samples.get('tenure_regions{kind="vmem_node",layout="v1"}', 0))
    scans = float(samples["tenure_occupancy_scan_seconds_count"])
    unknown = [key for key, value in samples.items() if "_unknown_cards{" in key and float(value)]
    if regions != CONTAINERS or scans < MEASURED_S / 20 or unknown:
        raise ValueError(f"the agent sees {regions:.0f} ledgers after {scans:.0f} scans; unknown: {unknown}")


def _cpu_s(pid: int) -> float:
    """CPU seconds of a process and of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
    return sum(map(int, fields[_TIMES])) / os.sysconf("SC_CLK_TCK")


def _memory_kib(pid: int) -> dict[str, int]:
    """Lines of /proc/PID/smaps_rollup (proc_pid_smaps)."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text("utf-8").splitlines()[1:]
    return {name: int(size.split()[0]) for name, _, size in (line.partition(":") for line in lines)}
