"""`/` of the ops listener: the page for people."""

import asyncio
import time
from typing import Final

from aiohttp import web

from service.page.gather import Gatherer, Sources
from service.page.render import Template

# Seconds between two refreshes of a browser.
REFRESH_S: Final = 10
# Seconds for which a rendered page is given to everybody who asks: however many look, the loop renders once.
FRESH_S: Final = 1.0


def page_routes(sources: Sources) -> list[web.RouteDef]:
    """The page; with `?refresh=off` it stays as it is until the reader asks again."""
    page = _Page(sources)
    return [web.get("/", page.answer)]


class _Page:
    def __init__(self, sources: Sources) -> None:
        self._gatherer = Gatherer(sources)
        self._template = Template()
        self._rendering = asyncio.Lock()
        self._rendered: dict[bool, tuple[float, bytes]] = {}

    async def answer(self, request: web.Request) -> web.Response:
        refresh = request.query.get("refresh") != "off"
        async with self._rendering:
            at, body = self._rendered.get(refresh, (float("-inf"), b""))
            if time.monotonic() - at > FRESH_S:
                context = await self._gatherer.context() | {"refresh_s": REFRESH_S if refresh else None}
                body = await self._template.render(context)
                self._rendered[refresh] = (time.monotonic(), body)
        return web.Response(
            body=body, content_type="text/html", charset="utf-8", headers=self._template.headers
        )
