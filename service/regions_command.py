"""`tenure regions [PATH]`: what the region files of containers say, and which of their records are true."""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from controllers.regions.report import CannotReadError, Row, of
from service import tables
from service.asking import NoAccessError
from service.settings import RegionSettings

# Seconds between two looks with --watch.
WATCH_S: Final = 1.0
_COLUMNS: Final = (
    "POD", "CONTAINER", "DEVICE", "CARD", "PROCESSES", "STALE", "MEMORY", "LIMIT", "SM LIMIT", "SM USED", "TOKENS",
    "LAST REFILL", "SAMPLING", "TROUBLE",
)  # fmt: skip


def rows(settings: RegionSettings, path: Path | None) -> list[Row]:
    """Rows for a root folder, a container's folder or a file; the node's root by default. Raises NoAccessError."""
    try:
        return of(path or settings.root, kubelet=settings.kubelet_root)
    except CannotReadError as error:
        elsewhere = "" if path else "; elsewhere, name a copied file: tenure regions FILE"
        raise NoAccessError(f"{error}{elsewhere}") from None


def passed(found: Sequence[Row]) -> bool:
    """Whether there is nothing to report: no stale or corrupt record, nothing unreadable."""
    return not any(row.finding for row in found)


def table(found: Sequence[Row]) -> RenderableType:
    """One line per container and device; columns that nothing is known for are left out."""
    if not found:
        return Text("No container has regions here.")
    shown = tables.filled(_COLUMNS, (_line(row) for row in found))
    if not shown.columns:
        return Text("No device has a record here.")
    return Group(shown, *(Text(line) for line in _summary(found)))


def _line(row: Row) -> list[Text]:
    style = "red" if row.trouble or row.corrupt else "yellow" if row.stale else ""
    return [tables.plain(cell, style=style) for cell in _cells(row)]


def watch(look: Callable[[], Sequence[Row]]) -> Sequence[Row]:
    """Show the table again and again until Ctrl-C; what was seen last. Raises whatever a look raises."""
    console, found = tables.console(), look()
    try:
        with Live(console=console, auto_refresh=False, screen=console.is_terminal) as live:
            while True:
                if console.is_terminal:
                    live.update(table(found), refresh=True)
                else:  # a pipe cannot be overwritten: one table below the other
                    console.print(table(found))
                time.sleep(WATCH_S)
                found = look()
    except KeyboardInterrupt:
        if console.is_terminal:  # the screen of the watch is gone with it
            console.print(table(found))
        return found


def _cells(row: Row) -> Iterator[str]:
    yield row.pod or row.pod_uid
    yield row.container
    yield _number(row.device)
    yield row.card
    yield _number(row.processes)
    yield "unknown" if row.stale is None and row.processes is not None else _number(row.stale)
    yield ("at least " if row.corrupt else "") + _size(row.used_bytes)
    yield _size(row.limit_bytes)
    yield _percent(row.sm_limit)
    yield _percent(row.sm_used)
    yield "" if row.tokens is None else f"{row.tokens}/{row.tokens_total}"
    yield "" if row.refill_age_s is None else f"{row.refill_age_s:.1f} s ago"
    yield _sampling(row)
    yield row.trouble or (f"{row.corrupt} corrupt" if row.corrupt else "")


def _sampling(row: Row) -> str:
    if not row.sampling_pid:
        return ""
    held = {True: "locked", False: "lock free", None: "lock unknown"}[row.sampling_locked]
    return f"pid {row.sampling_pid}, {held}"


def _number(value: int | None) -> str:
    return "" if value is None else str(value)


def _percent(value: int | None) -> str:
    return "" if value is None else f"{value} %"


def _size(value: int | None) -> str:
    """Bytes in MiB, as cards are measured everywhere else."""
    return "" if value is None else f"{value / (1 << 20):.1f} MiB"


def _summary(found: Sequence[Row]) -> Iterator[str]:
    if containers := {(row.pod_uid, row.container) for row in found if row.pod_uid}:
        stale, corrupt = sum(row.stale or 0 for row in found), sum(row.corrupt for row in found)
        yield f"{tables.count(containers, 'container')}: {stale} stale and {corrupt} corrupt records"
