"""Small clusters for tests of claims."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from controllers.claims import capacity, requirements
from controllers.claims.capacity import Cluster
from controllers.claims.cel import Engine
from controllers.claims.matching import Matching
from controllers.claims.objects import Claim, DeviceClaim, DeviceClass, ResourceSlice
from controllers.claims.requirements import Requirements
from controllers.claims.slices import DeviceId, Inventory
from service.objects import Node

NPU, NIC = "npu.example", "dra.net"
NUMA, ROOT = "resource.kubernetes.io/numaNode", "resource.kubernetes.io/pcieRoot"


def attribute(value: object) -> dict[str, Any]:
    match value:
        case bool():
            return {"bool": value}
        case int():
            return {"int": value}
        case list():
            return {"ints": value}
        case dict():
            return value
        case _:
            return {"string": value}


def device(name: str, attributes: Mapping[str, object], **more: Any) -> dict[str, Any]:
    return {"name": name, "attributes": {key: attribute(value) for key, value in attributes.items()}, **more}


def slice_(
    driver: str, node: str | None, devices: Iterable[dict[str, Any]], *, name: str = "", **more: Any
) -> dict[str, Any]:
    where = {"nodeName": node} if node else {"allNodes": True}
    pool = {"name": node or "net", "generation": 1, "resourceSliceCount": 1, **more.pop("pool", {})}
    spec = {"driver": driver, "pool": pool, "devices": list(devices), **where, **more}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name or f"{pool['name']}-{driver}-{pool['generation']}"},
        "spec": spec,
    }


def npus(node: str, numa: Iterable[object]) -> dict[str, Any]:
    return slice_(
        NPU,
        node,
        [device(f"npu{i}", {NUMA: value, ROOT: f"pci0000:{i:02x}"}) for i, value in enumerate(numa)],
    )


def nics(node: str, numa: Iterable[object]) -> dict[str, Any]:
    return slice_(
        NIC,
        node,
        [
            device(
                f"nic{i}",
                {"rdma": True, "pciSubsystem": "9140", NUMA: value, ROOT: f"pci0001:{i:02x}"},
            )
            for i, value in enumerate(numa)
        ],
    )


def reference(node: str = "n1") -> list[dict[str, Any]]:
    """2 NUMA nodes, 8 NPUs, 4 NICs."""
    return [npus(node, [0] * 4 + [1] * 4), nics(node, [0, 0, 1, 1])]


CLASSES: list[dict[str, Any]] = [
    {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{driver}"'}}]},
    }
    for name, driver in (("npu", NPU), ("dranet", NIC))
]

RDMA = 'device.attributes["dra.net"].rdma == true && device.attributes["dra.net"].pciSubsystem == "9140"'


def request(name: str, class_name: str, count: int = 1, **more: Any) -> dict[str, Any]:
    selectors = [{"cel": {"expression": text}} for text in more.pop("selectors", ())]
    return {
        "name": name,
        "exactly": {"deviceClassName": class_name, "count": count, "selectors": selectors, **more},
    }


def aligned() -> dict[str, Any]:
    return {
        "requests": [request("npu", "npu", 4), request("nic", "dranet", 2, selectors=[RDMA])],
        "constraints": [
            {"requests": ["npu", "nic"], "matchAttribute": NUMA},
            {"requests": ["nic"], "distinctAttribute": ROOT},
        ],
    }


def wanted(claim: Mapping[str, Any], classes: Iterable[dict[str, Any]] = CLASSES) -> Requirements:
    found = {c["metadata"]["name"]: msgspec.convert(c, DeviceClass) for c in classes}
    return requirements.of(msgspec.convert(claim, DeviceClaim), found)


def inventory(slices: Iterable[dict[str, Any]], nodes: Mapping[str, Node] | None = None) -> Inventory:
    return Inventory([msgspec.convert(found, ResourceSlice) for found in slices], nodes)


def cluster(
    slices: Iterable[dict[str, Any]],
    *,
    claims: Iterable[dict[str, Any]] = (),
    held: Iterable[DeviceId] = (),
) -> Cluster:
    return Cluster(
        inventory(slices),
        Matching(Engine()).matches,
        tuple(msgspec.convert(claim, Claim) for claim in claims),
        frozenset(held),
    )


def pods(claim: Mapping[str, Any], made: Cluster) -> dict[str, int | None]:
    return {found.node: found.pods for found in capacity.of(wanted(claim), made, made.inventory.nodes)}


def allocated(name: str, *devices: tuple[str, str, str, str], **more: Any) -> dict[str, Any]:
    results = [
        {"request": request_, "driver": driver, "pool": pool, "device": found, **more}
        for request_, driver, pool, found in devices
    ]
    return {
        "metadata": {"name": name, "namespace": "team"},
        "status": {"allocation": {"devices": {"results": results}}},
    }
