"""The status page over HTTP from the real routes, without a cluster, and its document as a tree."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from html.parser import HTMLParser
from typing import Any

from aiohttp import ClientSession

from controllers.claims.watch import Seen
from controllers.occupancy.holdings import Holdings
from service import api
from service.http import Address, HttpMetrics, Listener, Name
from service.lifecycle import Lifecycle, Phase
from service.metrics import MetricSet
from service.page.gather import Sources
from service.page.routes import page_routes
from tests.unit.page import crowd
from tests.unit.pool import build
from webhook.guard import Standing

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
