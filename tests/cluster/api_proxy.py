"""A way to the API server on which single answers are lost or late: the network's part in a test.

Plain HTTP on loopback before the API server's TLS; the caller's token goes through. Everything else passes at once.
"""

import asyncio
import base64
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import yaml
from aiohttp import web

_HOP = {"Host", "Connection", "Transfer-Encoding", "Content-Length", "Content-Encoding"}
CHUNK = 65_536


@dataclass
class Trouble:
    """One call that meets trouble: the first POST whose path ends so.

    `before`: the call is held until `go` is set, then carried out. `answered`: whether its caller is told; only the
    answer to a call that was carried out is lost, for a conflict is everyday life and its caller tries again.
    """

    suffix: str
    before: bool = False
    answered: bool = True
    met: threading.Event = field(default_factory=threading.Event)
    go: threading.Event = field(default_factory=threading.Event)
    status: int = 0
    done: threading.Event = field(default_factory=threading.Event)


class ApiProxy:
    """The proxy; `url` once it runs. Troubles are met once each, in the order they were added."""

    def __init__(self, target: str, authority: bytes) -> None:
        self._target = target
        self._tls = ssl.create_default_context(cadata=authority.decode())
        self._troubles: list[Trouble] = []
        self._met: list[Trouble] = []
        self.url = ""

    def meet(self, trouble: Trouble) -> Trouble:
        self._troubles.append(trouble)
        return trouble

    async def run(self, ready: threading.Event, end: threading.Event) -> None:
        connector = aiohttp.TCPConnector(ssl=self._tls, limit=0)
        async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as session:

            async def handle(request: web.Request) -> web.StreamResponse:
                return await self._handle(session, request)

            app = web.Application(client_max_size=1 << 24)
            app.router.add_route("*", "/{path:.*}", handle)
            runner = web.AppRunner(app, shutdown_timeout=1)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            ready.set()
            await asyncio.to_thread(end.wait)
            for trouble in self._met:  # A test that failed let nobody go, and this would never end.
                trouble.go.set()
            await runner.cleanup()

    async def _handle(self, session: aiohttp.ClientSession, request: web.Request) -> web.StreamResponse:
        trouble = self._next(request)
        body = await request.read()
        # The call goes on when its caller gives up: it is on its way already.
        sent = asyncio.ensure_future(self._forward(session, request, body, trouble))
        return await asyncio.shield(sent)

    def _next(self, request: web.Request) -> Trouble | None:
        for trouble in self._troubles:
            if request.method == "POST" and request.path.endswith(trouble.suffix):
                self._troubles.remove(trouble)
                self._met.append(trouble)
                trouble.met.set()
                return trouble
        return None

    async def _forward(
        self, session: aiohttp.ClientSession, request: web.Request, body: bytes, trouble: Trouble | None
    ) -> web.StreamResponse:
        if trouble and trouble.before:
            await asyncio.to_thread(trouble.go.wait)
        headers = {name: value for name, value in request.headers.items() if name not in _HOP}
        url = self._target + request.raw_path
        timeout = aiohttp.ClientTimeout(total=None)
        async with session.request(
            request.method, url, data=body or None, headers=headers, timeout=timeout
        ) as up:
            if trouble and not (trouble.answered or up.ok):
                self._troubles.insert(0, trouble)
            elif trouble:
                trouble.status = up.status
                trouble.done.set()
                if not trouble.answered:
                    await up.read()
                    await asyncio.to_thread(trouble.go.wait)
            return await self._stream(request, up)

    async def _stream(self, request: web.Request, up: aiohttp.ClientResponse) -> web.StreamResponse:
        kept = {name: value for name, value in up.headers.items() if name not in _HOP}
        answer = web.StreamResponse(status=up.status, headers=kept)
        with suppress(ConnectionError, aiohttp.ClientError):
            await answer.prepare(request)
            async for piece in up.content.iter_chunked(CHUNK):
                await answer.write(piece)
            await answer.write_eof()
        return answer


@contextmanager
def api_proxy(kubeconfig: Path, folder: Path) -> Iterator[tuple[ApiProxy, Path]]:
    """A running proxy, and a copy of the kubeconfig that leads through it."""
    content = yaml.safe_load(kubeconfig.read_text())
    (cluster,) = (entry["cluster"] for entry in content["clusters"])
    proxy = ApiProxy(cluster.pop("server"), base64.b64decode(cluster.pop("certificate-authority-data")))
    ready, end = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(proxy.run(ready, end)), name="api proxy")
    thread.start()
    try:
        assert ready.wait(10)
        cluster["server"] = proxy.url
        copy = folder / "through-proxy.kubeconfig"
        copy.write_text(yaml.safe_dump(content))
        yield proxy, copy
    finally:
        end.set()
        thread.join(30)
