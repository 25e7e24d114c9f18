"""The status page in Debian's Chromium, with its own policy: it fits a phone, and its style is applied."""

import asyncio
import html
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from service.page.gather import Gatherer, Sources
from service.page.render import Template
from tests.lab.plugin import require_program
from tests.unit.page.reading import whole

# A frame of the wanted width, and what a script beside it sees in there. The page itself may run none.
FRAME = """<!doctype html><body><iframe src="page" width="{width}" height="900"></iframe><script>
const frame = document.querySelector("iframe");
frame.onload = () => {{
  const inner = frame.contentDocument, root = inner.documentElement;
  const style = (...where) => frame.contentWindow.getComputedStyle(...where);
  const all = (what) => [...inner.querySelectorAll(what)];
  document.body.innerText = JSON.stringify({{
    width: root.clientWidth,
    needed: root.scrollWidth,
    beyond: all("td, th").filter((e) => e.getBoundingClientRect().right > root.clientWidth + 1).length,
    smallest: Math.min(...all("td, th, p, li, dt, dd, a, caption").map((e) => parseFloat(style(e).fontSize))),
    font: style(inner.body).fontFamily,
    ground: style(inner.body).backgroundColor,
    sign: style(inner.querySelector(".state.free"), "::before").content,
    scripts: inner.scripts.length,
  }});
}};
</script>"""


async def rendered(sources: Sources) -> tuple[bytes, Mapping[str, str]]:
    template = Template()
    context = await Gatherer(sources).context() | {"refresh_s": None}
    return await template.render(context), template.headers


async def seen(width: int, folder: Path) -> dict[str, Any]:
    """What the frame's script writes into the document, once the page is there."""
    body, headers = await rendered(whole(cards=40, pods=300))
    policy = headers["Content-Security-Policy"].replace("frame-ancestors 'none'", "frame-ancestors 'self'")

    async def page(_: web.Request) -> web.Response:
        return web.Response(body=body, content_type="text/html", headers={"Content-Security-Policy": policy})

    async def frame(_: web.Request) -> web.Response:
        return web.Response(text=FRAME.format(width=width), content_type="text/html")

    app = web.Application()
    app.add_routes([web.get("/page", page), web.get("/", frame)])
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        return await _dumped(f"http://127.0.0.1:{runner.addresses[0][1]}/", folder)
    finally:
        await runner.cleanup()


async def _dumped(url: str, folder: Path) -> dict[str, Any]:
    browser = require_program("chromium")
    command = [browser, "--headless", "--disable-gpu", f"--user-data-dir={folder}", "--window-size=1400,1000"]
    command += ["--virtual-time-budget=5000", "--dump-dom", url]
    if os.geteuid() == 0:
        command.insert(1, "--no-sandbox")  # Chromium refuses to be root with it; the page is the test's own.
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    out, _ = await process.communicate()
    found = re.search(r"\{.*\}", html.unescape(out.decode()), re.DOTALL)
    assert found, out.decode()[:2000]
    answer: dict[str, Any] = json.loads(found[0])
    return answer


@pytest.mark.parametrize("width", [390, 1200])
async def test_the_page_fits_a_phone_and_a_desk(width: int, tmp_path: Path) -> None:
    found = await seen(width, tmp_path)
    assert found["width"] >= width - 20
    assert found["needed"] <= found["width"], "it must not be scrolled sideways"
    assert found["beyond"] == 0
    assert found["smallest"] >= 13


async def test_the_policy_lets_the_style_through_and_nothing_runs(tmp_path: Path) -> None:
    found = await seen(1200, tmp_path)
    assert "system-ui" in found["font"]
    assert found["ground"] != "rgba(0, 0, 0, 0)"
    assert "\N{WHITE CIRCLE}" in found["sign"]
    assert found["scripts"] == 0
