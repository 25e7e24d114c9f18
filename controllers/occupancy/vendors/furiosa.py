"""Furiosa RNGD and Warboy: what furiosa-smi and sysfs say.

Formats: furiosa-smi (Furiosa SDK documents, Furiosa SMI CLI), whose JSON fields are not fully documented and differ
between RNGD (`dev_name`, `cmdline`) and Warboy (`npu` or `device`, `cmd` or `command`); sysfs class `rngd_mgmt`
(furiosa-smi-go). A record that cannot be read is a gap, never a reason to drop the others.

Zero is no evidence here: on a node shared by pods, `ps` was seen empty and all claims zero while two pods held cards.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from controllers.occupancy.cards import Card, pci_address
from controllers.occupancy.evidence import Findings, Gap, Sighting, Why
from controllers.occupancy.processes import base_name, parse_pid

VENDOR = "furiosa"
PS = "furiosa-smi ps"
STATUS = "furiosa-smi status"
DRAIN = "furiosa-smi drain list"

# One record may name several cards: "npu4:[0, 7], npu5:[0, 7]"; also "npu2:0", "npu0" and "npu0pe0-3".
_CARD = re.compile(r"npu(\d{1,4})")
_CORE = re.compile(r"Core\s+\d+:\s*(-|\d)")
_BDF = re.compile(r"[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-1][0-9a-fA-F]\.[0-7]")
_DEVICE_KEYS = ("dev_name", "device", "npu")
_COMMAND_KEYS = ("cmdline", "cmd", "command")


def read_ps(data: bytes, cards: Iterable[Card]) -> Findings:
    """Holders in the JSON that `furiosa-smi ps` prints: a list of records, `[]` when none is visible."""
    by_name = {card.kernel_name: card for card in cards}
    try:
        records = json.loads(data)
    except (ValueError, RecursionError):
        records = None
    if not isinstance(records, list):
        return Findings(gaps=(Gap(PS, Why.GARBLED, f"{PS} printed no JSON list"),))
    return Findings.joined(_record(record, by_name) for record in records)


def _record(record: Any, by_name: Mapping[str, Card]) -> Findings:
    if not isinstance(record, dict):
        return _unreadable(None)
    pid = parse_pid(record.get("pid"))
    names = dict.fromkeys(f"npu{number}" for number in _CARD.findall(_text(record, _DEVICE_KEYS)))
    known = [by_name[name] for name in names if name in by_name]
    if not names or len(known) < len(names):
        return _unreadable(None)
    if pid is None:
        return _unreadable(frozenset(card.id for card in known))
    words = _text(record, _COMMAND_KEYS).split()
    command = base_name(words[0]) if words else ""
    return Findings(tuple(Sighting(card.id, pid, PS, command=command) for card in known))


def _text(record: Mapping[str, Any], keys: Iterable[str]) -> str:
    return next((value for key in keys if isinstance(value := record.get(key), str)), "")


def _unreadable(cards: frozenset[str] | None) -> Findings:
    return Findings(gaps=(Gap(PS, Why.GARBLED, f"{PS} printed a record that cannot be read", cards),))


def read_info(data: bytes) -> tuple[Card, ...]:
    """Cards in the JSON of `furiosa-smi info`, known by their PCI address; used where sysfs has no such class."""
    try:
        records = _list(json.loads(data))
    except (ValueError, RecursionError):
        return ()
    return tuple(card for record in records if (card := _listed(record)))


def _listed(record: Mapping[str, Any]) -> Card | None:
    name, bdf = _CARD.search(_text(record, _DEVICE_KEYS)), pci_address(_text(record, ("pci_bdf",)))
    if not name or not bdf:
        return None
    uuid, serial = _text(record, ("device_uuid",)), _text(record, ("device_sn",))
    return Card(VENDOR, bdf, f"npu{name[1]}", _text(record, ("arch",)), bdf, uuid, serial)


def read_status(data: bytes) -> frozenset[str]:
    """Kernel names of cards that say they are claimed. In the table form `-` is a core that nobody uses, and 0.00%
    one that is claimed and idle; in JSON `pe_occupancy` says it.
    """
    text = data.decode(errors="replace")
    try:
        records = json.loads(text)
    except (ValueError, RecursionError):
        return frozenset(_claimed_in_table(text))
    if not isinstance(records, list):
        return frozenset()
    return frozenset(name for record in records if isinstance(record, dict) for name in _claimed(record))


def _claimed(record: Mapping[str, Any]) -> Iterator[str]:
    found = _CARD.search(_text(record, _DEVICE_KEYS))
    cores = [core for key in ("pe_utilizations", "cores") for core in _list(record.get(key))]
    if found and any(core.get("pe_occupancy") is True or core.get("status") == "occupied" for core in cores):
        yield f"npu{found[1]}"


def _list(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _claimed_in_table(text: str) -> Iterator[str]:
    """The card's name stands in the middle line of its block of the table, or in front of its cores."""
    for block in re.split(r"^\s*\+[-+]+\+\s*$|(?=npu\d{1,4}:)", text, flags=re.MULTILINE):
        name = _CARD.search(block)
        if name and any(core != "-" for core in _CORE.findall(block)):
            yield f"npu{name[1]}"


def read_drained(data: bytes) -> tuple[str, ...]:
    """PCI addresses of cards that `furiosa-smi drain` took away; they are missing from every other list."""
    found = _BDF.findall(data.decode(errors="replace"))
    return tuple(dict.fromkeys(pci_address(text) for text in found))


def read_pe_occupancy(text: str) -> bool:
    """The sysfs file `pe_occupancy`: one line of 0 or 1 for each core; True when one is claimed."""
    return any(line.strip() not in {"", "0"} for line in text.split("\n"))


def claimed(card: Card, source: str) -> Gap:
    """A claim without a visible holder keeps a card from being called free; a holder explains it."""
    text = f"{card.kernel_name} is claimed ({source}) but no holder is visible"
    return Gap(source, Why.CLAIMED, text, frozenset({card.id}))
