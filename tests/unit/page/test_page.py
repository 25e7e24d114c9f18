"""What the status page says, and what it bounds."""

from dataclasses import replace
from typing import Any

import msgspec

from controllers.claims.watch import Seen
from controllers.occupancy.holdings import Holdings
from service.kube.errors import Forbidden
from service.page import view
from tests.unit.page import crowd
from tests.unit.page.reading import answering, certificates, page, serving, sources, whole
from tests.unit.pool import build
from webhook.guard import Standing

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
