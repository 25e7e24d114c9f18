"""Which parts of a device a CEL expression reads, found in its tokens without evaluating it.

Understood are `device.attributes["domain"].name` and its spellings (`["name"]`, `.?name`, `[?"name"]`, `has(...)`,
`"name" in device.attributes["domain"]`) and names that `cel.bind` gives to a domain. What reads attributes in another
way (a comprehension over them, a computed key) makes the answer `whole`: every attribute may matter.
"""

import ast
import re
from dataclasses import dataclass, field

# resource/v1, DeviceAttributeMaxValueLength: no text or version of a device is longer (bytes).
MAX_TEXT = 64
_TOKEN = re.compile(
    r"""\s+|//[^\n]*"""
    r"""|(?P<text>[rRbB]{0,2}(?:\"\"\"(?:\\.|[^\\])*?\"\"\"|'''(?:\\.|[^\\])*?'''|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'))"""
    r"""|(?P<number>\d[\w.]*)"""
    r"""|(?P<name>[A-Za-z_]\w*)"""
    r"""|(?P<sign>==|!=|<=|>=|&&|\|\||.)""",
    re.DOTALL,
)
_TOP_FIELDS = frozenset({"driver", "attributes", "capacity", "allowMultipleAllocations"})


@dataclass(frozen=True, slots=True)
class Reference:
    """One attribute, or with `capacity` one capacity, by its qualified name `domain/name`."""

    name: str
    capacity: bool = False


@dataclass(slots=True)
class Reading:
    """What an expression reads."""

    needed: set[Reference] = field(default_factory=set)
    """Absent, they make the expression an error."""
    guarded: set[Reference] = field(default_factory=set)
    """Asked for with `has`, `in` or `.?`."""
    domains: set[str] = field(default_factory=set)
    as_text: set[Reference] = field(default_factory=set)
    """Compared with literal text."""
    too_long: set[tuple[Reference, str]] = field(default_factory=set)
    """Compared for equality with text that no device can have."""
    drivers: set[str] = field(default_factory=set)
    """Literals that `device.driver` is compared with."""
    unknown_fields: set[str] = field(default_factory=set)
    """Fields that a device does not have: the API server refuses the expression."""
    whole: bool = False

    @property
    def references(self) -> set[Reference]:
        """All attributes and capacities by name."""
        return self.needed | self.guarded


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str


def read(expression: str) -> Reading:
    """What `expression` reads; of something that is no CEL, what can be found."""
    return _Scanner(_tokens(expression)).scan()


def _tokens(expression: str) -> list[_Token]:
    return [
        _Token(match.lastgroup, match.group())
        for match in _TOKEN.finditer(expression)
        if match.lastgroup is not None
    ]


def _literal(token: _Token) -> str:
    try:
        value = ast.literal_eval(token.text)
    except (ValueError, SyntaxError):
        return token.text.strip("\"'")
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


class _Scanner:
    """Walks the tokens once; `_at` is the token under the cursor."""

    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._found = Reading()
        self._aliases: dict[str, tuple[bool, str]] = {}

    def scan(self) -> Reading:
        place = 0
        while place < len(self._tokens):
            place = self._step(place)
        return self._found

    def _step(self, place: int) -> int:
        token = self._tokens[place]
        if token.kind != "name" or self._is("sign", ".", place - 1):
            return place + 1
        if token.text == "device":
            return self._device(place)
        if token.text in self._aliases:
            return self._member(place, place + 1, *self._aliases[token.text])
        return place + 1

    def _device(self, place: int) -> int:
        key, after, _ = self._key(place + 1)
        if key is None:
            self._found.whole = True
            return place + 1
        if key == "driver":
            self._driver(place, after)
        elif key in {"attributes", "capacity"}:
            return self._domain(place, after, capacity=key == "capacity")
        elif key not in _TOP_FIELDS:
            self._found.unknown_fields.add(key)
        return after

    def _driver(self, start: int, after: int) -> None:
        for literal in self._compared(start, after, signs=("==",)):
            self._found.drivers.add(literal)

    def _domain(self, start: int, place: int, *, capacity: bool) -> int:
        domain, after, _ = self._key(place)
        if domain is None:
            self._found.whole = True
            return place
        self._found.domains.add(domain)
        if self._binds(start, after, capacity=capacity, domain=domain):
            return after
        return self._member(start, after, capacity, domain)

    def _binds(self, start: int, after: int, *, capacity: bool, domain: str) -> bool:
        """`cel.bind(alias, device.attributes["domain"], ...)`: the alias stands for the domain from here on."""
        before = [token.text for token in self._tokens[max(0, start - 6) : start]]
        if before[:4] != ["cel", ".", "bind", "("] or before[5:] != [","]:
            return False
        if not self._is("sign", ",", after):
            return False
        self._aliases[before[4]] = (capacity, domain)
        return True

    def _member(self, start: int, place: int, capacity: bool, domain: str) -> int:  # noqa: FBT001 - an unpacked alias
        key, after, optional = self._key(place)
        if key is None:
            return self._membership(start, place, capacity=capacity, domain=domain)
        reference = Reference(f"{domain}/{key}", capacity)
        guarded = optional or self._under_has(start)
        (self._found.guarded if guarded else self._found.needed).add(reference)
        if self._compared(start, after, signs=("==", "!=")):
            self._found.as_text.add(reference)
        for literal in self._compared(start, after, signs=("==",)):
            if len(literal.encode(errors="surrogatepass")) > MAX_TEXT:
                self._found.too_long.add((reference, literal))
        return after

    def _membership(self, start: int, place: int, *, capacity: bool, domain: str) -> int:
        """`"name" in device.attributes["domain"]`; every other use of a whole domain may read all of it."""
        if self._is("name", "in", start - 1) and start >= 2 and self._tokens[start - 2].kind == "text":  # noqa: PLR2004 - one literal before `in`
            self._found.guarded.add(Reference(f"{domain}/{_literal(self._tokens[start - 2])}", capacity))
        else:
            self._found.whole = True
        return place

    def _key(self, place: int) -> tuple[str | None, int, bool]:
        """The member that is selected at `place`, the place after it, and whether it is optional."""
        optional = self._is("sign", "?", place + 1)
        inner = place + 1 + optional
        if inner >= len(self._tokens):
            return None, place, False
        token = self._tokens[inner]
        if self._is("sign", ".", place) and token.kind == "name":
            if self._is("sign", "(", inner + 1):
                return None, place, False
            return token.text, inner + 1, optional
        if self._is("sign", "[", place) and token.kind == "text" and self._is("sign", "]", inner + 1):
            return _literal(token), inner + 2, optional
        return None, place, False

    def _under_has(self, start: int) -> bool:
        return self._is("sign", "(", start - 1) and self._is("name", "has", start - 2)

    def _compared(self, start: int, after: int, *, signs: tuple[str, ...]) -> list[str]:
        found = []
        for sign, literal in ((after, after + 1), (start - 1, start - 2)):
            is_text = 0 <= literal < len(self._tokens) and self._tokens[literal].kind == "text"
            if is_text and any(self._is("sign", text, sign) for text in signs):
                found.append(_literal(self._tokens[literal]))
        return found

    def _is(self, kind: str, text: str, place: int) -> bool:
        return 0 <= place < len(self._tokens) and self._tokens[place] == _Token(kind, text)
