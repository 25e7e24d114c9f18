"""Keeps claims off cards that a process outside Kubernetes holds, where the API server serves DeviceTaintRule.

One rule per held device, with a complete selector: a rule whose selector is empty taints every device of the cluster
(kubernetes/kubernetes#141620). Rules are ours by their label, and go when the card is free.
"""

import hashlib
from collections.abc import Iterable
from typing import Any

import msgspec

from controllers.claims.slices import DeviceId
from service import names
from service.kube.client import KubeClient
from service.kube.errors import AlreadyExists, Forbidden, NotFound
from service.kube.resources import Resource
from service.objects import ObjectMeta, Projection

# Newest first: v1 from Kubernetes 1.37; before, only where the gate DRADeviceTaintRules and the API are switched on.
VERSIONS = ("v1", "v1beta2", "v1alpha3")
TAINT = f"{names.GROUP}/host-held"
_OURS = {"app.kubernetes.io/managed-by": "tenure"}
_DIGEST = 20


class _Kind(msgspec.Struct):
    name: str = ""


class _Kinds(msgspec.Struct):
    resources: list[_Kind] = msgspec.field(default_factory=list)


class _Rule(Projection, frozen=True):
    metadata: ObjectMeta


class _Rules(msgspec.Struct):
    items: list[_Rule] = msgspec.field(default_factory=list)


def rule(device: DeviceId, resource: Resource) -> dict[str, Any]:
    """The rule of one device. Raises ValueError for a selector that is not complete."""
    if not all(device):
        raise ValueError(f"{device} does not name one device")
    selector = {"driver": device.driver, "pool": device.pool, "device": device.device}
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {"name": rule_name(device), "labels": _OURS},
        "spec": {"deviceSelector": selector, "taint": {"key": TAINT, "effect": "NoSchedule"}},
    }


def rule_name(device: DeviceId) -> str:
    """A name for any device: a hash, because driver, pool and device together are longer than a name may be."""
    return "tenure-host-held-" + hashlib.sha256(str(device).encode()).hexdigest()[:_DIGEST]


class TaintRules:
    """Makes the cluster's rules equal to what is held. `available` is None until the API server was asked."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self.available: bool | None = None

    async def settle(self, held: Iterable[DeviceId]) -> None:
        """Write and take back. Raises KubeError."""
        resource = await served(self._client)
        self.available = resource is not None
        if resource is None:
            return
        try:
            await self._make_equal(resource, {rule_name(device): device for device in held})
        except Forbidden:
            self.available = False

    async def _make_equal(self, resource: Resource, wanted: dict[str, DeviceId]) -> None:
        selector = ",".join(f"{key}={value}" for key, value in _OURS.items())
        body = await self._client.get(resource.path(), params={"labelSelector": selector})
        known = {found.metadata.name for found in msgspec.json.decode(body, type=_Rules).items}
        for name in sorted(known - set(wanted)):
            try:
                await self._client.delete(resource.path(name=name))
            except NotFound:
                continue
        for name in sorted(set(wanted) - known):
            try:
                await self._client.create(resource.path(), rule(wanted[name], resource))
            except AlreadyExists:
                continue


async def served(client: KubeClient) -> Resource | None:
    """The kind in the newest version that the API server has; None where it has none. Raises KubeError."""
    for version in VERSIONS:
        try:
            body = await client.get(f"/apis/resource.k8s.io/{version}")
        except NotFound:
            continue
        kinds = msgspec.json.decode(body, type=_Kinds)
        if any(kind.name == "devicetaintrules" for kind in kinds.resources):
            return Resource(
                "resource.k8s.io", version, "devicetaintrules", "DeviceTaintRule", namespaced=False
            )
    return None
