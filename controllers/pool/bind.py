"""Decide and bind in one write (design decision 3): the Binding carries the allocation's annotations.

The API server merges them into the pod in the write that sets its node (verified row 2), so a pod without a node
never carries an allocation. An answer that nobody heard is not a failure: the pod is read again.
"""

from dataclasses import dataclass
from enum import Enum

import msgspec
import structlog

from controllers.pool import grant
from controllers.pool.book import Promise
from controllers.pool.lookup import Lookup
from controllers.pool.metrics import Bind
from controllers.pool.pods import PodView, view
from controllers.pool.shared import Shared
from controllers.pool.texts import Text
from service import names
from service.kube.client import PatchKind
from service.kube.errors import Conflict, KubeError, NotFound
from service.kube.resources import PODS
from service.objects import Pod

log = structlog.get_logger(__name__)

_decode = msgspec.json.Decoder(Pod).decode


@dataclass(frozen=True, slots=True)
class BindRequest:
    """What the scheduler asks: this pod to this node."""

    namespace: str
    name: str
    uid: str
    node: str

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"


class Posted(Enum):
    """What is known of a Binding after the call."""

    DONE = "done"
    CONFLICT = "conflict"
    UNKNOWN = "unknown"


class BindRefused(Exception):  # noqa: N818 - a refusal with a reason, not a fault
    """The pod is not bound; the text is constant per cause, because a changing one wakes the scheduler."""

    def __init__(self, outcome: Bind, text: str) -> None:
        super().__init__(text)
        self.outcome = outcome


class Binder:
    """Posts Bindings. Any replica may do it: the promise and the preconditions make it safe."""

    def __init__(self, shared: Shared, lookup: Lookup) -> None:
        self._client = shared.client
        self._lookup = lookup
        self._pods = shared.pods
        self._resources = shared.resources
        self._metrics = shared.metrics

    async def bind(self, request: BindRequest) -> str:
        """Bind; the answer is "" or the sentence for the scheduler. Never raises for what a cluster can do."""
        try:
            with self._metrics.bind_seconds.time():
                await self._bind(request)
        except BindRefused as refused:
            self._metrics.bind(refused.outcome)
            log.info("bind refused", pod=request.key, node=request.node, reason=str(refused))
            return str(refused)
        except KubeError as error:
            self._metrics.bind(Bind.UNKNOWN)
            log.warning("bind failed", pod=request.key, node=request.node, error=str(error))
            return Text.API_SERVER
        self._metrics.bind(Bind.BOUND)
        log.info("pod bound", pod=request.key, node=request.node)
        return ""

    async def _bind(self, request: BindRequest) -> None:
        pod, version = await self._pod(request)
        annotations = await self._annotations(pod) if pod else {}
        posted = await self._post(request, version, annotations)
        if posted is not Posted.DONE:
            await self._second_try(request, annotations, posted)

    async def _pod(self, request: BindRequest) -> tuple[PodView | None, str]:
        """The pod from the cache, else read; None for a pod that asks for no card, with its resourceVersion."""
        if known := self._pods.get(request.uid):
            return known, known.resource_version
        pod = await self._read(request)
        return view(pod, self._resources), pod.metadata.resource_version

    async def _annotations(self, pod: PodView) -> dict[str, str]:
        if pod.demand is None:
            return {}
        if not pod.injected:
            raise BindRefused(Bind.NOT_INJECTED, Text.NOT_INJECTED)
        promise = await self._lookup.promise(pod.uid)
        if promise is None:
            raise BindRefused(Bind.NO_PROMISE, Text.NO_PROMISE)
        return _written(promise, pod)

    async def _post(self, request: BindRequest, version: str, annotations: dict[str, str]) -> Posted:
        """One Binding with both preconditions."""
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {
                "name": request.name,
                "namespace": request.namespace,
                "uid": request.uid,
                "resourceVersion": version,
                "annotations": annotations,
            },
            "target": {"apiVersion": "v1", "kind": "Node", "name": request.node},
        }
        path = PODS.path(request.namespace, request.name, subresource="binding")
        try:
            await self._client.create(path, body)
        except NotFound:
            raise BindRefused(Bind.POD_GONE, Text.POD_GONE) from None
        except Conflict:
            return Posted.CONFLICT
        except KubeError as error:
            if not error.outcome_unknown:
                raise
            log.warning("the answer to a Binding was lost", pod=request.key, error=str(error))
            return Posted.UNKNOWN
        return Posted.DONE

    async def _second_try(self, request: BindRequest, annotations: dict[str, str], posted: Posted) -> None:
        """Look, and try once more with what was seen.

        A first Binding that may still be under way is made to fail before that, or its success is seen here.
        """
        pod = await self._read(request)
        if posted is Posted.UNKNOWN and not pod.spec.node_name:
            await self._make_late_write_fail(request)
            pod = await self._read(request)
        if _placed_as_asked(pod, request, annotations):
            return
        if pod.spec.node_name:
            raise BindRefused(Bind.REFUSED, Text.PLACED_ELSEWHERE)
        if await self._post(request, pod.metadata.resource_version, annotations) is Posted.DONE:
            return
        if not _placed_as_asked(await self._read(request), request, annotations):
            raise BindRefused(Bind.REFUSED, Text.CHANGED)

    async def _make_late_write_fail(self, request: BindRequest) -> None:
        """Move the pod's resourceVersion: from here on, an older Binding that arrives late is refused."""
        body = {"metadata": {"uid": request.uid, "annotations": {names.WAKE: request.node}}}
        try:
            await self._client.patch(PODS.path(request.namespace, request.name), body, kind=PatchKind.MERGE)
        except (NotFound, Conflict):
            raise BindRefused(Bind.POD_GONE, Text.POD_GONE) from None

    async def _read(self, request: BindRequest) -> Pod:
        try:
            pod = _decode(await self._client.get(PODS.path(request.namespace, request.name)))
        except NotFound:
            raise BindRefused(Bind.POD_GONE, Text.POD_GONE) from None
        if pod.metadata.uid != request.uid:
            raise BindRefused(Bind.POD_GONE, Text.POD_GONE)
        return pod


def _placed_as_asked(pod: Pod, request: BindRequest, annotations: dict[str, str]) -> bool:
    return pod.spec.node_name == request.node and annotations.items() <= pod.metadata.annotations.items()


def _written(promise: Promise, pod: PodView) -> dict[str, str]:
    assert pod.demand is not None  # noqa: S101 - the caller asked
    try:
        return grant.annotations(promise.server.name, pod.demand, promise.cards)
    except grant.GrantError:
        raise BindRefused(Bind.NO_PROMISE, Text.NO_PROMISE) from None
