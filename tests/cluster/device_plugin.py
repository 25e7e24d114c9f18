"""A small device plugin that does with region folders what vgpu-manager's does: make them, mount them, clean them."""

import importlib
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
from grpc_tools import protoc  # type: ignore[import-untyped]  # it has no types

RESOURCE = "tests.tenure.dev/vgpu"
FOLDER = Path("/var/lib/kubelet/device-plugins")  # compiled into kubelet
_PROTO = Path(__file__).with_name("deviceplugin.proto")


class DevicePlugin:
    """Serves one device; `container_of` names the folder of the container that is being allocated."""

    def __init__(self, root: Path, generated: Path, container_of: Callable[[], str]) -> None:
        self.calls: list[str] = []
        self._root = root
        self._container_of = container_of
        self._folder = root
        self._end = threading.Event()
        self._pb = _generate(generated)
        self._socket = FOLDER / "tenure-tests.sock"
        self._server = grpc.server(ThreadPoolExecutor(4))
        self._server.add_generic_rpc_handlers((self._handler(),))
        self._server.add_insecure_port(f"unix:{self._socket}")

    def start(self) -> None:
        """Serve and register with kubelet."""
        self._server.start()
        pb = self._pb
        with grpc.insecure_channel(f"unix:{FOLDER}/kubelet.sock") as channel:
            call = channel.unary_unary(
                "/v1beta1.Registration/Register",
                request_serializer=pb.RegisterRequest.SerializeToString,
                response_deserializer=pb.Empty.FromString,
            )
            options = pb.DevicePluginOptions(pre_start_required=True)
            call(
                pb.RegisterRequest(
                    version="v1beta1", endpoint=self._socket.name, resource_name=RESOURCE, options=options
                ),
                timeout=10,
            )

    def stop(self) -> None:
        self._end.set()
        self._server.stop(1).wait()

    def _handler(self) -> grpc.GenericRpcHandler:
        pb = self._pb

        def unary(request: Any, call: Callable[[Any], Any]) -> grpc.RpcMethodHandler:
            return grpc.unary_unary_rpc_method_handler(
                lambda asked, _: call(asked), request.FromString, lambda answer: answer.SerializeToString()
            )

        methods = {
            "GetDevicePluginOptions": unary(
                pb.Empty, lambda _: pb.DevicePluginOptions(pre_start_required=True)
            ),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(
                lambda _, __: self._devices(), pb.Empty.FromString, lambda answer: answer.SerializeToString()
            ),
            "Allocate": unary(pb.AllocateRequest, lambda _: self._allocate()),
            "PreStartContainer": unary(pb.PreStartContainerRequest, lambda _: self._pre_start()),
        }
        return grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", methods)

    def _devices(self) -> Iterator[Any]:
        yield self._pb.ListAndWatchResponse(devices=[self._pb.Device(ID="vgpu-0", health="Healthy")])
        self._end.wait()

    def _allocate(self) -> Any:
        self.calls.append("Allocate")
        self._folder = self._root / self._container_of()
        (self._folder / "config").mkdir(parents=True)
        (self._folder / "config" / "vgpu.config").write_bytes(bytes(8192))
        mounts = []
        for name in ("sm_node", "vmem_node"):
            (self._folder / name).mkdir()
            (self._folder / name).chmod(0o777)
            mounts.append(self._pb.Mount(container_path=f"/tmp/.{name}", host_path=str(self._folder / name)))
        answer = self._pb.ContainerAllocateResponse(mounts=mounts)
        return self._pb.AllocateResponse(container_responses=[answer])

    def _pre_start(self) -> Any:
        self.calls.append("PreStartContainer")
        for name in ("sm_node", "vmem_node"):
            (self._folder / name / f"{name}.config").unlink(missing_ok=True)
        return self._pb.PreStartContainerResponse()


def _generate(folder: Path) -> Any:
    arguments = ["protoc", f"-I{_PROTO.parent}", f"--python_out={folder}", _PROTO.name]
    assert protoc.main(arguments) == 0
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module("deviceplugin_pb2")
    finally:
        sys.path.remove(str(folder))
