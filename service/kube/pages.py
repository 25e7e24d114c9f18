"""A whole collection, page by page: for commands that look once and follow nothing."""

from collections.abc import AsyncIterator, Mapping
from typing import Final, TypeVar

import msgspec

from service.kube.client import KubeClient
from service.kube.resources import Resource

# Objects of one answer, so that a cluster of 100,000 pods never lies in memory at once.
PAGE: Final = 500

T = TypeVar("T")


class _ListMeta(msgspec.Struct):
    token: str = msgspec.field(name="continue", default="")


class _Page(msgspec.Struct):
    metadata: _ListMeta
    items: list[msgspec.Raw] = []


async def everything(
    client: KubeClient,
    resource: Resource,
    shape: type[T],
    params: Mapping[str, str] | None = None,
    *,
    page: int = PAGE,
) -> AsyncIterator[T]:
    """All objects of a kind, as of one moment. Raises KubeError, msgspec.MsgspecError."""
    token = ""
    while True:
        asked = {**(params or {}), "limit": str(page), **({"continue": token} if token else {})}
        found = msgspec.json.decode(await client.get(resource.path(), params=asked), type=_Page)
        for item in found.items:
            yield msgspec.json.decode(item, type=shape)
        token = found.metadata.token
        if not token:
            return
