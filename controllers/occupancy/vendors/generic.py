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


def _entry(vendor: str, nodes: str, *drivers: str) -> CardClass:
    return CardClass(vendor, re.compile(nodes), frozenset(drivers))


# Device nodes that a process opens to compute; management nodes (card0, accel_controlD0, davinci_manager, ...) do not
# match. Sources: Linux, Documentation/accel and Documentation/gpu, and the vendors' driver documents.
BUILT_IN = (
    _entry("amd", r"dri/renderD\d+", "amdgpu"),
    _entry("intel", r"dri/renderD\d+", "i915", "xe"),
    _entry("gaudi", r"accel/accel\d+|hl\d+", "habanalabs"),
    _entry("intel-npu", r"accel/accel\d+", "intel_vpu"),
    _entry("amd-npu", r"accel/accel\d+", "amdxdna"),
    _entry("qualcomm", r"accel/accel\d+", "qaic"),
    _entry("ascend", r"davinci\d+"),
    _entry("tenstorrent", r"tenstorrent/\d+"),
    _entry("neuron", r"neuron\d+"),
    _entry("cambricon", r"cambricon_dev\d+"),
    _entry("hailo", r"hailo\d+"),
    _entry("deepx", r"dxrt\d+"),
    _entry("mobilint", r"aries\d+"),
)


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
