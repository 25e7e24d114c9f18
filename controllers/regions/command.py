"""`tenure regions [PATH]` as functions for the command line: rows, and the table for people."""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from controllers.regions.report import Row, of
from service.logs import printable
from service.settings import RegionSettings

# Seconds between two looks with --watch.
WATCH_S: Final = 1.0
_COLUMNS: Final = (
    "POD", "CONTAINER", "DEVICE", "CARD", "PROCESSES", "STALE", "MEMORY", "LIMIT", "SM LIMIT", "SM USED", "TOKENS",
    "LAST REFILL", "SAMPLING", "TROUBLE",
)  # fmt: skip


def rows(settings: RegionSettings, path: Path | None) -> list[Row]:
    """Rows for a root folder, a container's folder or a file; the node's root by default. Raises CannotReadError."""
    return of(path or settings.root, kubelet=settings.kubelet_root)


def passed(found: Sequence[Row]) -> bool:
    """Whether there is nothing to report: no stale or corrupt record, nothing unreadable."""
    return not any(row.finding for row in found)


def table(found: Sequence[Row]) -> RenderableType:
    """One line per container and device."""
    if not found:
        return Text("No container has regions here.")
    shown = Table(box=None, header_style="bold", pad_edge=False)
    for column in _COLUMNS:
        shown.add_column(column, overflow="fold")
    for row in found:
        style = "red" if row.trouble or row.corrupt else "yellow" if row.stale else ""
        shown.add_row(*(Text(printable(cell), style=style) for cell in _cells(row)))
    return Group(shown, Text(_summary(found)))


def watch(look: Callable[[], Sequence[Row]], console: Console) -> None:
    """Show the table again and again until Ctrl-C."""
    with Live(table(look()), console=console, auto_refresh=False, screen=console.is_terminal) as live:
        while True:
            time.sleep(WATCH_S)
            live.update(table(look()), refresh=True)


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


def _summary(found: Sequence[Row]) -> str:
    containers = {(row.pod_uid, row.container) for row in found}
    stale = sum(row.stale or 0 for row in found)
    corrupt = sum(row.corrupt for row in found)
    return f"{len(containers)} container(s): {stale} stale and {corrupt} corrupt record(s)"
