"""The template of the status page, and what keeps it harmless.

Tenants and drivers choose most of the texts. Each one is escaped (autoescape), and loses control characters, text
direction overrides and excess length before that, because it passes `tamed` on its way out, whoever wrote the
template. The page loads and runs nothing: the policy allows its own style sheet by its digest, and nothing else.
"""

import asyncio
import base64
import hashlib
import re
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import jinja2
from markupsafe import Markup

from service.logs import printable

# Characters of one text: a pod's key has at most 317, findings are sentences.
MOST_CHARACTERS: Final = 400
# Milliseconds of rendering between two looks at what else the loop has to do.
STRETCH_S: Final = 0.005

# Read while nothing else runs yet.
_PAGE = Path(__file__).with_name("page.html").read_text()
_CSS = Path(__file__).with_name("page.css").read_text()
# Unicode, "Bidirectional Character Types": embeddings, overrides and isolates turn the text around them.
_DIRECTION = re.compile("[\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def tamed(value: Any) -> Any:
    """A text as it may be shown; what is no text, or was made safe by the template, as it is."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    text = _DIRECTION.sub("\N{REPLACEMENT CHARACTER}", printable(value[: MOST_CHARACTERS + 1]))
    return text if len(value) <= MOST_CHARACTERS else text[:MOST_CHARACTERS] + "\N{HORIZONTAL ELLIPSIS}"


def grouped(number: int) -> str:
    """`12 345`: thousands apart, by a space that does not break."""
    return f"{number:,}".replace(",", "\N{NO-BREAK SPACE}")


def memory(mib: int) -> str:
    """Memory of a card for people."""
    return f"{mib / 1024:.0f} GiB" if mib >= 1024 else f"{mib} MiB"  # noqa: PLR2004 - MiB in a GiB


def explain_link(key: str) -> str:
    """Where the JSON explanation of `namespace/pod` is, seen from the page: also behind a proxy's prefix."""
    return "api/v1/explain/" + "/".join(quote(part, safe="") for part in key.split("/", 1))


class Template:
    """The page, compiled once."""

    def __init__(self) -> None:
        environment = jinja2.Environment(
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=tamed,
        )
        environment.filters |= {"grouped": grouped, "memory": memory}
        environment.globals |= {"css": Markup(_CSS), "explain_link": explain_link}  # noqa: S704 - a file of ours
        self._template = environment.from_string(_PAGE)
        digest = base64.b64encode(hashlib.sha256(_CSS.encode()).digest()).decode()
        self.headers: Mapping[str, str] = {
            "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none';"
            " form-action 'none'; frame-ancestors 'none'",
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cache-Control": "no-store",
        }

    async def render(self, context: Mapping[str, Any]) -> bytes:
        """The page as bytes. The loop runs whatever else is due in between."""
        return "".join([piece async for piece in self._pieces(context)]).encode()

    async def _pieces(self, context: Mapping[str, Any]) -> AsyncIterator[str]:
        pace = Pace()
        for piece in self._template.generate(context):
            yield piece
            await pace.rest()


class Pace:
    """Gives way to the loop whenever some milliseconds were used up."""

    def __init__(self) -> None:
        self._since = time.perf_counter()

    async def rest(self) -> None:
        """To be called often: it only reads a clock, most of the time."""
        if time.perf_counter() - self._since > STRETCH_S:
            await asyncio.sleep(0)
            self._since = time.perf_counter()
