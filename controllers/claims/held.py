"""Which devices of slices a process outside Kubernetes holds, by what the node agents publish about cards."""

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from controllers.claims.objects import Device, ResourceSlice
from controllers.claims.slices import DeviceId
from service.objects import ObjectMeta, Projection

# Keys of an AcceleratorProfile's spec.extra (rm-accel); `busy` stands there only while a host process holds the card.
_HEALTH, _BUSY = "health", "busy"
_NAMES = ("id", "uuid", "pciAddress", "serial")
_ATTRIBUTES = {"uuid", "pcibusid", "pciaddress", "serial", "serialnumber"}
_BUS = re.compile(r"(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


class ProfileSpec(Projection, frozen=True):
    """`spec` of an AcceleratorProfile."""

    node_name: str = ""
    extra: dict[str, Any] = msgspec.field(default_factory=dict)


class Profile(Projection, frozen=True):
    """An AcceleratorProfile."""

    metadata: ObjectMeta
    spec: ProfileSpec = ProfileSpec()


def held_devices(slices: Iterable[ResourceSlice], profiles: Iterable[Profile]) -> frozenset[DeviceId]:
    """Devices of a host-held card: same node, and one stable name in common."""
    held: dict[str, set[str]] = {}
    for profile in profiles:
        extra = profile.spec.extra
        if extra.get(_HEALTH) == _BUSY and profile.spec.node_name:
            known = held.setdefault(profile.spec.node_name, set())
            known |= {_stable(str(extra[name])) for name in _NAMES if extra.get(name)}
    return frozenset(
        DeviceId(found.spec.driver, found.spec.pool.name, device.name)
        for found in slices
        if found.spec.node_name in held
        for device in found.spec.devices or ()
        if _names(device) & held[found.spec.node_name]
    )


def _names(device: Device) -> set[str]:
    return {
        _stable(attribute.string)
        for key, attribute in (device.attributes or {}).items()
        if attribute.string and key.rpartition("/")[2].lower() in _ATTRIBUTES
    }


def _stable(text: str) -> str:
    """Lower case; a PCI address with a domain of four digits (NVML writes eight)."""
    name = text.strip().lower()
    if not _BUS.fullmatch(name):
        return name
    parts = name.split(":")
    domain = parts[0] if len(parts) > 2 else "0000"  # noqa: PLR2004 - domain, bus and device
    return f"{domain[-4:]}:{':'.join(parts[-2:])}"
