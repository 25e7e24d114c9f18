"""The rules that the pytest plugin keeps."""

import time

import pytest
from blockbuster import BlockingError

import service
from tests.lab.plugin import require_node

# Code of the product is told apart by its file's path.
PRODUCT_SLEEPS = compile("import time; time.sleep(0.001)", f"{service.__path__[0]}/example.py", "exec")


async def test_the_product_must_not_block_the_loop() -> None:
    with pytest.raises(BlockingError, match=r"time\.sleep"):
        exec(PRODUCT_SLEEPS)  # noqa: S102 - The only way to have code with that path and nothing in the product.


async def test_the_test_itself_may_block_as_calls_of_the_lab_do() -> None:
    time.sleep(0.001)  # noqa: ASYNC251 - This is the blocking call in question.


def test_outside_of_a_loop_anything_may_block() -> None:
    exec(PRODUCT_SLEEPS)  # noqa: S102 - As above.


def test_without_a_node_a_test_is_skipped_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TENURE_REQUIRE_NODE", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no real node: a node needs root"):
        require_node("a node needs root")


def test_where_a_node_is_required_the_same_test_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENURE_REQUIRE_NODE", "1")
    with pytest.raises(pytest.fail.Exception, match="no real node: a node needs root"):
        require_node("a node needs root")


def test_with_a_node_a_test_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENURE_REQUIRE_NODE", "1")
    require_node(None)
