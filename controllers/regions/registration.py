"""How kubelet gets to know the driver: it finds a socket in its plugins_registry folder and asks who is there.

kubelet, pkg/kubelet/pluginmanager: it watches that folder, asks GetInfo, registers the driver behind `endpoint`, tells
the outcome, and does all of it again after its own restart.
"""

import asyncio
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio
import structlog

from controllers.regions.csi import unary
from controllers.regions.wire import registration_pb2 as registration
from service import names

log = structlog.get_logger(__name__)

# Bytes of a path that fit into a unix socket's address with its end (unix(7), sun_path).
LONGEST_SOCKET_PATH: Final = 107
# Seconds that calls in flight get when a socket closes.
GRACE_S: Final = 5.0


class Socket:
    """A gRPC server on a unix socket that only root can reach."""

    def __init__(self, path: Path, handlers: list[grpc.GenericRpcHandler]) -> None:
        self.path = path
        self._handlers = handlers
        self._server: grpc.aio.Server | None = None
        self._file: tuple[int, int] | None = None

    async def open(self) -> None:
        """Listen, in place of whatever socket is there. Raises OSError."""
        draft = self.path.with_name(f".{secrets.token_hex(4)}.sock")
        await asyncio.to_thread(self._prepare, draft)
        server = grpc.aio.server()
        server.add_generic_rpc_handlers(tuple(self._handlers))
        server.add_insecure_port(f"unix:{draft}")
        await server.start()
        self._server = server
        # grpc removes the path that it was given when it stops, whoever has a socket there by then: not this one.
        await asyncio.to_thread(draft.rename, self.path)
        self._file = await asyncio.to_thread(self._identity)

    async def close(self) -> None:
        """Stop listening. The socket of an agent that took over meanwhile is left alone."""
        if self._server is not None:
            if await self.in_place():
                await asyncio.to_thread(self.path.unlink, missing_ok=True)
            await self._server.stop(GRACE_S)
            self._server = None

    async def in_place(self) -> bool:
        """True while the path is this server's socket: kubelet's folders may be wiped under us."""
        return self._file is not None and await asyncio.to_thread(self._identity) == self._file

    def _prepare(self, draft: Path) -> None:
        if max(len(os.fsencode(path)) for path in (self.path, draft)) > LONGEST_SOCKET_PATH:
            raise OSError(f"{self.path} is longer than a socket's path can be ({LONGEST_SOCKET_PATH} bytes)")
        self.path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)

    def _identity(self) -> tuple[int, int] | None:
        try:
            status = self.path.lstat()
        except FileNotFoundError:
            return None
        return status.st_dev, status.st_ino


class Registration:
    """Answers kubelet's questions; `changed` hears whether the driver is registered, and why not."""

    REFUSED: Final = "kubelet refused the driver"

    def __init__(self, endpoint: Path, changed: Callable[[str | None], None]) -> None:
        self._endpoint = endpoint
        self._changed = changed

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        """The service."""
        methods = {
            "GetInfo": unary(registration.InfoRequest, self.info),
            "NotifyRegistrationStatus": unary(registration.RegistrationStatus, self.notify),
        }
        return [grpc.method_handlers_generic_handler("pluginregistration.Registration", methods)]

    async def info(self, _: registration.InfoRequest, __: Any) -> registration.PluginInfo:
        """What is behind this socket."""
        return registration.PluginInfo(
            type="CSIPlugin",
            name=names.CSI_DRIVER,
            endpoint=str(self._endpoint),
            supported_versions=["1.0.0"],
        )

    async def notify(
        self, status: registration.RegistrationStatus, _: Any
    ) -> registration.RegistrationStatusResponse:
        """Kubelet says how the registration went."""
        if status.plugin_registered:
            log.info("driver registered with kubelet")
            self._changed(None)
        else:
            log.error("kubelet refused the driver", error=status.error)
            self._changed(f"{self.REFUSED}: {status.error}")
        return registration.RegistrationStatusResponse()
