"""One scan of the node: ask every source, look into every process, judge every card.

    sources ──cards, findings──▶ open files of /proc ──pids──▶ who they are ──▶ judge ──▶ Scan

Sources are asked side by side and each within its own deadline, so that a tool that hangs costs its own vendor only.
"""

import asyncio
import os
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from controllers.occupancy import openfiles, visibility
from controllers.occupancy.cards import Card, DeviceNumber
from controllers.occupancy.evidence import Findings, Gap, Why
from controllers.occupancy.holders import Scene, Verdict, judge
from controllers.occupancy.kin import MONITORS, Kin
from controllers.occupancy.pods import PodIndex
from controllers.occupancy.processes import Described, Missing, Process
from controllers.occupancy.procfs import (
    KTHREADD,
    OpenDevices,
    describe_visitor,
    device_visitor,
    pids,
    read_text,
)
from controllers.occupancy.sources.host import Host
from controllers.occupancy.sources.look import Look, Source
from controllers.occupancy.tardy import Tardy
from controllers.occupancy.walk import Walked, Walker

_INVENTORY = "inventory"
_NO_ANSWER = "/proc did not answer in time: occupancy not reported"


@dataclass(frozen=True, slots=True)
class ScanRules:
    """Deadlines in seconds, and who does not count."""

    walk_deadline_s: float = 5.0
    monitor_hold_s: float = 600.0
    lupine: str = "lupine_driver_server"
    monitors: Collection[str] = MONITORS
    assume_host_pid: bool = False


@dataclass(frozen=True, slots=True)
class Scan:
    """What one scan gave. `gaps` are all of them, also those that cover no known card; `seconds` it took."""

    verdicts: tuple[Verdict, ...]
    gaps: tuple[Gap, ...]
    seconds: float
    blind: str = ""
    """Why nothing of the host could be seen; empty when it could."""

    @property
    def complete(self) -> bool:
        """False when something is on the node that no verdict speaks of."""
        return not any(gap.cards is not None and not gap.cards for gap in self.gaps)


