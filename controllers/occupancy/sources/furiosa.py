"""Furiosa cards of this node: sysfs for the inventory, furiosa-smi for holders, claims and drained cards."""

import asyncio
import re
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path

from controllers.occupancy.cards import Card, DeviceNumber, pci_address
from controllers.occupancy.evidence import Findings, Gap, Why
from controllers.occupancy.procfs import read_text
from controllers.occupancy.sources.host import Host, matching, names
from controllers.occupancy.sources.look import Look, gap_of
from controllers.occupancy.tools import Answer, ToolError, Tools
from controllers.occupancy.vendors import furiosa
from controllers.occupancy.walk import Walker

_TOOL = "furiosa-smi"
_MANAGEMENT = re.compile(r"^rngd!npu(\d{1,4})mgmt$")
_COMPUTE = r"(?:ch\d+r?|pe\d+(?:-\d+)?)"


class FuriosaSource:
    """RNGD by sysfs, Warboy by `furiosa-smi info`."""

    vendor = furiosa.VENDOR
    by_open_files = True

    def __init__(
        self, host: Host, tools: Tools, *, deadline_s: float, optional_tools: Collection[str] = ()
    ) -> None:
        self._host = host
        self._tools = tools
        self._deadline_s = deadline_s
        self._optional = optional_tools
        self._walker = Walker("occupancy furiosa", most_stuck=1)

    async def look(self) -> Look:
        """Cards and what furiosa-smi says. Raises TimeoutError when sysfs does not answer."""
        cards, claims = await self._walker.call(self._inventory, deadline_s=self._deadline_s)
        if not cards:
            cards = await self._listed()
        drained = await self._drained(cards)
        if not cards and not drained.cards:
            return Look()
        by_tool = await asyncio.gather(self._holders(cards), self._claims(cards))
        findings = Findings.joined((claims, *by_tool, drained.findings))
        return Look((*cards, *drained.cards), findings)

    def _inventory(self) -> tuple[tuple[Card, ...], Findings]:
        folder = self._host.sys / "class/rngd_mgmt"
        found = [(folder / name, match[1]) for name in names(folder) if (match := _MANAGEMENT.match(name))]
        listed = [(path, card) for path, number in found if (card := self._card(path, number))]
        claimed = [card for path, card in listed if self._is_claimed(path, card)]
        gaps = tuple(furiosa.claimed(card, "sysfs") for card in claimed)
        return tuple(card for _, card in listed), Findings(gaps=gaps)

    def _card(self, path: Path, number: str) -> Card | None:
        bdf = pci_address(read_text(path / "busname") or "")
        if not bdf:
            return None
        uuid, serial = ((read_text(path / name) or "").strip() for name in ("device_uuid", "device_sn"))
        card = Card(furiosa.VENDOR, bdf, f"npu{number}", "rngd", bdf, uuid, serial)
        return replace(card, compute=self._numbers(card.kernel_name))

    def _numbers(self, name: str) -> frozenset[DeviceNumber]:
        """Compute nodes by /dev and by sysfs: either may be hidden from a container."""
        nodes = matching(self._host.dev / "rngd", re.compile(name + _COMPUTE))
        warboy = matching(self._host.dev, re.compile(rf"{name}(?:pe\d+(?:-\d+)?)?"))
        return nodes | warboy | frozenset(self._sysfs_numbers(re.compile(f"rngd!{name}{_COMPUTE}")))

    def _sysfs_numbers(self, pattern: re.Pattern[str]) -> Iterator[DeviceNumber]:
        for path in self._class_devices(pattern):
            major, _, minor = (read_text(path / "dev") or "").strip().partition(":")
            if major.isdecimal() and minor.isdecimal():
                yield DeviceNumber(int(major), int(minor))

    def _class_devices(self, pattern: re.Pattern[str]) -> Iterator[Path]:
        root = self._host.sys / "class"
        for group in names(root):
            if group.startswith("rngd"):
                yield from (root / group / name for name in names(root / group) if pattern.fullmatch(name))

    def _is_claimed(self, path: Path, card: Card) -> bool:
        claims = (read_text(p / "alloc_status") for p in self._class_devices(_cores_of(card)))
        by_core = any((text or "0").strip() not in {"", "0"} for text in claims)
        return by_core or furiosa.read_pe_occupancy(read_text(path / "pe_occupancy") or "")

    async def _listed(self) -> tuple[Card, ...]:
        try:
            answer = await self._ask("info")
        except ToolError:
            return ()
        cards = furiosa.read_info(answer.data)
        return await self._walker.call(
            lambda: tuple(replace(card, compute=self._numbers(card.kernel_name)) for card in cards),
            deadline_s=self._deadline_s,
        )

    async def _holders(self, cards: tuple[Card, ...]) -> Findings:
        try:
            answer = await self._ask("ps")
        except ToolError as error:
            return gap_of(error, furiosa.PS, optional=self._optional)
        return furiosa.read_ps(answer.data, cards)

    async def _claims(self, cards: tuple[Card, ...]) -> Findings:
        """Claims are evidence when there are some; without an answer the other sources decide."""
        try:
            claimed = furiosa.read_status((await self._ask("status")).data)
        except ToolError:
            return Findings()
        return Findings(
            gaps=tuple(furiosa.claimed(card, furiosa.STATUS) for card in cards if card.kernel_name in claimed)
        )

    async def _drained(self, cards: tuple[Card, ...]) -> Look:
        """Drained cards are unknown: nobody can see into them, and they are not gone."""
        try:
            answer = await self._tools.run(_TOOL, "drain", "list")
        except ToolError:
            return Look()
        known = {card.bdf: card for card in cards}
        addresses = furiosa.read_drained(answer.data) if answer.code == 0 else ()
        missing = tuple(Card(furiosa.VENDOR, bdf, bdf, bdf=bdf) for bdf in addresses if bdf not in known)
        gaps = tuple(Gap(furiosa.DRAIN, Why.DRAINED, "drained", frozenset({bdf})) for bdf in addresses)
        return Look(missing, Findings(gaps=gaps))

    async def _ask(self, command: str) -> Answer:
        """A subcommand in JSON; the option's name changed from Warboy to RNGD. Raises ToolError."""
        answer = Answer(0, b"")
        for option in ("--format", "--output"):
            answer = await self._tools.run(_TOOL, command, option, "json")
            if answer.code == 0:
                return answer
        raise ToolError(Why.FAILED, f"{_TOOL} {command} failed ({answer.code})")


def _cores_of(card: Card) -> re.Pattern[str]:
    return re.compile(rf"rngd!{card.kernel_name}pe\d+(?:-\d+)?")
