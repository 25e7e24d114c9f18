"""Objects of DRA and their bytes with here and there something else, as broken drivers and people write them."""

import random
from typing import Any

_ODD: list[Any] = [
    None,
    0,
    -1,
    2**63,
    1.5,
    "",
    "x" * 300,
    "\0",
    True,
    [],
    {},
    [None],
    {"": None},
    "1e99",
    "-5Gi",
    "pci0000:zz",
    'device.attributes["',
    'device.attributes["dra.net"].x.y.z == 1',
    "device.attributes[device.driver].x == 1",
]


def mutated(rng: random.Random, value: Any) -> Any:
    """The same value with here and there something else."""
    if rng.random() < 0.01:
        return rng.choice(_ODD)
    if isinstance(value, dict):
        kept = {key: mutated(rng, one) for key, one in value.items() if rng.random() > 0.01}
        if kept and rng.random() < 0.02:
            kept[rng.choice(["", "x" * 100, "a/b/c", "int", "nodeName"])] = rng.choice(_ODD)
        return kept
    if isinstance(value, list):
        made = [mutated(rng, one) for one in value]
        return made + made[:1] if rng.random() < 0.03 else made
    return value


def torn(rng: random.Random, raw: bytes) -> bytes:
    """Sometimes a byte is another one, or the end is missing."""
    if rng.random() < 0.03:
        place = rng.randrange(len(raw))
        return raw[:place] + bytes([rng.randrange(256)]) + raw[place + 1 :]
    return raw[: rng.randrange(len(raw))] if rng.random() < 0.01 else raw