class Scanner:
    """Scans again and again, and remembers cards that it saw once: a card that is missing is not free."""

    def __init__(
        self,
        host: Host,
        sources: Sequence[Source],
        rules: ScanRules,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._host = host
        self._sources = sources
        self._rules = rules
        self._clock = clock
        self._walker = Walker("occupancy processes")
        self._known: list[dict[str, Card]] = [{} for _ in sources]
        self._tardy = Tardy(rules.monitor_hold_s)

    async def scan(self, pods: PodIndex) -> Scan:
        """Scan once. Never raises for what it finds; always back in time."""
        began = self._clock()
        blind = await self._blindness()
        looks = list(await asyncio.gather(*(self._look(number) for number in range(len(self._sources)))))
        if blind:
            gap = Gap(openfiles.PROCESSES, Why.NAMESPACE, blind)
            looks = [_with(look, Findings(gaps=(gap,))) for look in looks]
        else:
            looks = await self._with_open_files(looks)
        looks = [_without_me(look) for look in looks]
        described = await self._describe({pid for look in looks for pid in _pids(look)})
        verdicts = self._judge(looks, described, pods)
        gaps = tuple(dict.fromkeys(gap for look in looks if look.cards for gap in look.findings.gaps))
        bare = tuple(gap for look in looks if not look.cards for gap in look.findings.gaps)
        missing = tuple(replace(gap, cards=frozenset()) for gap in bare if gap.why is not Why.NAMESPACE)
        return Scan(verdicts, gaps + missing, self._clock() - began, blind)

    async def _blindness(self) -> str:
        proc = self._host.proc

        def read() -> visibility.Signals:
            return visibility.Signals(
                namespace=_link(proc / "self/ns/pid"),
                second_process=read_text(proc / str(KTHREADD) / "comm") or "",
                mountinfo=read_text(proc / "self/mountinfo") or "",
                may_trace=visibility.may_trace(read_text(proc / "self/status") or ""),
            )

        try:
            signals = await self._walker.call(read, deadline_s=self._rules.walk_deadline_s)
        except TimeoutError:
            return _NO_ANSWER
        return visibility.blindness(signals, assume_host_pid=self._rules.assume_host_pid) or ""

    async def _look(self, number: int) -> Look:
        """One source's look, completed by the cards that it knew before."""
        source, known = self._sources[number], self._known[number]
        try:
            look = await source.look()
        except (TimeoutError, OSError) as error:
            why = Why.SLOW if isinstance(error, TimeoutError) else Why.FAILED
            text = f"the cards of {source.vendor} could not be listed ({why.value})"
            return Look(tuple(known.values()), Findings(gaps=(Gap(_INVENTORY, why, text),)))
        cards = {card.id: _richer(card, known.get(card.id)) for card in look.cards}
        lost = [card for card in known.values() if card.id not in cards]
        gaps = tuple(Gap(_INVENTORY, Why.MISSING, "not listed any more", frozenset({c.id})) for c in lost)
        known.update(cards)
        look = replace(look, cards=(*cards.values(), *lost))
        nodeless = openfiles.without_nodes(cards.values()) if source.by_open_files else ()
        return _with(look, Findings(gaps=gaps + nodeless))

    async def _with_open_files(self, looks: list[Look]) -> list[Look]:
        """Add who has a compute node open. Only sources that are judged by it get the gaps of this walk."""
        by_files = [source.by_open_files for source in self._sources]
        wanted = {n for look, by in zip(looks, by_files, strict=True) if by for n in openfiles.numbers(look)}
        if not wanted:
            return looks
        walked = await self._walk(wanted)
        found = {pid: seen for pid, seen in walked.found.items() if isinstance(seen, OpenDevices)}
        gaps = tuple(openfiles.walk_gaps(walked))
        return [
            _with(look, openfiles.findings(look, found, gaps)) if by else look
            for look, by in zip(looks, by_files, strict=True)
        ]

    async def _walk(self, wanted: Collection[DeviceNumber]) -> Walked[OpenDevices | Missing]:
        """What is open in all processes; when not even their list came, they are one that was not visited."""

        def visitor() -> Callable[[int], OpenDevices | Missing | None]:
            return device_visitor(self._host.proc, wanted)

        deadline = self._rules.walk_deadline_s
        try:
            listed = await self._walker.call(lambda: pids(self._host.proc), deadline_s=deadline)
        except (TimeoutError, OSError):
            listed = []
        if not listed:
            return Walked({}, unvisited=1)
        everybody = [pid for pid in listed if pid != os.getpid()]
        return await self._walker.visit(everybody, visitor, deadline_s=deadline)

    async def _describe(self, seen: Collection[int]) -> dict[int, Described]:
        """Who the processes are, and their parents and group leaders, which tell lupine's clients from others."""
        first = await self._describe_once(seen)
        kin = {p for process in first.values() if isinstance(process, Process) for p in _relatives(process)}
        return first | await self._describe_once(kin - first.keys())

    async def _describe_once(self, asked: Collection[int]) -> dict[int, Described]:
        if not asked:
            return {}

        def visitor() -> Callable[[int], Described | None]:
            return describe_visitor(self._host.proc)

        walked: Walked[Described] = await self._walker.visit(
            sorted(asked), visitor, deadline_s=self._rules.walk_deadline_s
        )
        silent: dict[int, Described] = dict.fromkeys(asked, Missing.UNREADABLE)
        return silent | walked.found

    def _judge(
        self, looks: Iterable[Look], described: dict[int, Described], pods: PodIndex
    ) -> tuple[Verdict, ...]:
        kin = Kin(self._rules.lupine, self._rules.monitors, described)
        listed = tuple(looks)
        sightings = [sighting for look in listed for sighting in look.findings.sightings]
        tardy = self._tardy.update(sightings, described, kin, now=self._clock())
        scene = Scene(described, kin, pods, tardy)
        return tuple(verdict for look in listed for verdict in judge(look.cards, look.findings, scene))


def _link(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""


def _with(look: Look, more: Findings) -> Look:
    return replace(look, findings=Findings.joined((look.findings, more)))


def _without_me(look: Look) -> Look:
    """This process looks at cards and uses none."""
    others = tuple(sighting for sighting in look.findings.sightings if sighting.pid != os.getpid())
    return replace(look, findings=Findings(others, look.findings.gaps))


def _pids(look: Look) -> Iterable[int]:
    yield from (sighting.pid for sighting in look.findings.sightings)
    yield from (gap.pid for gap in look.findings.gaps if gap.pid is not None)


def _richer(card: Card, known: Card | None) -> Card:
    """A drained card is listed by its address alone; what was known of it stays known."""
    return known if known is not None and not card.compute and card.kernel_name == card.bdf else card


def _relatives(process: Process) -> tuple[int, int]:
    return process.parent, process.group
