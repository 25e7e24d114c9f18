"""Cards and the names that stay theirs.

A card is known by a uuid, a serial or its PCI address: numbers in device names (`npu2`, `rbln5`) shift when cards are
enumerated again, and the numbers of some tools restart per group. One source gives the id of one vendor, always the
same one, so that a card does not change its name when a tool is slow.
"""

import hashlib
import re
from dataclasses import dataclass
from typing import NamedTuple

# A DNS subdomain (Kubernetes, object names): 253 characters of a-z, 0-9, "-" and ".".
_NAME_LIMIT = 253
_HASH_DIGITS = 10
_BDF = re.compile(r"^(?:[0-9a-f]{4})?([0-9a-f]{4}):([0-9a-f]{2}:[0-1][0-9a-f]\.[0-7])$")


class DeviceNumber(NamedTuple):
    """Major and minor of a device node; the same in every mount namespace, whatever the node's path."""

    major: int
    minor: int


@dataclass(frozen=True, slots=True)
class Card:
    """One physical accelerator.

    `id` never changes; `kernel_name` may, and joins the tools' words to the card within one scan. `compute` are the
    nodes that a process opens to compute; whoever holds one of them holds the card.
    """

    vendor: str
    id: str
    kernel_name: str
    model: str = ""
    bdf: str = ""
    uuid: str = ""
    serial: str = ""
    compute: frozenset[DeviceNumber] = frozenset()

    def __post_init__(self) -> None:
        if not self.vendor or not self.id:
            raise ValueError("a card needs a vendor and an id")

    def called(self, text: str) -> bool:
        """True when `text` is one of the card's stable names, in whatever case."""
        return text.lower() in {name.lower() for name in (self.id, self.uuid, self.serial, self.bdf) if name}


def pci_address(text: str) -> str:
    """`dddd:bb:dd.f` in lower case; empty when `text` is no PCI address. nvidia-smi writes 8 digits of domain."""
    found = _BDF.match(text.strip().lower())
    return f"{found[1]}:{found[2]}" if found else ""


def profile_name(node: str, card: Card) -> str:
    """`<node>-<card>` as an object name; a name that would be too long ends in a hash of the whole."""
    name = f"{node}-{re.sub(r'[^a-z0-9.]+', '-', card.id.lower()).strip('-.')}"
    if len(name) <= _NAME_LIMIT:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:_HASH_DIGITS]
    return f"{name[: _NAME_LIMIT - _HASH_DIGITS - 1].rstrip('-.')}-{digest}"
