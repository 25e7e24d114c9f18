"""Write AcceleratorProfiles: own objects where Tenure owns the kind, only our keys where another daemon does."""

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from typing import Any

import msgspec
import structlog

from controllers.occupancy.cards import Card, profile_name
from controllers.occupancy.damping import Standing
from controllers.occupancy.holders import State
from controllers.occupancy.profiles import (
    MANAGED_BY,
    MANAGER,
    REPLACED,
    RESTORER,
    Current,
    Plan,
    Profile,
    keys,
    plan,
    spec,
)
from service.kube.client import KubeClient, PatchKind
from service.kube.errors import ApiError, Conflict, NotFound, Undecodable
from service.kube.resources import Resource
from service.settings import ProfileSettings

log = structlog.get_logger(__name__)

_NODE_LABEL = "tenure.dev/node"
_LABEL_LIMIT = 63  # characters of a label's value
_PAGE = 500
# Seconds between two lists of the profiles of all nodes, where the kind cannot be asked for those of one.
_WHOLE_LIST_S = 3600.0


class _List(msgspec.Struct):
    items: list[msgspec.Raw] = []
    metadata: dict[str, Any] = {}


class _Version(msgspec.Struct, rename="camel"):
    version: str


class _Group(msgspec.Struct, rename="camel"):
    versions: list[_Version]
    preferred_version: _Version


class _Kind(msgspec.Struct):
    name: str
    kind: str
    namespaced: bool


class _Kinds(msgspec.Struct):
    resources: list[_Kind]


async def discover(client: KubeClient, settings: ProfileSettings) -> Resource | None:
    """The kind as this cluster serves it: the version of the settings, else the preferred one. None: not installed.

    Raises KubeError.
    """
    try:
        group = msgspec.json.decode(await client.get(f"/apis/{settings.group}"), type=_Group)
        served = {item.version for item in group.versions}
        version = settings.version if settings.version in served else group.preferred_version.version
        body = await client.get(f"/apis/{settings.group}/{version}")
        kinds = msgspec.json.decode(body, type=_Kinds).resources
    except NotFound:
        return None
    except msgspec.MsgspecError as error:
        raise Undecodable(f"discovery of {settings.group}: {error}") from None
    found = next((kind for kind in kinds if kind.name == settings.plural), None)
    if found is None or found.namespaced:
        return None
    return Resource(settings.group, version, settings.plural, found.kind, namespaced=False)


