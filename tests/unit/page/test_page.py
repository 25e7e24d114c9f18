"""The status page as a browser gets it, without a cluster: over HTTP from the real routes."""

import base64
import hashlib
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from html.parser import HTMLParser
from typing import Any

import msgspec
import pytest
from aiohttp import ClientSession

from controllers.claims.report import Check, Code, Report, Verdict, fail
from controllers.claims.watch import Seen
from controllers.occupancy.holdings import CardHoldings, Held, Holdings
from service import api
from service.http import Address, HttpMetrics, Listener, Name
from service.kube.errors import Forbidden
from service.lifecycle import Lifecycle, Phase
from service.metrics import MetricSet
from service.page import view
from service.page.gather import Sources
from service.page.render import grouped, tamed
from service.page.routes import page_routes
from tests.unit.page import crowd
from tests.unit.pool import build
from webhook.guard import Standing

EVIL = "<script>alert(1)</script>\"'&{{ 7*7 }}</td></table>\u202e"
VOID = {"meta", "rect", "link", "br"}


def sources(**more: Any) -> Sources:
    lifecycle = Lifecycle(MetricSet(), drain_s=0)
    lifecycle.phase = Phase.READY
    return replace(Sources(lifecycle=lifecycle, identity="replica-1", now=lambda: build.NOW), **more)


def whole(cards: int = 16, pods: int = 30) -> Sources:
    return sources(
        pool=crowd.Crowd(crowd.servers(cards), crowd.pods(pods)).explainer,
        holdings=answering(crowd.holdings(10)),
        claims=lambda: Seen(crowd.reports(4)),
        certificates=certificates,
        guard=lambda: {"tenure-gate": Standing(in_force=True, why="")},
        leader=lambda: "replica-1",
    )


def answering(found: Holdings) -> Callable[[], Any]:
    async def ask() -> Holdings:
        return found

    return ask


def certificates(
    *,
    name: str = "tenure-webhook.tenure-system.svc",
    distrust: str | None = None,
    troubles: Sequence[str] = (),
) -> api.Certificates:
    ends = (build.NOW + timedelta(days=4, hours=3)).isoformat()
    return api.Certificates((api.Certificate("webhook", name, ends),), distrust, tuple(troubles))


@asynccontextmanager
async def serving(shown: Sources) -> AsyncIterator[ClientSession]:
    address = Address("127.0.0.1", 0, "http.ops")
    metrics = HttpMetrics(MetricSet())
    listener = Listener(Name.OPS, address, lifecycle=shown.lifecycle, metrics=metrics, max_body=1024)
    await listener.open(page_routes(shown))
    try:
        async with ClientSession(f"http://127.0.0.1:{listener.port}") as session:
            yield session
    finally:
        await listener.close()


async def page(shown: Sources, path: str = "/") -> "Page":
    async with serving(shown) as session, session.get(path) as answer:
        assert answer.status == 200
        return Page(await answer.text())


