"""Random DRA nodes and templates for the proofs of claims: small enough to finish, rich enough to go wrong."""

import random
from typing import Any

NPU, NIC = "npu.example", "dra.net"
NUMA, ROOT = "resource.kubernetes.io/numaNode", "resource.kubernetes.io/pcieRoot"
API = "resource.k8s.io/v1"


def device_class(name: str, driver: str) -> dict[str, Any]:
    return {
        "apiVersion": API,
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{driver}"'}}]},
    }


CLASSES = [device_class("npu", NPU), device_class("nic", NIC), device_class("canary", "canary.example")]


def slice_(name: str, driver: str, node: str, devices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    pool = {"name": f"{node}-{driver}", "generation": 1, "resourceSliceCount": 1} | more.pop("pool", {})
    where = more.pop("where", {"nodeName": node})
    return {
        "apiVersion": API,
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {"driver": driver, "pool": pool, **where, "devices": devices, **more},
    }


def reference(node: str) -> list[dict[str, Any]]:
    """2 NUMA nodes, 8 NPUs, 4 NICs."""
    npus = [
        {"name": f"npu{i}", "attributes": {NUMA: {"int": i // 4}, ROOT: {"string": f"pci0000:{i:02x}"}}}
        for i in range(8)
    ]
    nics = [
        {
            "name": f"nic{i}",
            "attributes": {
                "rdma": {"bool": True},
                "pciSubsystem": {"string": "9140"},
                NUMA: {"int": i // 2},
                ROOT: {"string": f"pci0001:{i:02x}"},
            },
        }
        for i in range(4)
    ]
    return [slice_(f"{node}-npu", NPU, node, npus), slice_(f"{node}-nic", NIC, node, nics)]


def aligned() -> dict[str, Any]:
    rdma = 'device.attributes["dra.net"].rdma == true && device.attributes["dra.net"].pciSubsystem == "9140"'
    nic = {"deviceClassName": "nic", "count": 2, "selectors": [{"cel": {"expression": rdma}}]}
    return {
        "requests": [
            {"name": "npu", "exactly": {"deviceClassName": "npu", "count": 4}},
            {"name": "nic", "exactly": nic},
        ],
        "constraints": [
            {"requests": ["npu", "nic"], "matchAttribute": NUMA},
            {"requests": ["nic"], "distinctAttribute": ROOT},
        ],
    }


def cluster(rng: random.Random, node: str, trial: str) -> list[dict[str, Any]]:
    """Slices of one node: one or two drivers, one or two slices each, perhaps incomplete, perhaps by selector."""
    made = []
    for driver, most in ((NPU, 8), (NIC, 5)):
        pool = {"name": f"{trial}-{driver}", "generation": rng.choice([1, 1, 3])}
        devices = [_device(rng, driver, i) for i in range(rng.randint(1, most))]
        parts = rng.choice([1, 1, 2]) if len(devices) > 1 else 1
        cut = rng.randint(1, len(devices) - 1) if parts > 1 else len(devices)
        counters = _partitioned(rng, devices) if driver == NPU and rng.random() < 0.15 else None
        count = parts + (counters is not None) + (rng.random() < 0.04)
        pool["resourceSliceCount"] = count
        where = {"nodeName": node} if rng.random() < 0.85 else {"nodeSelector": _selector(rng, node)}
        for place, part in enumerate([devices[:cut], devices[cut:]][:parts]):
            made.append(slice_(f"{trial}-{driver}-{place}", driver, node, part, pool=pool, where=where))
        if counters is not None:
            made.append(
                slice_(
                    f"{trial}-{driver}-z", driver, node, [], pool=pool, where=where, sharedCounters=counters
                )
            )
            del made[-1]["spec"]["devices"]
    return made


def rule(rng: random.Random, trial: str) -> dict[str, Any]:
    """A DeviceTaintRule with any of the criteria, or none."""
    criteria = {"driver": rng.choice([NPU, NIC]), "pool": f"{trial}-{NPU}", "device": f"d{rng.randint(0, 3)}"}
    selector = {key: value for key, value in criteria.items() if rng.random() < 0.6}
    taint = {"key": "example.com/broken", "effect": rng.choice(["NoSchedule", "NoExecute", "None"])}
    spec = {"taint": taint} if rng.random() < 0.1 else {"taint": taint, "deviceSelector": selector}
    return {"metadata": {"name": f"{trial}-rule"}, "spec": spec}


def _selector(rng: random.Random, node: str) -> dict[str, Any]:
    by_name = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    by_label = {
        "matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node, "nowhere"]}]
    }
    return {"nodeSelectorTerms": [rng.choice([by_name, by_label])]}


def _device(rng: random.Random, driver: str, place: int) -> dict[str, Any]:
    attributes: dict[str, Any] = {"index": {"int": place}}
    if rng.random() < 0.93:
        attributes[NUMA] = rng.choice([{"int": rng.randint(0, 1)}] * 9 + [{"string": "0"}])
    if rng.random() < 0.95:
        attributes[ROOT] = {"string": f"pci0000:{rng.randint(0, 4):02x}"}
    if rng.random() < 0.97:
        attributes["rdma" if driver == NIC else "fast"] = {"bool": rng.random() < 0.85}
    device: dict[str, Any] = {"name": f"d{place}", "attributes": attributes}
    device["capacity"] = {"memory": {"value": rng.choice(["16Gi", "32Gi", "48Gi"])}}
    if rng.random() < 0.12:
        effect = rng.choice(["NoSchedule", "NoExecute", "None"])
        device["taints"] = [{"key": "example.com/sick", "value": rng.choice(["a", "b"]), "effect": effect}]
    return device


def _partitioned(rng: random.Random, devices: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for device in devices:
        used = {"memory": {"value": rng.choice(["10Gi", "20Gi"])}}
        device["consumesCounters"] = [{"counterSet": "card", "counters": used}]
    return [{"name": "card", "counters": {"memory": {"value": rng.choice(["20Gi", "40Gi", "60Gi"])}}}]


def claim(rng: random.Random) -> dict[str, Any]:
    """What a template asks for: requests, alternatives, selectors, tolerations and constraints."""
    requests = [{"name": "npu", **_request(rng, "npu", NPU, "fast")}]
    if rng.random() < 0.7:
        requests.append({"name": "nic", **_request(rng, "nic", NIC, "rdma")})
    if rng.random() < 0.15:
        requests.append({"name": "more", **_request(rng, "npu", NPU, "fast")})
    names = [request["name"] for request in requests]
    constraints: list[dict[str, Any]] = []
    if rng.random() < 0.6:
        constraints.append({"requests": _some(rng, names), "matchAttribute": rng.choice([NUMA, NUMA, ROOT])})
    if rng.random() < 0.35:
        constraints.append({"requests": _some(rng, names), "distinctAttribute": ROOT})
    return {"requests": requests, "constraints": constraints}


def _some(rng: random.Random, names: list[str]) -> list[str]:
    return [] if rng.random() < 0.2 else rng.sample(names, rng.randint(1, len(names)))


def _request(rng: random.Random, class_name: str, driver: str, flag: str) -> dict[str, Any]:
    if rng.random() < 0.15:
        wishes = [_wish(rng, class_name, driver, flag, count=count) for count in (3, 1)]
        return {"firstAvailable": [{"name": f"way{i}", **wish} for i, wish in enumerate(wishes)]}
    return {"exactly": _wish(rng, class_name, driver, flag, count=rng.choice([1, 1, 2, 2, 3]))}


def _wish(rng: random.Random, class_name: str, driver: str, flag: str, *, count: int) -> dict[str, Any]:
    wish: dict[str, Any] = {"deviceClassName": class_name}
    if rng.random() < 0.07:
        wish["allocationMode"] = "All"
    else:
        wish["count"] = count
    wish["selectors"] = [
        {"cel": {"expression": text}} for text in _expressions(driver, flag) if rng.random() < 0.25
    ]
    if rng.random() < 0.3:
        wish["tolerations"] = [
            {"key": "example.com/sick", "operator": "Equal", "value": "a", "effect": "NoSchedule"}
            if rng.random() < 0.5
            else {
                "operator": "Exists",
                "effect": "NoSchedule",
            }  # who tolerates NoExecute is evicted all the same
        ]
    if rng.random() < 0.1:
        wish["capacity"] = {"requests": {"memory": "20Gi"}}
    return wish


def _expressions(driver: str, flag: str) -> list[str]:
    return [
        f'device.attributes["{driver}"].?{flag}.orValue(false)',
        f'device.attributes["{driver}"].{flag} == true',
        f'device.attributes["{driver}"].index <= 4',
        f'device.capacity["{driver}"].memory.compareTo(quantity("20Gi")) >= 0',
        f'has(device.attributes["resource.kubernetes.io"].pcieRoot) && device.attributes["{driver}"].index != 2',
    ]
