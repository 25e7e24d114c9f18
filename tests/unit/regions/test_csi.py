import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import grpc
import grpc.aio
import pytest

from controllers.regions.csi import Driver, UnavailableError
from controllers.regions.metrics import RegionMetrics
from controllers.regions.names import ContainerId, Owner
from controllers.regions.registration import LONGEST_SOCKET_PATH, Registration, Socket
from controllers.regions.safefs import Reason, RefusedError
from controllers.regions.volumes import BadRequestError, ConflictError
from controllers.regions.wire import csi_pb2 as csi
from controllers.regions.wire import registration_pb2 as registration
from service import names
from service.metrics import MetricSet
from tests.unit.regions.conftest import UID

CONTEXT = {
    "container": "main",
    "csi.storage.k8s.io/ephemeral": "true",
    "csi.storage.k8s.io/pod.uid": UID,
    "csi.storage.k8s.io/pod.name": "trainer-0",
    "csi.storage.k8s.io/pod.namespace": "tenant",
    "csi.storage.k8s.io/serviceAccount.name": "default",
}
MOUNT = csi.VolumeCapability(mount=csi.VolumeCapability.MountVolume())
BLOCK = csi.VolumeCapability(block=csi.VolumeCapability.BlockVolume())


class Kubelet:
    """What kubelet does: it calls methods on a socket."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel

    async def call(self, method: str, request: Any, answer: type[Any]) -> Any:
        call = self._channel.unary_unary(
            method,
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )
        return await call(request, timeout=5)

    async def publish(self, **fields: Any) -> None:
        fields = {
            "volume_id": "v",
            "target_path": "/t",
            "volume_capability": MOUNT,
            "volume_context": CONTEXT,
        } | fields
        request = cast(Any, csi.NodePublishVolumeRequest)(**fields)
        await self.call("/csi.v1.Node/NodePublishVolume", request, csi.NodePublishVolumeResponse)

    async def unpublish(self, **fields: str) -> None:
        request = csi.NodeUnpublishVolumeRequest(**{"volume_id": "v", "target_path": "/t"} | fields)
        await self.call("/csi.v1.Node/NodeUnpublishVolume", request, csi.NodeUnpublishVolumeResponse)


class Work:
    """What the driver has done, and what it meets."""

    def __init__(self) -> None:
        self.done: list[object] = []
        self.error: Exception | None = None

    async def publish(self, owner: Owner, target: str) -> None:
        if self.error is not None:
            raise self.error
        self.done.append((owner, target))

    async def unpublish(self, target: str) -> None:
        self.done.append(target)


@pytest.fixture(scope="module", autouse=True)
def poller() -> None:
    """Keep grpc's poller thread: with the last of its objects grpc joins it, wherever that object happens to die."""

    async def keep() -> None:
        grpc.aio.init_grpc_aio()

    # It asks for the current loop, and whatever test ran before may have left none.
    with asyncio.Runner() as runner:
        runner.run(keep())


@pytest.fixture
def work() -> Work:
    return Work()


@pytest.fixture
def metrics() -> MetricSet:
    return MetricSet()


@pytest.fixture
async def kubelet(tmp_path: Path, work: Work, metrics: MetricSet) -> AsyncIterator[Kubelet]:
    counted = RegionMetrics(metrics, tuple)
    driver = Driver("node-1", publish=work.publish, unpublish=work.unpublish, metrics=counted)
    socket = Socket(tmp_path / "csi.sock", driver.handlers())
    await socket.open()
    async with grpc.aio.insecure_channel(f"unix:{tmp_path}/csi.sock") as channel:
        yield Kubelet(channel)
    await socket.close()
    assert not (tmp_path / "csi.sock").exists()


