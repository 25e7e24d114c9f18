"""NVIDIA cards of this node: the driver's texts for the inventory; NVML, else nvidia-smi, for holders."""

import asyncio
import sys
from pathlib import Path

from controllers.occupancy.cards import Card
from controllers.occupancy.evidence import Findings, Gap, Why
from controllers.occupancy.procfs import read_text
from controllers.occupancy.sources.host import Host, names
from controllers.occupancy.sources.look import Look
from controllers.occupancy.tools import ToolError, Tools
from controllers.occupancy.vendors import nvidia, nvidia_smi
from controllers.occupancy.vendors.nvidia_smi import SMI
from controllers.occupancy.walk import Walker

# A program of its own, never imported: whatever is wrong with NVML stays in there.
_PROBE = Path(nvidia.__file__).with_name("nvml_probe.py")
_CSV = "--format=csv,noheader,nounits"


class NvidiaSource:
    """Open files decide nothing here: CUDA opens every card that it can see."""

    vendor = nvidia.VENDOR
    by_open_files = False

    def __init__(self, host: Host, tools: Tools, *, deadline_s: float) -> None:
        self._host = host
        self._tools = tools
        self._deadline_s = deadline_s
        self._walker = Walker("occupancy nvidia", most_stuck=1)

    async def look(self) -> Look:
        """Cards and their holders. Raises TimeoutError when the driver's texts cannot be read in time."""
        cards, nameless = await self._walker.call(self._inventory, deadline_s=self._deadline_s)
        if not cards and not nameless:
            return Look()
        try:
            answer = await self._nvml()
        except ToolError as error:
            return await self._by_smi(cards, error)
        cards = _with(cards, answer.gpus)
        findings = nvidia.from_nvml(answer, cards)
        silent = frozenset(card for gap in findings.gaps for card in gap.cards or ())
        if not silent:
            return Look(cards, findings)
        rest = tuple(card for card in cards if card.id in silent)
        return Look(
            cards, Findings.joined((Findings(findings.sightings), (await self._by_smi(rest)).findings))
        )

    def _inventory(self) -> tuple[tuple[Card, ...], bool]:
        """The cards, and whether there are more whose uuid the driver does not know yet."""
        folder = self._host.proc / "driver/nvidia/gpus"
        entries = names(folder)
        read = [nvidia.read_information(read_text(folder / name / "information") or "") for name in entries]
        nodes = any(name.startswith("nvidia") and name[6:].isdecimal() for name in names(self._host.dev))
        return tuple(card for card in read if card), None in read or (nodes and not entries)

    async def _nvml(self) -> nvidia.NvmlAnswer:
        """Raises ToolError."""
        answer = await self._tools.run_file(Path(sys.executable), "-I", str(_PROBE), name=nvidia.NVML)
        read = None if answer.code else nvidia.read_nvml(answer.data)
        if read is None or (not read.gpus and not read.unreadable):
            raise ToolError(Why.FAILED, f"{nvidia.NVML}: {_first_line(answer.data) or 'lists no card'}")
        return read

    async def _by_smi(self, cards: tuple[Card, ...], before: ToolError | None = None) -> Look:
        """Everything that nvidia-smi knows; `before` is why NVML was of no use."""
        try:
            answer = await self._smi()
        except ToolError as error:
            text = str(error) if before is None else f"{error}; {before}"
            return Look(cards, Findings(gaps=(Gap(SMI, error.why, text),)))
        known = _with(cards, answer.gpus) if before is not None else cards
        return Look(known, nvidia_smi.from_smi(answer, known))

    async def _smi(self) -> nvidia_smi.SmiAnswer:
        """Raises ToolError. `-L` is asked only when a row bears an id that it alone can place."""
        gpus, apps = await asyncio.gather(
            self._tools.run(SMI, f"--query-gpu={nvidia_smi.GPU_FIELDS}", _CSV),
            self._tools.run(SMI, f"--query-compute-apps={nvidia_smi.APP_FIELDS}", _CSV),
        )
        rows = nvidia_smi.read_apps(apps.data)
        parents = {}
        if any(row[0].startswith("MIG-") for row in rows.rows):
            parents = nvidia_smi.read_list((await self._tools.run(SMI, "-L")).data)
        return nvidia_smi.SmiAnswer(nvidia_smi.read_gpus(gpus.data), rows, gpus.code or apps.code, parents)


def _with(cards: tuple[Card, ...], gpus: tuple[nvidia.Gpu, ...]) -> tuple[Card, ...]:
    """The driver's cards, and those that only the tool lists."""
    known = {card.id for card in cards}
    return cards + tuple(nvidia.card_of(gpu) for gpu in gpus if gpu.uuid not in known)


def _first_line(data: bytes) -> str:
    lines = data.decode(errors="replace").split("\n")
    return "".join(c for c in lines[0] if c.isprintable())[:120] if lines else ""
