"""Commands of vendors: whatever they do, nothing of them is left behind."""

import asyncio
from pathlib import Path

import pytest

from controllers.occupancy.evidence import Why
from controllers.occupancy.tools import ToolError, Tools
from tests.unit.occupancy.ground import Ground


def pipes() -> int:
    """Pipes that this process has open."""
    links = (link for link in Path("/proc/self/fd").iterdir() if link.is_symlink())
    return sum(str(link.readlink()).startswith("pipe:") for link in links)


@pytest.mark.parametrize(
    ("script", "why"),
    [("yes", Why.GARBLED), ("sleep 600", Why.SLOW), ("yes & sleep 600", Why.GARBLED)],
    ids=["prints for ever", "hangs", "leaves a child that prints"],
)
async def test_a_command_that_is_given_up_leaves_no_pipe_open(ground: Ground, script: str, why: Why) -> None:
    ground.tool("tool", script)
    tools = Tools([ground.bin], deadline_s=1 if why is Why.SLOW else 20)
    before = await asyncio.to_thread(pipes)
    for _ in range(3):
        with pytest.raises(ToolError) as raised:
            await tools.run("tool")
        assert raised.value.why is why
    await asyncio.sleep(0.1)
    assert await asyncio.to_thread(pipes) == before