async def code_of(call: Any) -> tuple[str, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code().name, caught.value.details() or ""


async def test_the_driver_says_who_it_is_on_which_node(kubelet: Kubelet) -> None:
    info = await kubelet.call(
        "/csi.v1.Identity/GetPluginInfo", csi.GetPluginInfoRequest(), csi.GetPluginInfoResponse
    )
    node = await kubelet.call("/csi.v1.Node/NodeGetInfo", csi.NodeGetInfoRequest(), csi.NodeGetInfoResponse)
    probe = await kubelet.call("/csi.v1.Identity/Probe", csi.ProbeRequest(), csi.ProbeResponse)
    assert (info.name, node.node_id, probe.ready.value) == (names.CSI_DRIVER, "node-1", True)


async def test_a_volume_of_a_container_is_published_for_its_owner(kubelet: Kubelet, work: Work) -> None:
    await kubelet.publish()
    assert work.done == [(Owner(ContainerId(UID, "main"), "tenant", "trainer-0"), "/t")]


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"volume_id": ""}, "required"),
        ({"target_path": ""}, "required"),
        ({"volume_capability": None}, "volume_capability"),
        ({"volume_capability": BLOCK}, "not a block device"),
        ({"readonly": True}, "readOnly"),
        ({"volume_context": {**CONTEXT, "csi.storage.k8s.io/ephemeral": "false"}}, "no persistent volumes"),
        (
            {"volume_context": {k: v for k, v in CONTEXT.items() if "ephemeral" not in k}},
            "no persistent volumes",
        ),
        ({"volume_context": {**CONTEXT, "root": "/etc"}}, "unknown volumeAttributes root"),
        ({"volume_context": {**CONTEXT, "container": "../../etc"}}, "must name a container"),
        ({"volume_context": {**CONTEXT, "container": "a/b"}}, "must name a container"),
        ({"volume_context": {**CONTEXT, "container": ""}}, "must name a container"),
        ({"volume_context": {**CONTEXT, "csi.storage.k8s.io/pod.uid": "../x"}}, "must name a container"),
        ({"volume_context": {k: v for k, v in CONTEXT.items() if "uid" not in k}}, "podInfoOnMount"),
    ],
)
async def test_a_request_that_cannot_be_meant_is_an_invalid_argument(
    kubelet: Kubelet, work: Work, fields: dict[str, Any], word: str
) -> None:
    code, sentence = await code_of(kubelet.publish(**fields))
    assert code == "INVALID_ARGUMENT"
    assert word in sentence
    assert work.done == []


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (BadRequestError("outside"), "INVALID_ARGUMENT"),
        (ConflictError("other"), "ALREADY_EXISTS"),
        (RefusedError(Reason.LINK, "a link"), "FAILED_PRECONDITION"),
        (UnavailableError("leaving"), "UNAVAILABLE"),
        (TimeoutError(), "DEADLINE_EXCEEDED"),
        (OSError(28, "No space left on device"), "RESOURCE_EXHAUSTED"),
        (OSError(5, "Input/output error"), "INTERNAL"),
    ],
)
async def test_each_failure_has_its_code_and_is_counted(
    kubelet: Kubelet, work: Work, metrics: MetricSet, error: Exception, code: str
) -> None:
    work.error = error
    assert (await code_of(kubelet.publish()))[0] == code
    labels = {"method": "NodePublishVolume", "code": code}
    assert metrics.registry.get_sample_value("tenure_csi_calls_total", labels) == 1


async def test_a_volume_is_unpublished_by_its_target(kubelet: Kubelet, work: Work) -> None:
    await kubelet.unpublish()
    assert work.done == ["/t"]
    assert (await code_of(kubelet.unpublish(volume_id="")))[0] == "INVALID_ARGUMENT"


async def test_kubelet_is_told_where_the_driver_is_and_tells_how_it_went(tmp_path: Path) -> None:
    heard: list[str | None] = []
    socket = Socket(tmp_path / "reg.sock", Registration(tmp_path / "csi.sock", heard.append).handlers())
    await socket.open()
    async with grpc.aio.insecure_channel(f"unix:{tmp_path}/reg.sock") as channel:
        kubelet = Kubelet(channel)
        service = "/pluginregistration.Registration"
        info = await kubelet.call(f"{service}/GetInfo", registration.InfoRequest(), registration.PluginInfo)
        for status in (
            registration.RegistrationStatus(plugin_registered=True),
            registration.RegistrationStatus(plugin_registered=False, error="no such version"),
        ):
            await kubelet.call(
                f"{service}/NotifyRegistrationStatus", status, registration.RegistrationStatusResponse
            )
    await socket.close()
    assert (info.type, info.name, info.endpoint) == ("CSIPlugin", names.CSI_DRIVER, f"{tmp_path}/csi.sock")
    assert heard == [None, "kubelet refused the driver: no such version"]


async def test_a_socket_that_was_wiped_or_taken_over_is_noticed_and_left_alone(tmp_path: Path) -> None:
    first = Socket(tmp_path / "csi.sock", [])
    await first.open()
    assert await first.in_place()
    second = Socket(tmp_path / "csi.sock", [])
    await second.open()
    assert not await first.in_place()
    await first.close()
    assert await second.in_place()
    await second.close()


async def test_a_path_too_long_for_a_socket_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(
        OSError, match=f"longer than a socket's path can be \\({LONGEST_SOCKET_PATH} bytes\\)"
    ):
        await Socket(tmp_path / ("x" * 120), []).open()
