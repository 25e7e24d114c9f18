"""Logging: one event per line, its message a constant, its data fields.

JSON lines are the default; `console` is for people. Records of the standard library's loggers (aiohttp,
kubernetes_asyncio, asyncio) take the same way out. Three rules hold for every event, whoever wrote it:

* what looks like a secret does not leave the process;
* an expected error (the network, a deadline, an answer of the API server) is one line: a traceback means a bug;
* long text is cut and control characters are escaped, for tenants choose the names of processes and files.
"""

import logging
import re
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, TextIO

import msgspec
import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

# Characters of one field: a sentence of the API server, not an object. The end of a traceback says what went wrong.
TEXT_LIMIT: Final = 1000
TRACEBACK_LIMIT: Final = 8000
REDACTED: Final = "[redacted]"

# What the environment may do to a correct program. Errors that other layers define join in through `configure`.
EXPECTED: Final[tuple[type[BaseException], ...]] = (OSError, TimeoutError)

_SECRET_FIELD = re.compile(r"token|passw|secret|authorization|private|credential", re.IGNORECASE)
_SECRET_TEXT = re.compile(
    r"bearer\s+\S+"  # an Authorization header
    r"|eyJ[\w-]+\.[\w-]+\.[\w-]*"  # a JSON web token, as service accounts have it
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*-----|$)",
    re.DOTALL | re.IGNORECASE,
)
# C0 controls but tab and newline, DEL, C1: a terminal acts on them.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def configure(
    *,
    style: Literal["json", "console"] = "json",
    level: Literal["debug", "info", "warning", "error"] = "info",
    stream: TextIO | None = None,
    expected: Sequence[type[BaseException]] = (),
) -> None:
    """Send all logging of the process to `stream` (standard error). `expected` errors get no traceback."""
    out = stream or sys.stderr
    threshold = logging.getLevelNamesMapping()[level.upper()]
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _Errors((*EXPECTED, *expected)),
        _clean_event,
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.ExtraAdder(), *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, _renderer(style, out)],
        )
    )
    logging.basicConfig(level=threshold, handlers=[handler], force=True)
    logging.captureWarnings(capture=True)


def printable(text: str) -> str:
    """The text with control characters escaped, so that a terminal shows them instead of obeying."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def _renderer(style: Literal["json", "console"], out: TextIO) -> Processor:
    if style == "console":
        return structlog.dev.ConsoleRenderer(colors=out.isatty())
    return _json


def _json(_: WrappedLogger, __: str, event: EventDict) -> str:
    first = {name: event.pop(name) for name in ("timestamp", "level", "event")}
    return msgspec.json.encode({**first, **event}).decode()


class _Errors:
    """Turns `exc_info` into `error`, one line, and for an unexpected one also `traceback`."""

    def __init__(self, expected: tuple[type[BaseException], ...]) -> None:
        self._expected = expected

    def __call__(self, _: WrappedLogger, __: str, event: EventDict) -> EventDict:
        error = _exception(event.pop("exc_info", None))
        if error is None:
            return event
        event["error"] = f"{type(error).__name__}: {error}"
        if not isinstance(error, self._expected):
            event["traceback"] = "".join(traceback.format_exception(error))[-TRACEBACK_LIMIT:]
        return event


def _exception(exc_info: object) -> BaseException | None:
    """The exception that a logging call meant by `exc_info`: itself, True for the current one, or sys.exc_info()."""
    match exc_info:
        case BaseException():
            return exc_info
        case (_, BaseException() as error, _):
            return error
        case None | False:
            return None
        case _:
            return sys.exc_info()[1]


def _clean_event(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    return {
        name: value if name.startswith("_") else _clean_field(name, value) for name, value in event.items()
    }


def _clean_field(name: str, value: Any) -> Any:
    if _SECRET_FIELD.search(name):
        return REDACTED
    return _clean(value, limit=TRACEBACK_LIMIT if name == "traceback" else TEXT_LIMIT)


def _clean(value: Any, *, limit: int = TEXT_LIMIT) -> Any:
    match value:
        case None | bool() | int() | float():
            return value
        case Mapping():
            return {str(name): _clean_field(str(name), item) for name, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_clean(item) for item in value]
        case _:
            text = printable(_SECRET_TEXT.sub(REDACTED, str(value)))
            return text if len(text) <= limit else text[:limit] + "..."
