"""Rebellions cards of this node: sysfs for inventory, contexts and groups; rbln-stat for names and contexts."""

import os
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from controllers.occupancy.cards import Card, pci_address
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
        try:
            document = await self._ask()
        except ToolError as error:
            findings = gap_of(error, rebellions.TOOL, optional=self._optional) if seen.cards else Findings()
            return Look(
                seen.cards, Findings.joined((seen.findings, findings)), self._shared(seen, seen.cards)
            )
        cards = _completed(seen.cards, document.devices)
        findings = Findings.joined((seen.findings, rebellions.read_contexts(document, cards)))
        return Look(cards, findings, self._shared(seen, cards))

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
        return _Inventory(tuple(cards), Findings.joined(findings), groups)

    async def _ask(self) -> rebellions.Document:
        """The first of the two commands that is there. Raises ToolError."""
        command = next((name for name in _COMMANDS if self._is_there(name)), _COMMANDS[0])
        answer = await self._tools.run(command, "--json")
        if answer.code:
            raise ToolError(Why.FAILED, f"{command} failed ({answer.code})")
        document = rebellions.read_document(answer.data)
        if document is None:
            raise ToolError(Why.GARBLED, f"{command} printed no JSON document")
        return document

    def _is_there(self, command: str) -> bool:
        try:
            self._tools.find(command)
        except ToolError as error:
            return error.why is not Why.ABSENT
        return True

    def _shared(self, seen: _Inventory, cards: Iterable[Card]) -> tuple[SharedNode, ...]:
        """Group nodes. A group whose members are not known stands for every card."""
        ids = {card.kernel_name: card.id for card in cards}
        shared = []
        for name in names(self._host.dev):
            group = _GROUP.match(name)
            number = number_of(self._host.dev / name) if group else None
            if group and number:
                members = seen.groups.get(int(group[1]), frozenset(ids))
                shared.append(SharedNode(number, name, frozenset(ids[m] for m in members if m in ids)))
        return tuple(shared)


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
