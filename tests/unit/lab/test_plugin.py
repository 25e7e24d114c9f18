"""The rules that the pytest plugin keeps."""

import os
import time
from collections.abc import Callable

import pytest
from blockbuster import BlockingError

import service
from tests.lab.plugin import require_node, require_program, require_root

# Code of the product is told apart by its file's path.
PRODUCT_SLEEPS = compile("import time; time.sleep(0.001)", f"{service.__path__[0]}/example.py", "exec")


async def test_the_product_must_not_block_the_loop() -> None:
    with pytest.raises(BlockingError, match=r"time\.sleep"):
        exec(PRODUCT_SLEEPS)  # noqa: S102 - The only way to have code with that path and nothing in the product.


async def test_the_test_itself_may_block_as_calls_of_the_lab_do() -> None:
    time.sleep(0.001)  # noqa: ASYNC251 - This is the blocking call in question.


def test_outside_of_a_loop_anything_may_block() -> None:
    exec(PRODUCT_SLEEPS)  # noqa: S102 - As above.


@pytest.fixture(params=["node", "program", "root"])
def missing(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> tuple[Callable[[], object], str]:
    """What asks for something that this machine lacks, and the reason that it gives."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    cases: dict[str, tuple[Callable[[], object], str]] = {
        "node": (lambda: require_node("a node needs root"), "no real node: a node needs root"),
        "program": (
            lambda: require_program("no-such"),
            "no-such is not installed, which `make viewers` does",
        ),
        "root": (require_root, "needs root: mounts and namespaces"),
    }
    return cases[request.param]


def test_a_test_that_lacks_something_is_skipped_with_the_reason(
    missing: tuple[Callable[[], object], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TENURE_REQUIRE_NODE", raising=False)
    ask, reason = missing
    with pytest.raises(pytest.skip.Exception) as left:
        ask()
    assert str(left.value) == reason


def test_where_nothing_may_be_skipped_the_same_test_fails(
    missing: tuple[Callable[[], object], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENURE_REQUIRE_NODE", "1")
    ask, reason = missing
    with pytest.raises(pytest.fail.Exception) as left:
        ask()
    assert str(left.value) == reason


def test_what_is_there_is_no_reason_to_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENURE_REQUIRE_NODE", "1")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    require_node(None)
    require_root()
    assert require_program("sh").endswith("/sh")
