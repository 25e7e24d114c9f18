"""Texts of /proc about a process."""

import pytest

from controllers.occupancy.processes import base_name, parse_pid, parse_stat, runs_script

FIELDS = "S 415 413 413 0 -1 4194304 100 0 0 0 1 2 0 0 20 0 4 0 987654 0 0"


def test_a_stat_line_is_read_behind_the_last_parenthesis() -> None:
    stat = parse_stat(f"704 (a) (b) c) {FIELDS}")
    assert stat is not None
    assert (stat.comm, stat.state, stat.parent, stat.group) == ("a) (b) c", "S", 415, 413)
    assert (stat.threads, stat.start, stat.kernel_thread, stat.leader_is_dead) == (4, 987654, False, False)


def test_a_dead_main_thread_with_living_threads_is_seen() -> None:
    stat = parse_stat(f"704 (x) {FIELDS.replace('S', 'Z', 1)}")
    assert stat is not None
    assert stat.leader_is_dead


def test_a_kernel_thread_is_told_by_its_flag() -> None:
    stat = parse_stat(f"2 (kthreadd) {FIELDS.replace('4194304', '2129984')}")
    assert stat is not None
    assert stat.kernel_thread


@pytest.mark.parametrize("text", ["", "704", "704 (x)", "704 (x) S a b", f"704 (x {FIELDS}"])
def test_what_is_no_stat_line_is_none(text: str) -> None:
    assert parse_stat(text) is None


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("/usr/bin/python3.11", "python3.11"),
        ("/opt/a b/train (deleted)", "train"),
        ("/x/evil\n\x1b[31mname", "evil[31mname"),
        ("/x/" + "n" * 200, "n" * 64),
        ("", ""),
    ],
)
def test_only_a_short_printable_base_name_is_kept(text: str, name: str) -> None:
    assert base_name(text) == name


@pytest.mark.parametrize(
    ("value", "pid"),
    [
        *((7, 7), ("2733390", 2733390), (" 8 ", 8), (0, None), (-1, None), (True, None), ("x", None)),
        *((4_194_305, None), ("9" * 5000, None), (7.0, None), (None, None), ("\u0663", None)),
    ],
)
def test_process_ids_come_as_numbers_and_in_quotes(value: object, pid: int | None) -> None:
    assert parse_pid(value) == pid


@pytest.mark.parametrize(("name", "is_one"), [("python3", True), ("python3.11", True), ("pythonista", False)])
def test_interpreters_are_told_by_name(name: str, *, is_one: bool) -> None:
    assert runs_script(name) is is_one
