"""Every other accelerator: a card is what a pattern of device nodes and a kernel driver say it is.

The table is settings; the defaults are the vendors' documented node names. Node names alone do not tell vendors apart
(/dev/accel/accel0 may be a Gaudi or an Intel NPU), so an entry can name the kernel drivers it means.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from controllers.occupancy.cards import Card, DeviceNumber, pci_address

OPEN_FILES = "open files"


@dataclass(frozen=True, slots=True)
class CardClass:
    """One entry of the table. `nodes` matches whole paths below /dev; `drivers` empty: any."""

    vendor: str
    nodes: re.Pattern[str]
    drivers: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Node:
    """A character device below /dev: its path there, its number, and what sysfs says about its device.

    `device_path` is the resolved folder of the device in sysfs, empty for a device without one.
    """

    path: str
    number: DeviceNumber
    device_path: str = ""
    driver: str = ""


def cards(nodes: Iterable[Node], classes: Iterable[CardClass]) -> tuple[Card, ...]:
    """The cards behind `nodes`. Nodes of one PCI device are one card; without one, the node's name has to do."""
    table = tuple(classes)
    found: dict[tuple[str, str], Card] = {}
    for node in sorted(nodes, key=lambda node: node.path):
        for entry in table:
            if entry.nodes.fullmatch(node.path) and (not entry.drivers or node.driver in entry.drivers):
                card = _card(entry, node, found.get((entry.vendor, _identity(node))))
                found[card.vendor, card.id] = card
                break
    return tuple(found.values())


def _identity(node: Node) -> str:
    parts = [address for part in node.device_path.split("/") if (address := pci_address(part))]
    return parts[-1] if parts else node.path.replace("/", "-")


def _card(entry: CardClass, node: Node, known: Card | None) -> Card:
    numbers = (known.compute if known else frozenset()) | {node.number}
    name = known.kernel_name if known else node.path
    identity = _identity(node)
    return Card(entry.vendor, identity, name, node.driver, pci_address(identity), compute=numbers)
