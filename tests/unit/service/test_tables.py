from rich.console import Console

from service import tables

UID = "0a1b2c3d-0000-4000-8000-000000000001"


def shown(content: object, *, width: int = 80) -> list[str]:
    console = Console(width=width)
    with console.capture() as captured:
        console.print(content)
    return [line.rstrip() for line in captured.get().splitlines()]


def test_a_narrow_terminal_folds_words_and_cuts_none_off() -> None:
    table = tables.aligned("POD", "CARD")
    table.add_row(tables.plain(UID), tables.plain("GPU-1"))
    lines = shown(table, width=20)
    assert "".join(line.split()[0] for line in lines[1:]) == UID


def test_columns_without_a_word_are_left_out() -> None:
    rows = [[tables.plain(cell) for cell in row] for row in (("a", "", "1"), ("b", "", ""))]
    assert shown(tables.filled(("NAME", "NOTHING", "COUNT"), rows)) == ["NAME  COUNT", "a     1", "b"]
    assert tables.filled(("NAME",), []).columns == []


def test_one_thing_is_one_and_two_are_two() -> None:
    assert (tables.count([1], "card"), tables.count([1, 2], "card")) == ("1 card", "2 cards")
