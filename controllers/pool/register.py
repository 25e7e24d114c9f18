"""Decoder of the annotation `hami.io/node-nvidia-register`: a node's cards as HAMi's device plugin lists them.

Two formats are alive: a JSON array (HAMi 2.8 and later) and a list of colon-terminated comma records (2.7 and
earlier; HAMi, docs/develop/protocol.md and pkg/device codec). HAMi's own decoder fails as a whole or crashes
on odd input; here a list that cannot be read is an error of its node, and a single odd entry is left out.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

# int32: the width HAMi gives to these numbers.
_MAX = 2**31 - 1
# All annotations of an object together may hold 256 KiB (apimachinery, ValidateAnnotations).
_MAX_BYTES = 256 * 1024
# Separators of the allocation encoding; an id with one of them could not be written down again.
_SEPARATORS = frozenset(",:;/")
# The words that Go's strconv.ParseBool reads.
_BOOLS = dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True)
_BOOLS |= dict.fromkeys(("0", "f", "F", "FALSE", "false", "False"), False)
# The mode that a record without one means (HAMi 2.7, seven fields).
_DEFAULT_MODE = "hami-core"


class RegisterError(ValueError):
    """The annotation cannot be read; the text says why. The node then has no cards."""


@dataclass(frozen=True, slots=True)
class Registered:
    """One card as the device plugin registered it. `numa` is None where the plugin knows none."""

    id: str
    index: int
    memory_mib: int
    cores: int
    type: str
    numa: int | None
    mode: str
    healthy: bool


@dataclass(frozen=True, slots=True)
class Register:
    """The readable cards of a node, and one sentence for each entry that was left out."""

    cards: tuple[Registered, ...]
    left_out: tuple[str, ...] = ()


def decode(text: str) -> Register:
    """Read either format. Raises RegisterError when the list as a whole makes no sense."""
    if len(text) > _MAX_BYTES:
        raise RegisterError(f"the annotation has more than {_MAX_BYTES} characters")
    stripped = text.strip()
    entries = _json_entries(stripped) if stripped.startswith(("[", "{")) else _text_entries(stripped)
    cards: list[Registered] = []
    left_out: list[str] = []
    for position, entry in enumerate(entries):
        try:
            cards.append(_card(entry))
        except ValueError as error:
            left_out.append(f"entry {position}: {error}")
    return _without_doubles(cards, left_out)


def _without_doubles(cards: list[Registered], left_out: list[str]) -> Register:
    """An id that two entries claim is offered by neither: nobody knows which one is right."""
    doubles = {card for card, times in Counter(card.id for card in cards).items() if times > 1}
    left_out += [f"id {card} is listed more than once" for card in sorted(doubles)]
    return Register(tuple(card for card in cards if card.id not in doubles), tuple(left_out))


def _json_entries(text: str) -> list[Any]:
    try:
        entries = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise RegisterError(f"not valid JSON ({error})") from None
    if not isinstance(entries, list):
        raise RegisterError("the JSON is not a list of cards")
    if not entries:
        raise RegisterError("the list is empty")
    return entries


def _text_entries(text: str) -> list[dict[str, Any]]:
    if ":" not in text:
        raise RegisterError("neither a JSON list nor records that end with a colon")
    return [_text_entry(record) for record in text.split(":") if record]


def _text_entry(record: str) -> dict[str, Any]:
    fields = record.split(",")
    if len(fields) not in {7, 9}:
        raise RegisterError(f"a record has {len(fields)} fields; 7 or 9 are known")
    card, count, memory, cores, kind, numa, health = fields[:7]
    index, mode = fields[7:] or ("0", _DEFAULT_MODE)
    if health not in _BOOLS:
        raise RegisterError(f'"{health[:20]}" is not a health')
    try:
        numbers = [int(field) for field in (count, memory, cores, numa, index)]
    except ValueError:
        raise RegisterError("a record has text where a number belongs") from None
    return {
        "id": card,
        "devmem": numbers[1],
        "devcore": numbers[2],
        "type": kind,
        "numa": numbers[3],
        "health": _BOOLS[health],
        "index": numbers[4],
        "mode": mode,
    }


def _card(entry: Any) -> Registered:
    """One entry. Go's `omitempty` leaves zero values out, so an absent key is 0, "" or false."""
    if not isinstance(entry, dict):
        raise ValueError("not an object")  # noqa: TRY004 - one error type means "leave this entry out"
    numa = _number(entry, "numa", least=-1)
    return Registered(
        id=_identity(entry),
        index=_number(entry, "index"),
        memory_mib=_number(entry, "devmem", least=1),
        cores=_number(entry, "devcore"),
        type=_text(entry, "type"),
        numa=None if numa < 0 else numa,
        mode=_text(entry, "mode"),
        healthy=entry.get("health", False) is True,
    )


def _identity(entry: dict[str, Any]) -> str:
    card = _text(entry, "id")
    if not card:
        raise ValueError("no id")
    if any(sign in _SEPARATORS or sign.isspace() or not sign.isprintable() for sign in card):
        raise ValueError("the id has a separator or white space in it")
    return card


def _text(entry: dict[str, Any], key: str) -> str:
    value = entry.get(key, "")
    if not isinstance(value, str):
        raise ValueError(f"{key} is not text")  # noqa: TRY004 - one error type means "leave this entry out"
    return value


def _number(entry: dict[str, Any], key: str, *, least: int = 0) -> int:
    """A whole number; `10.0` is one, since some writers of JSON know only floats. A bool is none."""
    value = entry.get(key, 0)
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1:
        raise ValueError(f"{key} is not a whole number")
    if not least <= value <= _MAX:
        raise ValueError(f"{key} is out of range")
    return int(value)


def cordoned(annotation: str | None) -> frozenset[str]:
    """Card ids of `hami.io/device-cordon`: a comma list, trimmed, empty items skipped."""
    return frozenset(_items(annotation or ""))


def _items(text: str) -> Iterator[str]:
    return (item for part in text.split(",") if (item := part.strip()))
