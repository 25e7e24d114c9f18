"""Write the node's own object: the label with the number of host-held cards, and the cordon of NVIDIA cards."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from controllers.occupancy.damping import Standing
from controllers.occupancy.labels import Cordon, cordon, host_held
from service import names
from service.kube.client import KubeClient, PatchKind
from service.kube.errors import Conflict, NotFound
from service.kube.resources import NODES
from service.objects import Node

# Heartbeats and device plugins write the same object: a lost race is tried again at once, then with the next scan.
_TRIES = 3


def before(node: Node) -> Cordon:
    """The cordon as the node has it."""
    notes = node.metadata.annotations
    return Cordon.parse(notes.get(names.DEVICE_CORDON), notes.get(names.CORDON_OWNED))


def change(node: Node, standings: Sequence[Standing], *, complete: bool) -> dict[str, Any] | None:
    """The merge patch that makes the node say what the standings say; None when it does.

    With its resourceVersion the patch fails when somebody else changed the list of cards meanwhile.
    """
    meta = node.metadata
    listed, own = cordon(before(node), standings).annotations()
    labels = _differences(meta.labels, {names.HOST_HELD_LABEL: host_held(standings, complete=complete)})
    notes = _differences(meta.annotations, {names.DEVICE_CORDON: listed, names.CORDON_OWNED: own})
    if not labels and not notes:
        return None
    parts = {"labels": labels, "annotations": notes, "resourceVersion": meta.resource_version}
    return {"metadata": {key: value for key, value in parts.items() if value}}


def _differences(present: Mapping[str, str], wanted: Mapping[str, str | None]) -> dict[str, str | None]:
    """A merge patch of these keys alone; None removes one. Equal lists in other words are no difference."""
    return {key: value for key, value in wanted.items() if _plain(present.get(key)) != value}


def _plain(text: str | None) -> str | None:
    return ",".join(part for item in text.split(",") if (part := item.strip())) or None if text else None


async def publish(client: KubeClient, node: Node, standings: Sequence[Standing], *, complete: bool) -> None:
    """Write what changed. Raises KubeError."""
    path = NODES.path(name=node.metadata.name)
    for attempt in range(_TRIES):
        patch = change(node, standings, complete=complete)
        if patch is None:
            return
        try:
            await client.patch(path, patch, kind=PatchKind.MERGE)
        except Conflict:
            if attempt == _TRIES - 1:
                raise
            node = msgspec.json.decode(await client.get(path), type=Node)
        except NotFound:
            return
        else:
            return
