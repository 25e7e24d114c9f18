"""Selectors are evaluated as Kubernetes does it, or the answer is unknown."""

from typing import Any

import msgspec
import pytest

from controllers.claims.cel import Engine, Failed, Unknown
from controllers.claims.objects import Device

DEVICE = msgspec.convert(
    {
        "name": "npu0",
        "attributes": {
            "arch": {"string": "rngd"},
            "index": {"int": 3},
            "driverVersion": {"version": "2025.4.0-dev2+0e9e56a"},
            "resource.kubernetes.io/pcieRoot": {"string": "pci0000:16"},
            "resource.kubernetes.io/numaNode": {"ints": [0, 1]},
            "dra.net/rdma": {"bool": True},
        },
        "capacity": {"memory": {"value": "48Gi"}},
    },
    Device,
)


def verdict(expression: str, device: Device = DEVICE) -> Any:
    engine = Engine()
    return engine.matches(engine.compile(expression), device, "npu.example")


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ('device.driver == "npu.example"', True),
        ('device.attributes["npu.example"].arch == "rngd"', True),
        ('device.attributes["npu.example"]["index"] <= 2', False),
        ('device.attributes["dra.net"].rdma', True),
        ('has(device.attributes["elsewhere"].nothing)', False),
        ('"arch" in device.attributes["npu.example"]', True),
        ('device.attributes["elsewhere"].?nothing.orValue(7) == 7', True),
        ('device.attributes["npu.example"].arch.lowerAscii().startsWith("rn")', True),
        ('device.attributes["npu.example"].arch.matches("^r.*d$")', True),
        ('cel.bind(npu, device.attributes["npu.example"], npu.arch == "rngd" && npu.index == 3)', True),
        ('device.capacity["npu.example"].memory.compareTo(quantity("40Gi")) >= 0', True),
        ('device.capacity["npu.example"].memory.isLessThan(quantity("49152Mi"))', False),
        ('device.capacity["npu.example"].memory == quantity("49152Mi")', True),
        ('device.attributes["npu.example"].driverVersion.isGreaterThan(semver("2025.4.0-dev1"))', True),
        ('device.attributes["npu.example"].driverVersion.isLessThan(semver("2025.4.0"))', True),
        ('device.attributes["npu.example"].driverVersion.major() == 2025', True),
        ('device.attributes["resource.kubernetes.io"].numaNode.includes(1)', True),
        ("device.allowMultipleAllocations", False),
        ('true || device.attributes["elsewhere"].nothing == 1', True),
    ],
)
def test_an_expression_of_dra_has_its_answer(expression: str, expected: object) -> None:
    assert verdict(expression) is expected


def test_an_absent_attribute_is_an_error_that_ends_the_attempt_but_an_absent_domain_is_an_empty_map() -> None:
    assert verdict('device.attributes["elsewhere"].nothing == 1') == Failed(
        "a device lacks attribute nothing"
    )
    assert verdict('size(device.attributes["elsewhere"]) == 0') is True


def test_a_version_compared_with_text_is_an_error_where_it_is_reached() -> None:
    compares = 'device.attributes["npu.example"].driverVersion == "2025.4.0-dev2"'
    assert isinstance(verdict(compares), Failed)
    assert verdict(f"false && {compares}") is False


@pytest.mark.parametrize(
    "expression",
    [
        "1 +",
        'device.attributes["npu.example"].arch',
        "device.nosuch == 1",
        "1 + 1",
        "true && " * 2000 + "true",
    ],
)
def test_what_the_api_server_would_refuse_is_an_error(expression: str) -> None:
    assert isinstance(verdict(expression), Failed)


@pytest.mark.parametrize(
    "expression",
    [
        'url("https://x").getHost() == "x"',
        "[1, 2].sum() == 3",
        'device.attributes["npu.example"].arch.find("r") == "r"',
    ],
)
def test_what_this_engine_cannot_evaluate_is_unknown_and_never_a_pass(expression: str) -> None:
    found = verdict(expression)
    assert isinstance(found, Unknown)
    assert found.reason


def test_a_comprehension_over_all_attributes_sees_each_device_for_itself() -> None:
    engine = Engine()
    compiled = engine.compile('device.attributes["npu.example"].exists(key, key == "arch")')
    other = msgspec.convert({"name": "npu0", "attributes": {"index": {"int": 3}}}, Device)
    assert engine.matches(compiled, DEVICE, "npu.example") is True
    assert engine.matches(compiled, other, "npu.example") is False
