"""What the reading commands print for people."""

from collections.abc import Iterable, Iterator, Sized

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


def show(content: RenderableType) -> None:
    """Print to standard output, coloured only on a terminal."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_PIPE_WIDTH)
    console.print(content)


def pool(answer: api.Servers) -> RenderableType:
    """One line per card."""
    if not answer.servers:
        return Text("There is no server with remote cards.")
    table = _table(
        "SERVER", "ENDPOINT", "CARD", "TYPE", "MiB", "NUMA", "STATE", "HELD BY", "NOT OFFERED BECAUSE"
    )
    for server in answer.servers:
        for row in _server_rows(server):
            table.add_row(*row)
    return Group(table, _text(_total(answer)))


def explanation(answer: api.Explanation) -> RenderableType:
    """A sentence, then what stands behind it."""
    parts: list[RenderableType] = [_text(f"{answer.pod}: {answer.sentence}", style="bold")]
    parts += [_text(line) for line in _facts(answer)]
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
            _text(shown),
            _text(server.endpoint),
            _text(card.id),
            _text(card.type),
            _text(card.memory_mib),
            _text("" if card.numa is None else card.numa),
            _text(card.state, style=_STYLES[card.state]),
            _text(holder),
            _text(", ".join(card.reasons)),
        )
    if not server.cards:
        yield (_text(shown), _text(server.endpoint), _text("no card"))


def _total(answer: api.Servers) -> str:
    cards = [card for server in answer.servers for card in server.cards]
    free = sum(card.state is api.CardState.FREE for card in cards)
    held = sum(card.holder is not None for card in cards)
    return f"{_count(answer.servers, 'server')}, {_count(cards, 'card')}: {free} free, {held} held"


def _count(things: Sized, noun: str) -> str:
    return f"{len(things)} {noun}{'' if len(things) == 1 else 's'}"


def _facts(answer: api.Explanation) -> Iterator[str]:
    yield f"state: {answer.state}"
    if answer.place is not None:
        yield f"place in the queue: {answer.place}"
    if answer.gates:
        yield f"other scheduling gates: {', '.join(answer.gates)}"


def _given(cards: Iterable[api.GivenCard]) -> Table:
    table = _table("SERVER", "CARD", "TYPE", "MiB")
    for card in cards:
        table.add_row(_text(card.server), _text(card.id), _text(card.type), _text(card.memory_mib))
    return table


def _chances(servers: Iterable[api.Chance]) -> Table:
    table = _table("SERVER", "FREE", "WHAT IT CAN DO")
    for server in servers:
        table.add_row(_text(server.name), _text(server.free), _text(server.sentence))
    return table


def _table(*columns: str) -> Table:
    return Table(*columns, box=None, header_style="bold", pad_edge=False)


def _text(value: object, *, style: str = "") -> Text:
    """Plain text: neither rich's markup nor a terminal's control characters act. Nodes and tenants choose names."""
    return Text(printable(str(value)), style=style)
