"""The CSI driver: kubelet's two sockets, and which answer each call deserves.

CSI specification 1.x, Identity and Node services, no controller: volumes are inline ("ephemeral") ones of a pod, made
when kubelet asks and gone when it asks again. kubelet, pkg/volume/csi, hands over whose volume it is in the volume
context (podInfoOnMount).
"""

import errno
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import grpc
import grpc.aio
import structlog
from google.protobuf.message import Message

from controllers.regions.metrics import Code, Method, RegionMetrics
from controllers.regions.names import ContainerId, Owner
from controllers.regions.safefs import RefusedError
from controllers.regions.volumes import BadRequestError, ConflictError
from controllers.regions.wire import csi_pb2 as csi
from service import names

log = structlog.get_logger(__name__)

VENDOR_VERSION: Final = "1"
CONTAINER_ATTRIBUTE: Final = "container"
_CONTEXT_PREFIX: Final = "csi.storage.k8s.io/"

Publish = Callable[[Owner, str], Awaitable[None]]
Unpublish = Callable[[str], Awaitable[None]]


class UnavailableError(Exception):
    """The driver does not publish now; kubelet tries again."""


def owner_of(request: csi.NodePublishVolumeRequest) -> Owner:
    """Whose volume is asked for. Raises BadRequestError, the specification's "unsupported field value" included."""
    context = dict(request.volume_context)
    if not request.volume_id or not request.target_path:
        raise BadRequestError("volume_id and target_path are required")
    if not request.HasField("volume_capability"):
        raise BadRequestError("volume_capability is required")
    if request.volume_capability.HasField("block"):
        raise BadRequestError("a region volume is a folder, not a block device")
    if request.readonly:
        raise BadRequestError("processes write their regions: remove readOnly from the volume")
    if context.get(_CONTEXT_PREFIX + "ephemeral") != "true":
        raise BadRequestError(
            f"{names.CSI_DRIVER} serves inline volumes of a pod only, no persistent volumes"
        )
    unknown = sorted(
        key for key in context if key != CONTAINER_ATTRIBUTE and not key.startswith(_CONTEXT_PREFIX)
    )
    if unknown:
        raise BadRequestError(
            f"unknown volumeAttributes {', '.join(unknown)[:200]}: there is only {CONTAINER_ATTRIBUTE}"
        )
    return _owner(context)


def _owner(context: Mapping[str, str]) -> Owner:
    try:
        container = ContainerId(
            context.get(_CONTEXT_PREFIX + "pod.uid", ""), context.get(CONTAINER_ATTRIBUTE, "")
        )
    except ValueError:
        raise BadRequestError(
            f"volumeAttributes.{CONTAINER_ATTRIBUTE} must name a container of the pod, and the CSIDriver object must "
            "have podInfoOnMount: true"
        ) from None
    return Owner(
        container,
        context.get(_CONTEXT_PREFIX + "pod.namespace", ""),
        context.get(_CONTEXT_PREFIX + "pod.name", ""),
    )


