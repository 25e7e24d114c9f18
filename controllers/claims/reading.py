"""Reads what a check needs: from the API server with the caller's rights, or from manifests."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import msgspec
import yaml

from controllers.claims import scan, taintrules
from controllers.claims.check import Subject, World
from controllers.claims.held import Profile, held_devices
from controllers.claims.objects import Claim, DeviceClass, DeviceTaintRule, ResourceSlice, Template
from controllers.claims.stored import meant
from service.kube.client import KubeClient
from service.kube.errors import ApiError, Forbidden, NotFound
from service.kube.resources import (
    ACCELERATOR_PROFILES,
    DAEMON_SETS,
    DEVICE_CLASSES,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Resource,
)
from service.objects import Node, ObjectMeta, PodSpec, Projection

# Objects of one answer: a full slice has 128 devices and about 100 KiB.
PAGE = 200
# Seconds for one page; a check is asked for by a person.
DEADLINE_S = 20.0
# Answers that are about the template: Bad Request, Unprocessable Entity.
_REFUSED = {400, 422}

T = TypeVar("T")


class BadManifestError(Exception):
    """A file that cannot be checked; the text is one sentence that says what to change."""


class NoDraError(Exception):
    """The API server does not serve resource.k8s.io/v1; the text says from which version it does."""


class _List(msgspec.Struct):
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)
    items: list[msgspec.Raw] = msgspec.field(default_factory=list)


class _Version(msgspec.Struct):
    minor: str = ""


class _Template(Projection, frozen=True):
    spec: dict[str, Any] = msgspec.field(default_factory=dict)


class _DaemonSpec(Projection, frozen=True):
    template: _Template = _Template()
    selector: dict[str, Any] = msgspec.field(default_factory=dict)


class _DaemonSet(Projection, frozen=True):
    metadata: ObjectMeta
    spec: _DaemonSpec = _DaemonSpec()


class _Pod(Projection, frozen=True):
    metadata: ObjectMeta
    spec: PodSpec = PodSpec()


class _ClaimUse(Projection, frozen=True):
    resource_claim_template_name: str | None = None


class _UserSpec(Projection, frozen=True):
    resource_claims: tuple[_ClaimUse, ...] | None = None


class _User(Projection, frozen=True):
    metadata: ObjectMeta
    spec: _UserSpec = _UserSpec()


@dataclass(slots=True)
class _Read:
    """What is being read, and what of it was not readable."""

    client: KubeClient
    unreadable: list[str] = field(default_factory=list)

    async def every(self, resource: Resource, kind: type[T], **params: str) -> list[T]:
        """All objects of a kind. Raises KubeError."""
        return [found async for found in self._pages(resource, kind, params)]

    async def optional(self, resource: Resource, kind: type[T], **params: str) -> list[T]:
        """All objects, or none where the kind is not served or may not be read."""
        try:
            return await self.every(resource, kind, **params)
        except NotFound:
            return []
        except Forbidden:
            self.unreadable.append(f"{resource.plural} (no right to list them)")
            return []

    async def _pages(self, resource: Resource, kind: type[T], params: Mapping[str, str]) -> AsyncIterator[T]:
        token = ""
        while True:
            asked = {**params, "limit": str(PAGE), **({"continue": token} if token else {})}
            body = await self.client.get(resource.path(), params=asked, deadline=DEADLINE_S)
            page = msgspec.json.decode(body, type=_List)
            for raw in page.items:
                found = decoded(bytes(raw), kind, resource.kind, self.unreadable)
                if found is not None:
                    yield found
            await asyncio.sleep(0)  # a page of slices takes milliseconds to decode
            token = str(page.metadata.get("continue") or "")
            if not token:
                return


def decoded(raw: bytes, kind: type[T], name: str, unreadable: list[str]) -> T | None:
    """An object of that kind; one that is not what it promises is named in `unreadable`."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        unreadable.append(f"{name} {_name(raw)} ({error})")
        return None


