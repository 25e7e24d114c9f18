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
from controllers.pool.passing import move
from controllers.pool.pods import PodView, view
from controllers.pool.shared import Shared
from controllers.pool.texts import Text
from service.kube.errors import Conflict, KubeError, NotFound
from service.kube.resources import PODS
from service.objects import Pod

log = structlog.get_logger(__name__)

_TRIES = 2

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
        self._shared = shared
        self._client = shared.client
        self._lookup = lookup
        self._pods = shared.pods
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
        """Two tries: the cache may be older than the pod, and a lost answer may hide a success.

        In each try the pod's version is taken before the promise is confirmed. Whoever revokes a promise moves the
        version afterwards, so either the confirmation fails, or the Binding does, or the revoker sees it.
        """
        known = self._pods.get(request.uid)
        pod, version = (known, known.resource_version) if known else self._seen(await self._read(request))
        for _ in range(_TRIES):
            annotations = await self._annotations(pod) if pod else {}
            posted = await self._post(request, version, annotations)
            if posted is Posted.DONE:
                return
            found = await self._after_trouble(request, posted)
            if _placed_as_asked(found, request, annotations):
                return
            if found.spec.node_name:
                raise BindRefused(Bind.REFUSED, Text.PLACED_ELSEWHERE)
            pod, version = self._seen(found)
        raise BindRefused(Bind.REFUSED, Text.CHANGED)

    def _seen(self, pod: Pod) -> tuple[PodView | None, str]:
        """The view, None for a pod that asks for no card; and the resourceVersion."""
        return view(pod, self._shared.resources), pod.metadata.resource_version

    async def _after_trouble(self, request: BindRequest, posted: Posted) -> Pod:
        """The pod as it is; a Binding whose answer was lost has landed by now, or never will."""
        if posted is Posted.UNKNOWN:
            await move(self._shared, namespace=request.namespace, name=request.name, uid=request.uid)
        return await self._read(request)

    async def _annotations(self, pod: PodView) -> dict[str, str]:
        if pod.demand is None:
            return {}
        if not pod.injected:
            raise BindRefused(Bind.NOT_INJECTED, Text.NOT_INJECTED)
        promise = await self._lookup.confirmed(pod.uid)
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