class Driver:
    """Answers kubelet. `publish` and `unpublish` do the work; `ready` says whether the driver may be used."""

    def __init__(self, node: str, *, publish: Publish, unpublish: Unpublish, metrics: RegionMetrics) -> None:
        self._node = node
        self._publish = publish
        self._unpublish = unpublish
        self._metrics = metrics

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        """The two services."""
        identity = {
            "GetPluginInfo": unary(csi.GetPluginInfoRequest, self.plugin_info),
            "GetPluginCapabilities": unary(csi.GetPluginCapabilitiesRequest, self.plugin_capabilities),
            "Probe": unary(csi.ProbeRequest, self.probe),
        }
        node = {
            "NodeGetInfo": unary(csi.NodeGetInfoRequest, self.node_info),
            "NodeGetCapabilities": unary(csi.NodeGetCapabilitiesRequest, self.node_capabilities),
            Method.PUBLISH.value: unary(csi.NodePublishVolumeRequest, self.node_publish),
            Method.UNPUBLISH.value: unary(csi.NodeUnpublishVolumeRequest, self.node_unpublish),
        }
        return [
            grpc.method_handlers_generic_handler("csi.v1.Identity", identity),
            grpc.method_handlers_generic_handler("csi.v1.Node", node),
        ]

    async def plugin_info(self, _: csi.GetPluginInfoRequest, __: Any) -> csi.GetPluginInfoResponse:
        """Who this is."""
        return csi.GetPluginInfoResponse(name=names.CSI_DRIVER, vendor_version=VENDOR_VERSION)

    async def plugin_capabilities(
        self, _: csi.GetPluginCapabilitiesRequest, __: Any
    ) -> csi.GetPluginCapabilitiesResponse:
        """None: no controller service, and no topology."""
        return csi.GetPluginCapabilitiesResponse()

    async def probe(self, _: csi.ProbeRequest, __: Any) -> csi.ProbeResponse:
        """Ready: the sockets open only after the first cleaning."""
        return csi.ProbeResponse(ready=csi.BoolValue(value=True))

    async def node_info(self, _: csi.NodeGetInfoRequest, __: Any) -> csi.NodeGetInfoResponse:
        """The node's name."""
        return csi.NodeGetInfoResponse(node_id=self._node)

    async def node_capabilities(
        self, _: csi.NodeGetCapabilitiesRequest, __: Any
    ) -> csi.NodeGetCapabilitiesResponse:
        """None: nothing is staged or expanded."""
        return csi.NodeGetCapabilitiesResponse()

    async def node_publish(
        self, request: csi.NodePublishVolumeRequest, context: Any
    ) -> csi.NodePublishVolumeResponse:
        """Make the folders and show them."""

        async def work() -> None:
            await self._publish(owner_of(request), request.target_path)

        await self._answer(Method.PUBLISH, request.target_path, context, work)
        return csi.NodePublishVolumeResponse()

    async def node_unpublish(
        self, request: csi.NodeUnpublishVolumeRequest, context: Any
    ) -> csi.NodeUnpublishVolumeResponse:
        """Take the volume away."""

        async def work() -> None:
            if not request.volume_id or not request.target_path:
                raise BadRequestError("volume_id and target_path are required")
            await self._unpublish(request.target_path)

        await self._answer(Method.UNPUBLISH, request.target_path, context, work)
        return csi.NodeUnpublishVolumeResponse()

    async def _answer(
        self, method: Method, target: str, context: Any, work: Callable[[], Awaitable[None]]
    ) -> None:
        """Do the work and count it; end the call with the right code when it fails."""
        began = time.perf_counter()
        code, sentence = await _outcome(work)
        self._metrics.call_seconds.labels(method.value).observe(time.perf_counter() - began)
        self._metrics.calls.labels(method.value, code.value).inc()
        if code is not Code.OK:
            log.warning(
                "volume call failed", method=method.value, target=target, code=code.value, error=sentence
            )
            await context.abort(grpc.StatusCode[code.name], sentence)
        log.info("volume call", method=method.value, target=target)


async def _outcome(work: Callable[[], Awaitable[None]]) -> tuple[Code, str]:
    try:
        await work()
    except BadRequestError as error:
        return Code.INVALID_ARGUMENT, str(error)
    except ConflictError as error:
        return Code.ALREADY_EXISTS, str(error)
    except RefusedError as error:
        return Code.FAILED_PRECONDITION, str(error)
    except UnavailableError as error:
        return Code.UNAVAILABLE, str(error)
    except TimeoutError:
        return Code.DEADLINE_EXCEEDED, "the node's file system did not answer in time"
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM)
        return Code.RESOURCE_EXHAUSTED if full else Code.INTERNAL, str(error)
    return Code.OK, ""


def unary(request: type[Message], call: Callable[..., Any]) -> grpc.RpcMethodHandler:
    """One method: a message in, a message out."""
    return grpc.unary_unary_rpc_method_handler(
        call,
        request_deserializer=request.FromString,
        response_serializer=lambda answer: answer.SerializeToString(),
    )