def _name(raw: bytes) -> str:
    try:
        found = msgspec.json.decode(raw)
        return str(found["metadata"]["name"])[:253]
    except (msgspec.MsgspecError, UnicodeError, RecursionError, KeyError, TypeError):
        return "without a name"


async def world(client: KubeClient) -> World:
    """Everything that a check looks at. Raises KubeError, NoDraError."""
    read = _Read(client)
    minor = await _minor(client)
    try:
        slices = await read.every(RESOURCE_SLICES, ResourceSlice)
        classes = await read.every(DEVICE_CLASSES, DeviceClass)
        claims = await read.every(RESOURCE_CLAIMS, Claim)
    except NotFound:
        raise NoDraError(
            f"the API server (1.{minor or '?'}) does not serve resource.k8s.io/v1: it does from Kubernetes 1.34 on"
        ) from None
    nodes = await read.every(NODES, Node)
    profiles = await read.optional(ACCELERATOR_PROFILES, Profile)
    rules = await taintrules.served(client)
    pods = await _driver_pods(read, {found.spec.driver for found in slices} | _named_drivers(classes))
    return World(
        classes={found.metadata.name: found for found in classes},
        slices=tuple(slices),
        claims=tuple(claims),
        nodes={found.metadata.name: found for found in nodes},
        driver_pods=pods,
        held=held_devices(slices, profiles),
        taint_rules=tuple(await read.optional(rules, DeviceTaintRule)) if rules else None,
        unreadable=tuple(read.unreadable),
        minor=minor,
    )


async def referenced(client: KubeClient) -> set[tuple[str, str]]:
    """Namespace and name of every template that a pod names. Raises KubeError."""
    read = _Read(client)
    return {
        (pod.metadata.namespace, use.resource_claim_template_name)
        for pod in await read.every(PODS, _User)
        for use in pod.spec.resource_claims or ()
        if use.resource_claim_template_name
    }


async def _minor(client: KubeClient) -> int | None:
    found = msgspec.json.decode(await client.get("/version"), type=_Version)
    digits = "".join(char for char in found.minor if char.isdigit())
    return int(digits) if digits else None


def _named_drivers(classes: Iterable[DeviceClass]) -> set[str]:
    return {
        driver
        for found in classes
        for selector in found.spec.selectors or ()
        if selector.cel is not None
        for driver in scan.read(selector.cel.expression).drivers
    }


async def _driver_pods(read: _Read, drivers: set[str]) -> dict[str, frozenset[str]]:
    """Nodes on which a DaemonSet pod runs that is a driver's kubelet plugin, by driver."""
    found: dict[str, set[str]] = {}
    for daemon in await read.optional(DAEMON_SETS, _DaemonSet):
        driver = plugin_of(daemon.spec.template.spec, drivers)
        labels = daemon.spec.selector.get("matchLabels")
        if driver is None or not isinstance(labels, dict) or not labels:
            continue
        selector = ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
        for pod in await read.optional(PODS, _Pod, labelSelector=selector):
            if pod.metadata.namespace == daemon.metadata.namespace and pod.spec.node_name:
                found.setdefault(driver, set()).add(pod.spec.node_name)
    return {driver: frozenset(nodes) for driver, nodes in found.items()}


def plugin_of(pod_spec: dict[str, Any], drivers: set[str]) -> str | None:
    """The driver whose kubelet plugin this pod is: it mounts kubelet's plugin folder and names the driver."""
    paths = [
        str((volume.get("hostPath") or {}).get("path", "")).rstrip("/")
        for volume in pod_spec.get("volumes") or ()
        if isinstance(volume, dict)
    ]
    for driver in sorted(drivers):
        if any(path.endswith(f"/plugins/{driver}") for path in paths):
            return driver
    if not any(path.endswith(("/plugins", "/plugins_registry")) for path in paths):
        return None
    text = msgspec.json.encode(pod_spec).decode()
    named = [driver for driver in sorted(drivers) if driver in text]
    return named[0] if len(named) == 1 else None


