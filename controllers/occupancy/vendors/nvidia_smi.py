"""nvidia-smi: holders and cards in its CSV output, for when NVML does not answer. Pure.

Formats: `--query-gpu`, `--query-compute-apps` and `-L` (NVIDIA System Management Interface), recorded on an H200. It
writes errors to stdout between good rows and tells only by the exit code: rows are evidence, missing rows are not.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from controllers.occupancy.cards import Card, pci_address
from controllers.occupancy.evidence import Findings, Gap, Sighting, Why
from controllers.occupancy.processes import base_name, parse_pid
from controllers.occupancy.vendors.nvidia import UUID, Gpu

SMI = "nvidia-smi"
GPU_FIELDS = "index,uuid,name,pci.bus_id,mig.mode.current"
APP_FIELDS = "gpu_uuid,pid,process_name,used_memory"

_MIG_OF_PARENT = re.compile(r"^MIG-(GPU-[^/]+)/\d+/\d+$")
_LISTED_CARD = re.compile(r"^GPU \d+:.*\(UUID: (GPU-[^)\s]+)\)")
_LISTED_MIG = re.compile(r"^\s+MIG .*\(UUID: (MIG-[^)\s]+)\)")
_APP_COLUMNS = 4
_NAME_COLUMN = 2


@dataclass(frozen=True, slots=True)
class Apps:
    """Rows of `--query-compute-apps`: (id as printed, pid, command), and lines that are no rows."""

    rows: tuple[tuple[str, int, str], ...]
    other_lines: int = 0


@dataclass(frozen=True, slots=True)
class SmiAnswer:
    """All that nvidia-smi said in one scan. `code` is the first exit code that is not 0."""

    gpus: tuple[Gpu, ...]
    apps: Apps
    code: int = 0
    parents: Mapping[str, str] = field(default_factory=dict)
    """MIG uuid to the card's uuid, from `-L`."""


def read_gpus(data: bytes) -> tuple[Gpu, ...]:
    """Rows of `--query-gpu` with GPU_FIELDS, with or without header; what is no row is skipped."""
    return tuple(
        gpu for line in _lines(data) if (gpu := _smi_gpu([part.strip() for part in line.split(",")]))
    )


def _smi_gpu(fields: list[str]) -> Gpu | None:
    if len(fields) <= _NAME_COLUMN or not UUID.match(fields[1]):
        return None
    bdf = next((address for text in fields[2:] if (address := pci_address(text))), "")
    return Gpu(uuid=fields[1], bdf=bdf, name=fields[_NAME_COLUMN], mig="Enabled" in fields)


def read_apps(data: bytes) -> Apps:
    """Rows of `--query-compute-apps`. A name may hold commas and a memory cell any words: the first two and the last
    column are fixed. A header is neither row nor error.
    """
    rows, other = [], 0
    for line in _lines(data):
        fields = [part.strip() for part in line.split(",")]
        pid = parse_pid(fields[1]) if len(fields) >= _APP_COLUMNS else None
        if pid is not None and fields[0].startswith(("GPU-", "MIG-")):
            rows.append((fields[0], pid, base_name(",".join(fields[2:-1]))))
        elif not fields[0].startswith("gpu_uuid"):
            other += 1
    return Apps(tuple(rows), other)


def read_list(data: bytes) -> dict[str, str]:
    """MIG uuid to the uuid of its card, from `nvidia-smi -L`."""
    parents, card = {}, ""
    for line in _lines(data):
        if found := _LISTED_CARD.match(line):
            card = found[1]
        elif card and (found := _LISTED_MIG.match(line)):
            parents[found[1]] = card
    return parents


def _lines(data: bytes) -> Iterator[str]:
    return (line for line in data.decode(errors="replace").split("\n") if line.strip())


def from_smi(answer: SmiAnswer, cards: Iterable[Card]) -> Findings:
    """Holders in the rows of nvidia-smi, and what its exit code, unlisted cards and unknown MIG ids leave open."""
    ids = {card.id for card in cards}
    sightings: list[Sighting] = []
    lost: list[str] = []
    for printed, pid, command in answer.apps.rows:
        card = _card_id(printed, answer.parents)
        if card in ids:
            sightings.append(Sighting(card, pid, SMI, command=command))
        else:
            lost.append(printed)
    return Findings(tuple(sightings), tuple(_smi_gaps(answer, ids, lost)))


def _card_id(printed: str, parents: Mapping[str, str]) -> str:
    """A row bears a card's uuid, an old MIG id that names its card, or a new one that only `-L` can place."""
    found = _MIG_OF_PARENT.match(printed)
    return found[1] if found else parents.get(printed, printed)


def _smi_gaps(answer: SmiAnswer, ids: set[str], lost: list[str]) -> Iterator[Gap]:
    if answer.code:
        yield Gap(SMI, Why.FAILED, f"{SMI} failed ({answer.code})")
    elif answer.apps.other_lines:
        yield Gap(SMI, Why.GARBLED, f"{SMI} printed lines that are no rows")
    if unlisted := ids - {gpu.uuid for gpu in answer.gpus}:
        yield Gap(SMI, Why.MISSING, f"{SMI} does not list the card", frozenset(unlisted))
    if any(printed.startswith("MIG-") for printed in lost):
        mig = frozenset(gpu.uuid for gpu in answer.gpus if gpu.mig)
        yield Gap(SMI, Why.UNATTRIBUTED, f"{SMI} lists a MIG instance of an unknown card", mig & ids)
    if any(not printed.startswith("MIG-") for printed in lost):
        yield Gap(SMI, Why.UNATTRIBUTED, f"{SMI} lists a process of an unknown card")