class Page(HTMLParser):
    """The document as a tree of tags; fails on tags that are not closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.source = text
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self._open:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


# What it says


async def test_the_summary_comes_first_and_counts_every_card_once() -> None:
    found = await page(whole(cards=16, pods=30))
    summary = found.text[: found.text.index("in the order of the queue")]
    for fact in (
        "cards free 4",
        "promised 2",
        "held by pods 6",
        "draining 2",
        "kept out 2",
        "waiting pods 30",
    ):
        assert fact in summary
    assert "4 of 16 cards free" in found.text


async def test_waiting_pods_are_grouped_by_what_explain_says_with_the_servers_answers() -> None:
    known = crowd.Crowd(
        crowd.servers(16), [build.pod("first"), build.pod("second"), build.pod("held", gates=["x/y"])]
    )
    told = known.explainer().explain("ns", "first")
    found = await page(sources(pool=known.explainer))
    assert (
        f"{told.sentence} 2 servers: {told.servers[0].sentence} First: ns/first , ns/second 2" in found.text
    )
    assert known.explainer().explain("ns", "held").sentence in found.text


async def test_a_cards_row_names_its_holder_and_why_it_is_not_offered() -> None:
    odd = msgspec.structs.replace(build.card("GPU-1", index=1, offered=False), reasons=("HostHeld",))
    server = build.server(
        of=[build.card(), odd], held=[build.allocation("GPU-0", "train", "Bound", build.ago(7200))]
    )
    found = await page(sources(pool=crowd.Crowd([server]).explainer))
    assert "0: GPU-0 NVIDIA X, 1000 MiB, NUMA 0 held ns/train since 2 h" in found.text
    assert "1: GPU-1 NVIDIA X, 1000 MiB, NUMA 0 unknown HostHeld" in found.text


async def test_what_needs_attention_stands_at_the_top() -> None:
    shown = whole()
    shown.lifecycle.condition("pods synced").unmet("pods are not listed yet")
    found = await page(
        replace(
            shown,
            certificates=lambda: certificates(troubles=["the Secret cannot be read"]),
            guard=lambda: {"tenure-gate": Standing(in_force=False, why="its binding is missing")},
        )
    )
    top = found.text[: found.text.index("tenure explain")]
    for trouble in (
        "pods synced: pods are not listed yet",
        "certificates: the Secret cannot be read",
        "guard policy tenure-gate is not in force: its binding is missing",
        "2 cards are held by processes outside Kubernetes",
        "claim template team-0/npu-rdma fails a check",
    ):
        assert trouble in top
    assert "Nothing needs attention" not in found.text


async def test_it_says_so_when_nothing_needs_attention() -> None:
    found = await page(sources())
    assert "Nothing needs attention." in found.text
    assert "ready" in found.text


async def test_a_pool_that_is_not_fully_read_is_not_shown_as_empty() -> None:
    shown = replace(whole(), incomplete=lambda: "pods are not listed yet")
    found = await page(shown)
    assert "cards free" not in found.text
    assert "No pod waits" not in found.text


async def test_a_follower_says_who_leads_instead_of_showing_no_claims() -> None:
    found = await page(sources(claims=lambda: None, leader=lambda: "replica-2"))
    assert "replica-2 checks them; its page shows what it found." in found.text


async def test_unreadable_holders_are_not_shown_as_no_holders() -> None:
    async def refused() -> Holdings:
        raise Forbidden(403, reason="Forbidden", message="acceleratorprofiles is forbidden")

    found = await page(sources(holdings=refused))
    assert "Not known:" in found.text
    assert "acceleratorprofiles is forbidden" in found.text


async def test_a_node_agents_page_has_only_what_it_knows() -> None:
    found = await page(sources())
    assert found.all("table") == []
    assert found.all("nav") == []
    assert {"metrics", "readyz"} <= {link.get("href") for link in found.all("a")}


# What it bounds


async def test_everything_is_bounded_and_what_is_left_out_is_counted() -> None:
    shown = sources(
        pool=crowd.Crowd(crowd.servers(800), many_reasons(100)).explainer,
        holdings=answering(crowd.holdings(300)),
        claims=lambda: Seen(crowd.reports(90)),
    )
    found = await page(shown)
    assert "and 200 more cards: tenure pool lists all" in found.text
    assert f"and {100 - view.MOST_GROUPS} more pods for other reasons" in found.text
    assert "and 100 more cards" in found.text
    assert "and 40 more templates" in found.text
    assert (
        "and 11 more" in found.text
    )  # 30 templates fail and 60 cards are held outside Kubernetes: 31 troubles
    assert len(found.source) < 400_000


def many_reasons(count: int) -> list[Any]:
    """Pods that are each held by a gate of another name, as a tenant may do it."""
    return [build.pod(f"pod-{n:03}", gates=[f"example.com/{n}"]) for n in range(count)]


async def test_a_text_is_cut_and_a_long_list_of_answers_too() -> None:
    gate = "example.com/" + "x" * 5_000
    found = await page(sources(pool=crowd.Crowd(crowd.servers(8), [build.pod("p", gates=[gate])]).explainer))
    assert "x" * 401 not in found.source


async def test_many_readers_cost_one_rendering() -> None:
    asked = 0
    known = crowd.Crowd(crowd.servers(8))

    def explainer() -> Any:
        nonlocal asked
        asked += 1
        return known.explainer()

    async with serving(sources(pool=explainer)) as session:
        for _ in range(10):
            async with session.get("/") as answer:
                assert answer.status == 200
    assert asked <= 2  # a second may pass in between


# What it keeps out


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


# Who reads it


async def test_a_screen_reader_finds_language_title_landmarks_and_headings() -> None:
    found = await page(whole())
    assert found.all("html") == [{"lang": "en"}]
    assert "4 of 16 cards free - Tenure" in found.text
    for landmark in ("header", "nav", "main", "footer"):
        assert len(found.all(landmark)) == 1
    assert len(found.all("h1")) == 1
    named = {attributes.get("id") for _, attributes in found.tags}
    for section in found.all("section"):
        assert section.get("aria-label") or section.get("aria-labelledby") in named
    for link in found.all("a"):
        href = link.get("href") or ""
        assert not href.startswith("#") or href[1:] in named
    ids = [attributes["id"] for _, attributes in found.tags if "id" in attributes]
    assert len(ids) == len(set(ids))


async def test_every_table_has_a_caption_and_every_header_a_scope() -> None:
    found = await page(whole())
    assert len(found.all("table")) == len(found.all("caption")) == 5
    assert {header.get("scope") for header in found.all("th")} == {"col", "row", "rowgroup"}


async def test_colour_is_never_alone_each_state_is_a_word_and_the_bar_has_a_text() -> None:
    found = await page(whole())
    assert found.source.count('class="state free">free</span>') >= 4
    (bar,) = found.all("svg")
    assert bar["aria-label"] == "Of 16 cards: 4 free, 2 promised, 6 held, 2 draining, 2 unknown"
    assert bar["role"] == "img"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(scheme: str) -> None:
    """WCAG 2.2, success criterion 1.4.3: 4.5 to 1."""
    css = (view.__file__.rpartition("/")[0]) + "/page.css"
    with open(css) as file:  # noqa: PTH123 - a test
        blocks = re.findall(r":root \{(.*?)\}", file.read(), re.DOTALL)
    colours = dict(re.findall(r"--(\w+): (#\w{6});", blocks[scheme == "dark"]))
    for ink in ("ink", "soft", "link", "free", "reserved", "bound", "draining", "unknown"):
        for ground in ("paper", "sheet"):
            assert contrast(colours[ink], colours[ground]) >= 4.5, (ink, ground)


def contrast(one: str, other: str) -> float:
    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def luminance(colour: str) -> float:
    """WCAG 2.2, "relative luminance"."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "0 s"),
        (0, "0 s"),
        (59.9, "59 s"),
        (60, "1 min"),
        (3725, "1 h 2 min"),
        (3600, "1 h"),
        (90_061, "1 d 1 h"),
    ],
)
def test_durations_have_two_units_at_most(seconds: float, text: str) -> None:
    assert view.duration(seconds).replace("\N{NO-BREAK SPACE}", " ") == text


def test_thousands_stand_apart() -> None:
    assert grouped(1_234_567) == "1\N{NO-BREAK SPACE}234\N{NO-BREAK SPACE}567"
