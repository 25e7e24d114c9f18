"""Kubernetes quantities (apimachinery, resource.Quantity) as exact decimals."""

import re
from decimal import Decimal

Quantity = str | int | float

# Digits are bounded, so that hostile text stays cheap.
_QUANTITY = re.compile(
    r"([+-]?(?:\d{1,30}(?:\.\d{0,30})?|\.\d{1,30}))(?:([numkMGTPE]|[KMGTPE]i)|[eE]([+-]?\d{1,2}))?"
)
_SUFFIX = {"n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "k": Decimal(1000)}
_SUFFIX |= {letter: Decimal(1000) ** power for power, letter in enumerate("MGTPE", start=2)}
_SUFFIX |= {f"{letter}i": Decimal(1024) ** power for power, letter in enumerate("KMGTPE", start=1)}


def parse(quantity: Quantity) -> Decimal | None:
    """The number that a quantity means, in base units (cores, bytes, pieces), or None when it is none."""
    match = _QUANTITY.fullmatch(str(quantity))
    if match is None:
        return None
    number, suffix, exponent = match.groups()
    if exponent:
        return Decimal(number).scaleb(int(exponent))
    return Decimal(number) * (_SUFFIX[suffix] if suffix else 1)
