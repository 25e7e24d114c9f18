"""What the reading commands print for people."""

from collections.abc import Iterable, Iterator, Sequence, Sized

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from service import api
from service.logs import printable

_STYLES = {
    api.CardState.FREE: "green",
    api.CardState.RESERVED: "yellow",
    api.CardState.BOUND: "cyan",
    api.CardState.DRAINING: "yellow",
    api.CardState.UNKNOWN: "red",
}
# Columns when the output is a file or a pipe, which have no width of their own: lines must stay whole for grep.
_PIPE_WIDTH = 240


def console() -> Console:
    """Standard output, coloured only on a terminal."""
    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, width=_PIPE_WIDTH)


def show(content: RenderableType) -> None:
    """Print to standard output."""
    console().print(content)


def pool(answer: api.Servers) -> RenderableType:
    """One line per card."""
    if not answer.servers:
        return Text("There is no server with remote cards.")
    table = aligned(
        "SERVER", "ENDPOINT", "CARD", "TYPE", "MiB", "NUMA", "STATE", "HELD BY", "NOT OFFERED BECAUSE"
    )
    for server in answer.servers:
        for row in _server_rows(server):
            table.add_row(*row)
    return Group(table, plain(_total(answer)))


def explanation(answer: api.Explanation) -> RenderableType:
    """A sentence, then what stands behind it."""
    parts: list[RenderableType] = [plain(f"{answer.pod}: {answer.sentence}", style="bold")]
    parts += [plain(line) for line in _facts(answer)]
    if answer.cards:
        parts.append(_given(answer.cards))
    if answer.servers:
        parts.append(_chances(answer.servers))
    return Group(*parts)


def _server_rows(server: api.Server) -> Iterator[tuple[Text, ...]]:
    shown = server.name if server.ready else f"{server.name} (not ready)"
    for card in server.cards:
        holder = f"{card.holder.namespace}/{card.holder.name}" if card.holder else ""
        yield (
            plain(shown),
            plain(server.endpoint),
            plain(card.id),
            plain(card.type),
            plain(card.memory_mib),
            plain("" if card.numa is None else card.numa),
            plain(card.state, style=_STYLES[card.state]),
            plain(holder),
            plain(", ".join(card.reasons)),
        )
    if not server.cards:
        yield (plain(shown), plain(server.endpoint), plain("no card"))


def _total(answer: api.Servers) -> str:
    cards = [card for server in answer.servers for card in server.cards]
    free = sum(card.state is api.CardState.FREE for card in cards)
    held = sum(card.holder is not None for card in cards)
    return f"{count(answer.servers, 'server')}, {count(cards, 'card')}: {free} free, {held} held"


def _facts(answer: api.Explanation) -> Iterator[str]:
    yield f"state: {answer.state}"
    if answer.place is not None:
        yield f"place in the queue: {answer.place}"
    if answer.gates:
        yield f"other scheduling gates: {', '.join(answer.gates)}"


def _given(cards: Iterable[api.GivenCard]) -> Table:
    table = aligned("SERVER", "CARD", "TYPE", "MiB")
    for card in cards:
        table.add_row(plain(card.server), plain(card.id), plain(card.type), plain(card.memory_mib))
    return table


def _chances(servers: Iterable[api.Chance]) -> Table:
    table = aligned("SERVER", "FREE", "WHAT IT CAN DO")
    for server in servers:
        table.add_row(plain(server.name), plain(server.free), plain(server.sentence))
    return table


def aligned(*columns: str) -> Table:
    """An empty table without lines, for rows of `plain` cells; a narrow terminal folds them and cuts nothing off."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def filled(columns: Sequence[str], rows: Iterable[Sequence[Text]]) -> Table:
    """A table of these rows; columns without a word in any of them are left out."""
    listed = list(rows)
    known = [place for place in range(len(columns)) if any(row[place].plain for row in listed)]
    table = aligned(*(columns[place] for place in known))
    for row in listed:
        table.add_row(*(row[place] for place in known))
    return table


def plain(value: object, *, style: str = "") -> Text:
    """Plain text: neither rich's markup nor a terminal's control characters act. Nodes and tenants choose names."""
    return Text(printable(str(value)), style=style)


def count(things: Sized, noun: str) -> str:
    """`1 card`, `2 cards`."""
    return f"{len(things)} {noun}{'' if len(things) == 1 else 's'}"
