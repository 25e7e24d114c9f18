"""What the status page keeps out of itself, and what it keeps a browser from."""

import base64
import hashlib
import re

import msgspec

from controllers.claims.report import Check, Code, Report, Verdict, fail
from controllers.claims.watch import Seen
from controllers.occupancy.holdings import CardHoldings, Held, Holdings
from service.page.render import tamed
from tests.unit.page import crowd
from tests.unit.page.reading import Page, answering, certificates, page, serving, sources, whole
from tests.unit.pool import build
from webhook.guard import Standing

EVIL = "<script>alert(1)</script>\"'&{{ 7*7 }}</td></table>\u202e"


async def test_nothing_that_a_tenant_or_driver_chose_becomes_markup() -> None:
    # Names are DNS labels in a real cluster; the page must not rely on it.
    server = build.server(
        EVIL,
        of=[msgspec.structs.replace(build.card(EVIL), type=EVIL, reasons=(EVIL,))],
        held=[build.allocation(EVIL, EVIL, "Bound", build.ago(5))],
    )
    held = CardHoldings(EVIL, EVIL, EVIL, EVIL, EVIL, (Held(1, EVIL, EVIL, EVIL),), EVIL)
    check = Check("attributes", Verdict.FAIL, (fail(Code.HINT, EVIL, EVIL),))
    shown = sources(
        identity=EVIL,
        pool=crowd.Crowd([server], [build.pod(EVIL, gates=[EVIL])]).explainer,
        holdings=answering(Holdings((held,))),
        claims=lambda: Seen((Report(EVIL, Verdict.FAIL, (check,), 0),), EVIL),
        certificates=lambda: certificates(name=EVIL, troubles=[EVIL]),
        guard=lambda: {EVIL: Standing(in_force=False, why=EVIL)},
        leader=lambda: EVIL,
    )
    shown.lifecycle.condition(EVIL).unmet(EVIL)
    found = await page(shown)
    assert found.all("script") == []
    assert "&lt;script&gt;" in found.source
    assert "49" not in found.text.replace("{{ 7*7 }}", "")
    assert "\u202e" not in found.source
    handlers = [name for _, attributes in found.tags for name in attributes if name.startswith("on")]
    assert handlers == []
    hrefs = [link.get("href") or "" for link in found.all("a")]
    assert all(re.match(r"(#|\?|api/v1/|metrics$|readyz$)", href) for href in hrefs)


def test_control_characters_and_direction_overrides_are_taken_away() -> None:
    assert tamed("a\x00b\u202ec\u2066") == "a\\x00b\ufffdc\ufffd"
    assert tamed(5) == 5
    assert tamed("x" * 400) == "x" * 400
    assert tamed("x" * 401) == "x" * 400 + "\N{HORIZONTAL ELLIPSIS}"


async def test_the_policy_allows_the_pages_own_style_and_nothing_else() -> None:
    async with serving(whole()) as session, session.get("/") as answer:
        policy = answer.headers["Content-Security-Policy"]
        found = Page(await answer.text())
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Cache-Control"] == "no-store"
    (style,) = re.findall(r"<style>(.*?)</style>", found.source, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert policy == (
        f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    assert not any("style" in attributes for _, attributes in found.tags)
    assert not any("src" in attributes for _, attributes in found.tags)
    assert "url(" not in style
    assert "@import" not in style


async def test_it_refreshes_itself_without_a_script_until_the_reader_stops_it() -> None:
    found = await page(whole())
    assert {"http-equiv": "refresh", "content": "10"} in found.all("meta")
    still = await page(whole(), "/?refresh=off")
    assert all(meta.get("http-equiv") != "refresh" for meta in still.all("meta"))
    assert "Refresh by itself" in still.text


async def test_links_stay_behind_the_prefix_of_a_proxy() -> None:
    found = await page(whole())
    assert not any((link.get("href") or "").startswith("/") for link in found.all("a"))
