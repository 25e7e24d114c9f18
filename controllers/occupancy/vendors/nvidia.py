"""NVIDIA: what NVML and the driver's texts in /proc say. Pure; nvidia-smi has a module of its own.

Formats: the JSON of nvml_probe.py, and /proc/driver/nvidia/gpus/BDF/information (NVIDIA driver README, the /proc
interface), recorded on an H200.

NVML, else nvidia-smi, decides. An open /dev/nvidiaN alone says nothing: CUDA opens every card that it can see.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from controllers.occupancy.cards import Card, DeviceNumber, pci_address
from controllers.occupancy.evidence import Findings, Gap, Sighting, Why
from controllers.occupancy.processes import parse_pid

VENDOR = "nvidia"
NVML = "NVML"

# Linux, Documentation/admin-guide/devices.txt: NVIDIA's character devices.
_MAJOR = 195
_HEX = "[0-9a-f]"
UUID = re.compile(rf"^GPU-{_HEX}{{8}}(?:-{_HEX}{{4}}){{3}}-{_HEX}{{12}}$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Gpu:
    """A card in the words of a tool. `holders` is None when the tool could not list them."""

    uuid: str
    bdf: str = ""
    name: str = ""
    mig: bool = False
    minor: int | None = None
    holders: tuple[tuple[int, str], ...] | None = None


@dataclass(frozen=True, slots=True)
class NvmlAnswer:
    """The cards that NVML lists, and how many more it could not tell anything about (lost from the bus)."""

    gpus: tuple[Gpu, ...]
    unreadable: int = 0


def read_information(text: str) -> Card | None:
    """A card from the driver's text in /proc; None when it has no usable uuid (a card that is not initialised)."""
    values = {
        key.strip(): value.strip() for key, _, value in (line.partition(":") for line in text.split("\n"))
    }
    uuid, bdf = values.get("GPU UUID", ""), pci_address(values.get("Bus Location", ""))
    minor = values.get("Device Minor", "")
    if not UUID.match(uuid) or not bdf:
        return None
    known = minor.isascii() and minor.isdecimal()
    number = int(minor[:6]) if known else -1
    nodes = frozenset({DeviceNumber(_MAJOR, number)}) if known else frozenset()
    name = f"nvidia{number}" if known else bdf
    return Card(VENDOR, uuid, name, values.get("Model", ""), bdf, uuid, compute=nodes)


def card_of(gpu: Gpu) -> Card:
    """The card that a tool listed."""
    nodes = frozenset({DeviceNumber(_MAJOR, gpu.minor)}) if gpu.minor is not None else frozenset()
    name = gpu.bdf if gpu.minor is None else f"nvidia{gpu.minor}"
    return Card(VENDOR, gpu.uuid, name or gpu.uuid, gpu.name, gpu.bdf, gpu.uuid, compute=nodes)


def read_nvml(data: bytes) -> NvmlAnswer | None:
    """The JSON of the NVML probe: a list of cards; None when it is not one."""
    try:
        listed = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(listed, list):
        return None
    gpus = [_nvml_gpu(item) for item in listed]
    return NvmlAnswer(tuple(gpu for gpu in gpus if gpu), gpus.count(None))


def _nvml_gpu(item: Any) -> Gpu | None:
    if not isinstance(item, dict) or not UUID.match(uuid := str(item.get("uuid"))):
        return None
    pids = item.get("pids")
    holders = (
        tuple((pid, "") for value in pids if (pid := parse_pid(value))) if isinstance(pids, list) else None
    )
    if holders is not None and len(holders) != len(pids or ()):
        holders = None
    minor = item.get("minor")
    return Gpu(
        uuid=uuid,
        bdf=pci_address(str(item.get("bdf"))),
        name=str(item.get("name") or ""),
        mig=item.get("mig") is True,
        minor=minor if type(minor) is int and minor >= 0 else None,
        holders=holders,
    )


def from_nvml(answer: NvmlAnswer, cards: Iterable[Card]) -> Findings:
    """Holders that NVML lists; a card that it does not list, or whose list failed, is a gap."""
    by_uuid = {gpu.uuid: gpu for gpu in answer.gpus}
    sightings: list[Sighting] = []
    gaps: list[Gap] = []
    for card in cards:
        holders = by_uuid[card.id].holders if card.id in by_uuid else None
        if holders is None:
            text = f"{NVML} does not list the processes of {card.kernel_name}"
            gaps.append(Gap(NVML, Why.FAILED, text, frozenset({card.id})))
        sightings += [Sighting(card.id, pid, NVML, command=command) for pid, command in holders or ()]
    if answer.unreadable:
        text = f"{NVML} cannot read {answer.unreadable} cards"
        gaps.append(Gap(NVML, Why.FAILED, text, frozenset()))
    return Findings(tuple(sightings), tuple(gaps))