async def template(client: KubeClient, namespace: str, name: str) -> Subject:
    """The template as the API server has it, beside what `kubectl apply` once sent. Raises KubeError."""
    try:
        body = await client.get(RESOURCE_CLAIM_TEMPLATES.path(namespace, name), deadline=DEADLINE_S)
    except NotFound:
        return Subject(f"{namespace}/{name}", None)
    raw = msgspec.json.decode(body)
    return Subject(f"{namespace}/{name}", msgspec.convert(raw, Template), raw, meant(raw))


async def dry_run(client: KubeClient, subject: Subject, namespace: str) -> Subject:
    """The same template after the API server took it in a dry run: what it drops or refuses shows. Raises KubeError."""
    if subject.meant is None or subject.template is None:
        return subject
    sent = {**subject.meant, "metadata": {"generateName": "tenure-check-", "namespace": namespace}}
    path = RESOURCE_CLAIM_TEMPLATES.path(namespace)
    try:
        body = await client.create(path, sent, params={"dryRun": "All"}, deadline=DEADLINE_S)
    except ApiError as error:
        if error.status not in _REFUSED:
            raise
        return replace(subject, refusal=error.message[:300])
    raw = msgspec.json.decode(body)
    kept = Template(subject.template.metadata, msgspec.convert(raw, Template).spec)
    return replace(subject, template=kept, stored=raw)


@dataclass(slots=True)
class Manifests:
    """What files hold: templates to check, and the cluster's objects, if they bring any."""

    templates: list[Subject] = field(default_factory=list)
    world: World = field(default_factory=World)


_KINDS: dict[str, type[Any]] = {
    "ResourceClaimTemplate": Template,
    "ResourceSlice": ResourceSlice,
    "DeviceClass": DeviceClass,
    "ResourceClaim": Claim,
    "Node": Node,
    "DeviceTaintRule": DeviceTaintRule,
}


def manifests(text: str, *, namespace: str) -> Manifests:
    """Templates and cluster objects of YAML or JSON text; other kinds are skipped. Raises BadManifestError."""
    found: dict[str, list[Any]] = {kind: [] for kind in _KINDS}
    subjects = []
    for loaded in _documents(text):
        kind = loaded.get("kind")
        if kind not in _KINDS:
            continue
        try:
            made = msgspec.convert(_named(loaded, namespace), _KINDS[kind])
        except (msgspec.ValidationError, RecursionError) as error:
            raise BadManifestError(f"{kind} {_plain_name(loaded)} cannot be read: {error}") from None
        if isinstance(made, Template):
            subjects.append(Subject(made.metadata.key, made, loaded, loaded))
        else:
            found[kind].append(made)
    return Manifests(
        subjects,
        World(
            classes={one.metadata.name: one for one in found["DeviceClass"]},
            slices=tuple(found["ResourceSlice"]),
            claims=tuple(found["ResourceClaim"]),
            nodes={one.metadata.name: one for one in found["Node"]},
            taint_rules=tuple(found["DeviceTaintRule"]),
        ),
    )


def _documents(text: str) -> Iterator[dict[str, Any]]:
    try:
        loaded = list(yaml.safe_load_all(text))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise BadManifestError(f"it is not YAML: {' '.join(str(error).split())[:200]}") from None
    for document in loaded:
        items = document.get("items") if isinstance(document, dict) else None
        for one in items if isinstance(items, list) else [document]:
            if isinstance(one, dict):
                yield one


def _named(loaded: dict[str, Any], namespace: str) -> dict[str, Any]:
    metadata = loaded.get("metadata")
    if not isinstance(metadata, dict):
        raise BadManifestError(f"a {loaded.get('kind')} has no metadata: give it a name")
    if loaded["kind"] != "ResourceClaimTemplate" or metadata.get("namespace"):
        return loaded
    return {**loaded, "metadata": {**metadata, "namespace": namespace}}


def _plain_name(loaded: dict[str, Any]) -> str:
    metadata = loaded.get("metadata")
    return str(metadata.get("name"))[:253] if isinstance(metadata, dict) else "without a name"