class Profiles:
    """The profiles of one node. `resync_s`: everything is looked at again after so many seconds."""

    def __init__(
        self,
        client: KubeClient,
        settings: ProfileSettings,
        *,
        node: str,
        resync_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._settings = settings
        self._node = node
        self._resync_s = resync_s
        self._clock = clock
        self._resource: Resource | None = None
        self._foreign: dict[str, Profile] = {}
        self._selectable = True
        self._listed_at = float("-inf")
        self._told: dict[str, Mapping[str, str]] = {}
        self._checked = float("-inf")

    async def publish(self, standings: Iterable[Standing], *, node_uid: str) -> None:
        """Make the profiles say what the standings say. Raises KubeError; what was written stays written."""
        if not await self._ready():
            return
        for standing in standings:
            card, told = standing.verdict.card, keys(standing)
            if self._told.get(card.id) == told and standing.state is not State.HOST:
                continue
            await self._tell(card, told, node_uid)
            self._told[card.id] = told

    async def take_back(self) -> None:
        """Undo everything: own profiles go, other daemons get their keys and values back. Raises KubeError."""
        if self._resource is None:
            self._resource = await discover(self._client, self._settings)
        if self._resource is None:
            return
        for profile in await self._listed(self._resource):
            if profile.own:
                path = self._resource.path(name=profile.metadata.name)
                await self._client.delete(path, uid=profile.metadata.uid)
            else:
                await self._join(self._resource, profile, {})

    async def everywhere(self) -> list[Profile] | None:
        """The profiles of all nodes; None when the kind is not installed. Raises KubeError."""
        resource = await discover(self._client, self._settings)
        return None if resource is None else await self._pages(resource, {})

    async def targets(self, cards: Iterable[Card]) -> dict[str, str | None]:
        """Which profile tells of a card, by its id; None: no profile does. Writes nothing. Raises KubeError."""
        resource = await discover(self._client, self._settings)
        if resource is None:
            return {card.id: None for card in cards}
        await self._learn_foreign(resource, self._clock())
        return {card.id: self._target(card) for card in cards}

    def _target(self, card: Card) -> str | None:
        if not self._foreign and self._settings.create:
            return profile_name(self._node, card)
        matches = [name for name, profile in self._foreign.items() if profile.of_card(card)]
        return matches[0] if len(matches) == 1 else None

    async def _ready(self) -> bool:
        """Find the kind and other daemons' profiles, now and then; False when the kind is not installed."""
        now = self._clock()
        if now - self._checked >= self._resync_s:
            self._resource = await discover(self._client, self._settings)
            if self._resource is None:
                log.warning("no such kind: no profiles are written", plural=self._settings.plural)
            else:
                await self._learn_foreign(self._resource, now)
            self._told.clear()
            self._checked = now
        return self._resource is not None

    async def _learn_foreign(self, resource: Resource, now: float) -> None:
        """Which of the node's profiles are another daemon's. A kind that must be listed whole is listed rarely."""
        if not self._selectable and now - self._listed_at < _WHOLE_LIST_S:
            return
        self._foreign = {p.metadata.name: p for p in await self._listed(resource) if not p.own}
        self._listed_at = now

    async def _tell(self, card: Card, told: Mapping[str, str], node_uid: str) -> None:
        assert self._resource is not None  # noqa: S101 - _ready() was asked
        if not self._foreign and self._settings.create:
            await self._own(self._resource, card, told, node_uid)
            return
        name = self._target(card)
        if name is None:
            log.info("no single profile of this card", card=card.id)
            return
        fresh = await self._read(self._resource, name)
        if fresh is not None:
            await self._join(self._resource, fresh, told)

    async def _own(self, resource: Resource, card: Card, told: Mapping[str, str], node_uid: str) -> None:
        name = profile_name(self._node, card)
        current = await self._read(resource, name)
        step = plan(Current.of(current) if current is not None else Current(), told)
        if current is not None and not step.needed:
            return
        owner = {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": node_uid}
        metadata = {
            "labels": {MANAGED_BY: "tenure", _NODE_LABEL: _label(self._node)},
            "ownerReferences": [owner] if node_uid else [],
        }
        await self._apply(resource, name, step, metadata=metadata, body=spec(self._node, card, told))

    async def _join(self, resource: Resource, profile: Profile, told: Mapping[str, str]) -> None:
        step = plan(Current.of(profile), told)
        if not step.needed:
            return
        # The uid makes it a change of this object, never the creation of another one.
        metadata = {"uid": profile.metadata.uid}
        try:
            await self._apply(
                resource, profile.metadata.name, step, metadata=metadata, body={"extra": dict(told)}
            )
        except Conflict:
            log.info("profile went away", profile=profile.metadata.name)

    async def _apply(
        self, resource: Resource, name: str, step: Plan, *, metadata: dict[str, Any], body: dict[str, Any]
    ) -> None:
        """Give values back, then own exactly the keys of `body`. Safe to repeat from anywhere in between."""
        path = resource.path(name=name)
        whole = {"apiVersion": resource.api_version, "kind": resource.kind}
        if step.restore:
            given = whole | {"metadata": {"name": name}, "spec": {"extra": dict(step.restore)}}
            await self._client.patch(path, given, kind=PatchKind.APPLY, field_manager=RESTORER, force=True)
        if step.replaced:
            record = msgspec.json.encode(dict(step.replaced)).decode()
            metadata = metadata | {"annotations": {REPLACED: record}}
        told = whole | {"metadata": {"name": name} | metadata, "spec": body}
        await self._client.patch(path, told, kind=PatchKind.APPLY, field_manager=MANAGER, force=True)

    async def _read(self, resource: Resource, name: str) -> Profile | None:
        try:
            return _decoded(await self._client.get(resource.path(name=name)))
        except NotFound:
            return None

    async def _listed(self, resource: Resource) -> list[Profile]:
        """The profiles of this node: by field where the kind can select by it, else all of them."""
        try:
            found = await self._pages(resource, {"fieldSelector": f"spec.nodeName={self._node}"})
        except ApiError as error:
            if error.status != HTTPStatus.BAD_REQUEST:
                raise
            self._selectable = False
            found = await self._pages(resource, {})
        return [profile for profile in found if profile.of_node(self._node)]

    async def _pages(self, resource: Resource, selector: Mapping[str, str]) -> list[Profile]:
        found: list[Profile] = []
        token = ""
        while True:
            params = {"limit": str(_PAGE), **selector, **({"continue": token} if token else {})}
            try:
                page = msgspec.json.decode(await self._client.get(resource.path(), params=params), type=_List)
            except msgspec.MsgspecError as error:
                raise Undecodable(f"{resource.plural}: {error}") from None
            found += [_decoded(raw) for raw in page.items]
            token = page.metadata.get("continue") or ""
            if not token:
                return found


def _decoded(raw: bytes | msgspec.Raw) -> Profile:
    try:
        return msgspec.json.decode(raw, type=Profile)
    except msgspec.MsgspecError as error:
        raise Undecodable(f"an AcceleratorProfile: {error}") from None


def _label(node: str) -> str:
    return node if len(node) <= _LABEL_LIMIT else hashlib.sha256(node.encode()).hexdigest()[:_LABEL_LIMIT]
