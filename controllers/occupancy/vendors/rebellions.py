"""Rebellions ATOM and REBEL: what rbln-stat (rbln-smi) and sysfs say.

Formats: `rbln-stat --json` (recorded on a loaded node, driver 3.0.0); sysfs below /sys/class/rebellions, whose
`ctx_info` lists the contexts of one card.

`npu` numbers restart at 0 in every RSD group, and groups are made anew with each allocation: a context is given to a
card only when a single card bears its number. A context that is "idle" still holds its card.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from controllers.occupancy.cards import Card, pci_address
from controllers.occupancy.evidence import Findings, Gap, Sighting, Why
from controllers.occupancy.processes import base_name, parse_pid

VENDOR = "rebellions"
TOOL = "rbln-stat"
CTX_INFO = "ctx_info"

_NAME = re.compile(r"^rbln\d{1,4}(?:-\d{1,4})?$")
_INTEGER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Device:
    """One entry of `devices`. `bdf` is the card's identity; `npu` is a number within a group."""

    name: str
    bdf: str
    npu: int | None
    model: str = ""
    uuid: str = ""
    serial: str = ""


@dataclass(frozen=True, slots=True)
class Document:
    """What `rbln-stat --json` printed. `unreadable` counts devices and contexts that could not be read."""

    devices: tuple[Device, ...]
    contexts: tuple[Mapping[str, Any], ...]
    unreadable: int = 0


def read_document(data: bytes) -> Document | None:
    """The document; None when it is not one."""
    try:
        top = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(top, dict) or not all(
        isinstance(top.get(key), list) for key in ("devices", "contexts")
    ):
        return None
    devices = [_device(item) for item in top["devices"]]
    contexts = [item for item in top["contexts"] if isinstance(item, dict)]
    bad = devices.count(None) + len(top["contexts"]) - len(contexts)
    return Document(tuple(device for device in devices if device), tuple(contexts), bad)


def _device(item: Any) -> Device | None:
    if not isinstance(item, dict) or not _NAME.match(name := _text(item, "device")):
        return None
    pci = item.get("pci")
    bdf = pci_address(_text(pci, "bus_id")) if isinstance(pci, dict) else ""
    npu = item.get("npu")
    number = npu if type(npu) is int else None
    return (
        Device(name, bdf, number, _text(item, "name"), _text(item, "uuid"), _text(item, "sid"))
        if bdf
        else None
    )


def _text(item: Mapping[str, Any], key: str) -> str:
    value = item.get(key)
    return value if isinstance(value, str) else ""


def read_contexts(document: Document, cards: Iterable[Card]) -> Findings:
    """Whom the tool sees on which card, and where it cannot tell which."""
    by_bdf = {card.bdf: card.id for card in cards if card.bdf}
    by_npu: dict[int | None, set[str]] = defaultdict(set)
    for device in document.devices:
        by_npu[device.npu].add(by_bdf.get(device.bdf, device.bdf))
    return Findings.joined((_bad_entries(document), *(_context(item, by_npu) for item in document.contexts)))


def _bad_entries(document: Document) -> Findings:
    if not document.unreadable:
        return Findings()
    return Findings(gaps=(_garbled(f"{TOOL} printed {document.unreadable} entries that cannot be read"),))


def _context(item: Mapping[str, Any], by_npu: Mapping[int | None, set[str]]) -> Findings:
    pid, npu = parse_pid(item.get("pid")), item.get("npu")
    cards = frozenset(by_npu.get(npu if type(npu) is int else None, ()))
    if not cards or pid is None:
        return Findings(gaps=(_garbled(f"{TOOL} printed a context that cannot be read", cards or None),))
    if len(cards) > 1:
        text = f"{TOOL} sees process {pid} on npu {npu}, and {len(cards)} cards bear that number"
        return Findings(gaps=(Gap(TOOL, Why.UNATTRIBUTED, text, cards, pid),))
    command = base_name(_text(item, "process"))
    return Findings(tuple(Sighting(card, pid, TOOL, command=command) for card in cards))


def _garbled(text: str, cards: frozenset[str] | None = None) -> Gap:
    return Gap(TOOL, Why.GARBLED, text, cards)


def read_ctx_info(text: str, card: Card) -> Findings:
    """Holders in the sysfs file `ctx_info` of one card: the first integer of a line is the pid.

    There is no recording of this file on a busy card: a line without a pid makes the card unknown.
    """
    return Findings.joined(_ctx_line(line, card) for line in text.split("\n") if line.strip())


def _ctx_line(line: str, card: Card) -> Findings:
    found = _INTEGER.search(line)
    pid = parse_pid(found[0]) if found else None
    if pid is None:
        text = f"a line of {CTX_INFO} of {card.kernel_name} has no process id"
        return Findings(gaps=(Gap(CTX_INFO, Why.GARBLED, text, frozenset({card.id})),))
    return Findings((Sighting(card.id, pid, CTX_INFO),))


def read_groups(text: str) -> dict[int, frozenset[str]]:
    """The sysfs file `rsd_group`: kernel names of the cards of each RSD group, which /dev/rsdN stands for.

    Lines are `group,...,rblnN`; the header and whatever else is not of that form is skipped.
    """
    groups: dict[int, set[str]] = defaultdict(set)
    for number, name in _group_lines(text):
        groups[number].add(name)
    return {number: frozenset(names) for number, names in groups.items()}


def _group_lines(text: str) -> Iterator[tuple[int, str]]:
    for line in text.split("\n"):
        parts = [part.strip() for part in line.split(",")]
        if parts[0].isascii() and parts[0].isdecimal() and _NAME.match(parts[-1]):
            yield int(parts[0][:9]), parts[-1]
