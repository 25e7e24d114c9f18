"""From open device nodes to findings. Pure."""

from collections.abc import Iterable, Mapping

from controllers.occupancy.cards import Card, DeviceNumber
from controllers.occupancy.evidence import Findings, Gap, Sighting, Why
from controllers.occupancy.processes import Missing
from controllers.occupancy.procfs import OpenDevices
from controllers.occupancy.sources.look import Look, SharedNode
from controllers.occupancy.vendors.generic import OPEN_FILES
from controllers.occupancy.walk import Walked

PROCESSES = "processes"
# The host's first process starts and reaps others and holds no card. Hardened hosts let not even root look into it.
INIT = 1


def without_nodes(cards: Iterable[Card]) -> tuple[Gap, ...]:
    """Gaps of cards whose device nodes are hidden from this process."""
    blind = [card for card in cards if not card.compute]
    return tuple(
        Gap(
            OPEN_FILES, Why.ABSENT, f"no compute device node of {c.kernel_name} is visible", frozenset({c.id})
        )
        for c in blind
    )


def numbers(look: Look) -> set[DeviceNumber]:
    """The device numbers to look for."""
    own = {number for card in look.cards for number in card.compute}
    return own | {node.number for node in look.shared}


def walk_gaps(walked: Walked[OpenDevices | Missing]) -> Iterable[Gap]:
    """What the walk through the processes could not see: any card may be held there."""
    denied = sum(seen is Missing.UNREADABLE for pid, seen in walked.found.items() if pid != INIT)
    if denied:
        text = f"{denied} processes may not be looked at (CAP_SYS_PTRACE, AppArmor or SELinux)"
        yield Gap(PROCESSES, Why.DENIED, text)
    if walked.stuck:
        text = f"processes that do not let themselves be looked at: {len(walked.stuck)}"
        yield Gap(PROCESSES, Why.SLOW, text)
    if walked.unvisited:
        yield Gap(PROCESSES, Why.SLOW, f"no time was left to look at {walked.unvisited} processes")


def findings(look: Look, found: Mapping[int, OpenDevices], gaps: tuple[Gap, ...]) -> Findings:
    """Who holds which card of a look by an open node; `gaps` of the walk concern all of them."""
    if not look.cards:
        return Findings()
    return Findings(tuple(_opened(look, found)), gaps + tuple(_shared(look, found)))


def _opened(look: Look, found: Mapping[int, OpenDevices]) -> Iterable[Sighting]:
    numbers = {card.id: set(card.compute) for card in look.cards}
    for node in look.shared:
        if len(node.cards) == 1:
            numbers[next(iter(node.cards))].add(node.number)
    for card, own in numbers.items():
        for pid, seen in found.items():
            if seen.numbers & own:
                yield Sighting(card, pid, OPEN_FILES, seen.start)


def _shared(look: Look, found: Mapping[int, OpenDevices]) -> Iterable[Gap]:
    """Who opened a node of several cards holds at least one of them; his own nodes may tell which."""
    for node in look.shared:
        for pid, seen in found.items():
            if node.number in seen.numbers and len(node.cards) != 1:
                yield _group_gap(node, pid)


def _group_gap(node: SharedNode, pid: int) -> Gap:
    text = f"process {pid} holds {node.name}, which stands for {len(node.cards)} cards"
    return Gap(OPEN_FILES, Why.UNATTRIBUTED, text, node.cards, pid)
