"""Rebellions cards of this node: sysfs for inventory, contexts and groups; rbln-stat for names and contexts."""

import os
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from controllers.occupancy.cards import Card, DeviceNumber, pci_address
from controllers.occupancy.evidence import Findings, Gap, Why
from controllers.occupancy.procfs import read_text
from controllers.occupancy.sources.host import Host, names, number_of
from controllers.occupancy.sources.look import Look, SharedNode, gap_of
from controllers.occupancy.tools import ToolError, Tools
from controllers.occupancy.vendors import rebellions
from controllers.occupancy.walk import Walker

_CARD = re.compile(r"^rbln\d{1,4}(?:-\d{1,4})?$")
_GROUP = re.compile(r"^rsd(\d{1,4})$")
_COMMANDS = ("rbln-stat", "rbln-smi")


@dataclass(frozen=True, slots=True)
class _Inventory:
    cards: tuple[Card, ...]
    findings: Findings
    groups: dict[int, frozenset[str]]
    group_nodes: dict[int, DeviceNumber]


class RebellionsSource:
    """ATOM and REBEL cards. They are known by PCI address: sysfs has it also when the tool is slow."""

    vendor = rebellions.VENDOR
    by_open_files = True

    def __init__(
        self, host: Host, tools: Tools, *, deadline_s: float, optional_tools: Collection[str] = ()
    ) -> None:
        self._host = host
        self._tools = tools
        self._deadline_s = deadline_s
        self._optional = optional_tools
        self._walker = Walker("occupancy rebellions", most_stuck=1)

    async def look(self) -> Look:
        """Cards and what sysfs and rbln-stat say. Raises TimeoutError when sysfs does not answer."""
        seen = await self._walker.call(self._inventory, deadline_s=self._deadline_s)
        cards = seen.cards
        try:
            document = await self._ask()
        except ToolError as error:
            told = gap_of(error, rebellions.TOOL, optional=self._optional) if cards else Findings()
        else:
            cards = _completed(cards, document.devices)
            told = rebellions.read_contexts(document, cards)
        return Look(cards, Findings.joined((seen.findings, told)), _shared(seen, cards))

    def _inventory(self) -> _Inventory:
        root = self._host.sys / "class/rebellions"
        cards, findings = [], []
        for name in names(root):
            bdf = _bdf(root / name / "device") if _CARD.match(name) else ""
            if bdf:
                number = number_of(self._host.dev / name)
                compute = frozenset({number} if number else ())
                cards.append(Card(rebellions.VENDOR, bdf, name, bdf=bdf, compute=compute))
                findings.append(_contexts(root / name / rebellions.CTX_INFO, cards[-1]))
        texts = (read_text(root / place) for place in ("rsd/rsd_group", "rsd_group"))
        groups = rebellions.read_groups(next((text for text in texts if text), ""))
        return _Inventory(tuple(cards), Findings.joined(findings), groups, self._group_nodes())

    def _group_nodes(self) -> dict[int, DeviceNumber]:
        dev = self._host.dev
        found = ((match, number_of(dev / name)) for name in names(dev) if (match := _GROUP.match(name)))
        return {int(match[1]): number for match, number in found if number}

    async def _ask(self) -> rebellions.Document:
        """What either of the two commands prints. Raises ToolError."""
        answer = await self._tools.run_one(_COMMANDS, "--json")
        if answer.code:
            raise ToolError(Why.FAILED, f"{rebellions.TOOL} failed ({answer.code})")
        document = rebellions.read_document(answer.data)
        if document is None:
            raise ToolError(Why.GARBLED, f"{rebellions.TOOL} printed no JSON document")
        return document


def _shared(seen: _Inventory, cards: Iterable[Card]) -> tuple[SharedNode, ...]:
    """Group nodes. A group whose members are not known stands for every card."""
    ids = {card.kernel_name: card.id for card in cards}
    return tuple(
        SharedNode(
            number,
            f"rsd{group}",
            frozenset(ids[name] for name in seen.groups.get(group, frozenset(ids)) if name in ids),
        )
        for group, number in seen.group_nodes.items()
    )


def _bdf(device: Path) -> str:
    """The PCI address is the last one on the device's path: bridges come before it."""
    parts = os.path.realpath(device).split("/")
    return next((address for part in reversed(parts) if (address := pci_address(part))), "")


def _contexts(path: Path, card: Card) -> Findings:
    """Drivers without the file leave it to the other sources; one that cannot be read is a gap."""
    text = read_text(path)
    if text is not None:
        return rebellions.read_ctx_info(text, card)
    if not path.exists():
        return Findings()
    reason = f"{rebellions.CTX_INFO} of {card.kernel_name} cannot be read"
    return Findings(gaps=(Gap(rebellions.CTX_INFO, Why.DENIED, reason, frozenset({card.id})),))


def _completed(cards: tuple[Card, ...], devices: Iterable[rebellions.Device]) -> tuple[Card, ...]:
    """The cards of sysfs with the tool's names, and those that only the tool lists."""
    told = {device.bdf: device for device in devices}
    known = tuple(
        replace(card, model=told[card.id].model, uuid=told[card.id].uuid, serial=told[card.id].serial)
        if card.id in told
        else card
        for card in cards
    )
    more = told.keys() - {card.id for card in cards}
    return known + tuple(
        Card(rebellions.VENDOR, d.bdf, d.name, d.model, d.bdf, d.uuid, d.serial)
        for d in devices
        if d.bdf in more
    )
