"""What the node sees of RDMA: the entries of /sys/class/infiniband, as the node's annotation `tenure.dev/rdma-devices`.

A NIC has an entry only while its RDMA kernel driver is loaded; a node without any says so with an empty annotation,
which is not the same as a node where nobody looked.
"""

import asyncio
from pathlib import Path
from typing import Final

import msgspec
import structlog

from service import names
from service.kube.client import KubeClient, PatchKind
from service.kube.errors import KubeError
from service.kube.resources import NODES
from service.objects import Node

log = structlog.get_logger(__name__)

# Seconds: drivers are loaded and unloaded by people.
CHECK_EVERY_S: Final = 60.0
# Entries of one annotation; a node has a dozen NICs.
MAX_DEVICES: Final = 256


def seen(sys: Path) -> str | None:
    """The sorted names, separated by commas; None where the folder cannot be read although it is there."""
    try:
        found = sorted(entry.name for entry in (sys / "class" / "infiniband").iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError:
        return None
    return ",".join(found[:MAX_DEVICES])


class RdmaAnnotation:
    """Keeps the annotation of this node equal to what is seen."""

    def __init__(self, client: KubeClient, *, node: str, sys: Path) -> None:
        self._client = client
        self._path = NODES.path(name=node)
        self._sys = sys

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                await self.keep()
            except (KubeError, msgspec.MsgspecError) as error:
                log.warning("RDMA devices not published", error=str(error))
            await asyncio.sleep(CHECK_EVERY_S)

    async def keep(self) -> None:
        """Write on change only. Raises KubeError."""
        wanted = await asyncio.to_thread(seen, self._sys)
        if wanted is None:
            return
        node = msgspec.json.decode(await self._client.get(self._path), type=Node)
        if node.metadata.annotations.get(names.RDMA_DEVICES) != wanted:
            body = {"metadata": {"annotations": {names.RDMA_DEVICES: wanted}}}
            await self._client.patch(self._path, body, kind=PatchKind.MERGE)
