"""The node's label `tenure.dev/regions=ready`: the scheduler cannot know which nodes have the driver without it."""

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec
import structlog

from service import names
from service.kube.client import KubeClient, PatchKind
from service.kube.errors import KubeError
from service.kube.resources import NODES
from service.objects import Node

log = structlog.get_logger(__name__)

# Seconds: often enough to mend what somebody removed, and to come through after an outage of the API server.
CHECK_EVERY_S: Final = 30.0
# Seconds for taking the label back when the agent leaves.
LAST_CALL_S: Final = 5.0


class NodeLabel:
    """Keeps the label equal to what `ready` says."""

    def __init__(self, client: KubeClient, node: str, ready: Callable[[], bool]) -> None:
        self._client = client
        self._path = NODES.path(name=node)
        self._ready = ready
        self._changed = asyncio.Event()

    def changed(self) -> None:
        """`ready` may answer something else now."""
        self._changed.set()

    async def run(self) -> None:
        """Keep the label for ever."""
        while True:
            self._changed.clear()
            try:
                await self._keep()
            except KubeError as error:
                log.warning("node label not written", error=str(error))
            try:
                async with asyncio.timeout(CHECK_EVERY_S):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def take_back(self) -> None:
        """Remove the label: no new pod with regions comes here."""
        try:
            await self._write(None, deadline=LAST_CALL_S)
        except KubeError as error:
            log.warning("node label not removed", error=str(error))

    async def _keep(self) -> None:
        node = msgspec.json.decode(await self._client.get(self._path), type=Node)
        wanted = names.REGIONS_READY if self._ready() else None
        if node.metadata.labels.get(names.REGIONS_READY_LABEL) != wanted:
            await self._write(wanted)
            log.info("node label written", value=wanted)

    async def _write(self, value: str | None, *, deadline: float | None = None) -> None:
        body = {"metadata": {"labels": {names.REGIONS_READY_LABEL: value}}}
        await self._client.patch(self._path, body, kind=PatchKind.MERGE, deadline=deadline)
