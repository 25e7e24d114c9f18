import asyncio
from pathlib import Path

import pytest

from service.kube import errors
from service.kube.client import PatchKind
from tests.unit.kube.peer import (
    CHUNKED,
    LAST_CHUNK,
    answer,
    chunk,
    client_of,
    cut,
    kubeconfig,
    running,
    silence,
)

TOO_MANY = answer(429, headers="Retry-After: 0\r\n")


async def test_a_read_whose_connection_breaks_is_tried_again(tmp_path: Path) -> None:
    async with (
        running(cut(), cut(), answer(200, "fine")) as peer,
        client_of(kubeconfig(tmp_path, peer.url)) as client,
    ):
        assert await client.get("/x") == b'"fine"'
    assert len(peer.requests) == 3


async def test_a_read_is_not_tried_for_ever(tmp_path: Path) -> None:
    async with running(cut()) as peer, client_of(kubeconfig(tmp_path, peer.url)) as client:
        with pytest.raises(errors.Unreachable) as caught:
            await client.get("/x")
    assert len(peer.requests) == 3
    assert not caught.value.outcome_unknown


@pytest.mark.parametrize("verb", ["create", "replace", "patch", "delete"])
async def test_a_write_whose_connection_breaks_is_sent_once_and_its_outcome_is_unknown(
    tmp_path: Path, verb: str
) -> None:
    """The connection is a kept-alive one: aiohttp by itself would send PUT and DELETE a second time."""
    async with (
        running(answer(200), cut(), answer(200, "again")) as peer,
        client_of(kubeconfig(tmp_path, peer.url)) as client,
    ):
        await client.get("/x")
        calls = {
            "create": lambda: client.create("/x", {}),
            "replace": lambda: client.replace("/x", {}),
            "patch": lambda: client.patch("/x", {}, kind=PatchKind.MERGE),
            "delete": lambda: client.delete("/x"),
        }
        with pytest.raises(errors.Unreachable) as caught:
            await calls[verb]()
    assert caught.value.outcome_unknown
    assert len(peer.requests) == 2
    assert peer.connections == 1


async def test_a_write_without_an_answer_ends_at_its_deadline_with_an_unknown_outcome(tmp_path: Path) -> None:
    async with running(silence()) as peer, client_of(kubeconfig(tmp_path, peer.url)) as client:
        with pytest.raises(errors.DeadlineExceeded) as caught:
            await client.replace("/x", {}, deadline=0.1)
    assert caught.value.outcome_unknown


async def test_a_read_without_an_answer_ends_at_its_deadline(tmp_path: Path) -> None:
    async with running(silence()) as peer, client_of(kubeconfig(tmp_path, peer.url)) as client:
        with pytest.raises(errors.DeadlineExceeded) as caught:
            await client.get("/x", deadline=0.1)
    assert not caught.value.outcome_unknown


async def test_a_connection_that_nobody_accepts_means_that_nothing_happened(tmp_path: Path) -> None:
    async with running(answer(200)) as peer:
        pass
    async with client_of(kubeconfig(tmp_path, peer.url)) as client:
        with pytest.raises(errors.Unreachable) as caught:
            await client.create("/x", {})
    assert not caught.value.outcome_unknown


@pytest.mark.parametrize("status", [500, 503])
async def test_a_failed_write_is_not_repeated_and_may_have_happened(tmp_path: Path, status: int) -> None:
    async with running(answer(status)) as peer, client_of(kubeconfig(tmp_path, peer.url)) as client:
        with pytest.raises(errors.Unavailable) as caught:
            await client.create("/x", {})
    assert caught.value.outcome_unknown
    assert len(peer.requests) == 1


async def test_a_write_that_was_not_let_in_is_sent_again_when_the_server_says(tmp_path: Path) -> None:
    async with (
        running(TOO_MANY, TOO_MANY, answer(201, "made")) as peer,
        client_of(kubeconfig(tmp_path, peer.url)) as client,
    ):
        assert await client.create("/x", {}) == b'"made"'
    assert len(peer.requests) == 3


async def test_a_pause_that_does_not_fit_into_the_deadline_is_not_waited_for(tmp_path: Path) -> None:
    async with (
        running(answer(429, headers="Retry-After: 60\r\n")) as peer,
        client_of(kubeconfig(tmp_path, peer.url)) as client,
    ):
        with pytest.raises(errors.TooManyRequests) as caught:
            await client.get("/x", deadline=1.0)
    assert caught.value.retry_after == 60.0
    assert len(peer.requests) == 1


async def test_a_redirect_is_an_answer_that_nobody_follows(tmp_path: Path) -> None:
    async with (
        running(answer(302, headers="Location: /elsewhere\r\n")) as peer,
        client_of(kubeconfig(tmp_path, peer.url)) as client,
    ):
        with pytest.raises(errors.ApiError):
            await client.get("/x")
    assert peer.requests == ["GET /x"]


async def test_a_path_reaches_the_server_as_it_was_encoded(tmp_path: Path) -> None:
    async with running(answer(200)) as peer, client_of(kubeconfig(tmp_path, peer.url)) as client:
        await client.get("/a/b%2Fc%3Fd", params={"labelSelector": "a in (b,c)"})
    assert peer.requests[0].startswith("GET /a/b%2Fc%3Fd?labelSelector=a+in+(b,c)")


async def test_a_stream_gives_whole_lines_whatever_the_pieces(tmp_path: Path) -> None:
    pieces = chunk(b'{"a":1}\n{"b"') + chunk(b":2}\n\n") + chunk(b'{"c":3}\n')
    async with (
        running(silence(CHUNKED + pieces + LAST_CHUNK)) as peer,
        client_of(kubeconfig(tmp_path, peer.url)) as client,
        client.stream("/x", {}, connect_deadline=5, idle_deadline=5, total_deadline=5) as lines,
    ):
        assert [line async for line in lines] == [b'{"a":1}', b'{"b":2}', b'{"c":3}']


async def test_a_stream_that_falls_silent_ends_at_its_idle_deadline(tmp_path: Path) -> None:
    async with (
        running(silence(CHUNKED + chunk(b"{}\n"))) as peer,
        client_of(kubeconfig(tmp_path, peer.url)) as client,
        client.stream("/x", {}, connect_deadline=5, idle_deadline=0.1, total_deadline=60) as lines,
    ):
        assert await anext(lines) == b"{}"
        with pytest.raises(errors.DeadlineExceeded):
            await anext(lines)


async def test_a_stream_that_goes_on_for_ever_ends_at_its_total_deadline(tmp_path: Path) -> None:
    async def chatter(writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED)
        while True:
            writer.write(chunk(b"{}\n"))
            await writer.drain()
            await asyncio.sleep(0.01)

    async with (
        running(chatter) as peer,
        client_of(kubeconfig(tmp_path, peer.url)) as client,
        client.stream("/x", {}, connect_deadline=5, idle_deadline=5, total_deadline=0.3) as lines,
    ):
        with pytest.raises(errors.DeadlineExceeded):
            async for _ in lines:
                pass


async def test_a_stream_that_is_cut_says_so(tmp_path: Path) -> None:
    async with (
        running(cut(CHUNKED + chunk(b"{}\n{"))) as peer,
        client_of(kubeconfig(tmp_path, peer.url)) as client,
        client.stream("/x", {}, connect_deadline=5, idle_deadline=5, total_deadline=5) as lines,
    ):
        with pytest.raises(errors.Unreachable):
            async for _ in lines:
                pass


async def test_a_stream_that_never_begins_ends_at_its_connect_deadline(tmp_path: Path) -> None:
    async with running(silence()) as peer, client_of(kubeconfig(tmp_path, peer.url)) as client:
        with pytest.raises(errors.DeadlineExceeded):
            async with client.stream("/x", {}, connect_deadline=0.1, idle_deadline=5, total_deadline=5):
                pass


async def test_a_refused_stream_raises_what_the_server_said(tmp_path: Path) -> None:
    async with (
        running(answer(410, {"reason": "Expired"})) as peer,
        client_of(kubeconfig(tmp_path, peer.url)) as client,
    ):
        with pytest.raises(errors.Gone):
            async with client.stream("/x", {}, connect_deadline=5, idle_deadline=5, total_deadline=5):
                pass


async def test_leaving_a_stream_closes_its_connection(tmp_path: Path) -> None:
    async with (
        running(silence(CHUNKED + chunk(b"{}\n"))) as peer,
        client_of(kubeconfig(tmp_path, peer.url)) as client,
    ):
        async with client.stream("/x", {}, connect_deadline=5, idle_deadline=5, total_deadline=5) as lines:
            await anext(lines)
            assert not peer.ended.is_set()
        async with asyncio.timeout(5):
            await peer.ended.wait()


async def test_a_line_without_end_is_refused(tmp_path: Path) -> None:
    async def endless(writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED)
        while True:
            writer.write(chunk(b"x" * 1_000_000))
            await writer.drain()

    async with (
        running(endless) as peer,
        client_of(kubeconfig(tmp_path, peer.url)) as client,
        client.stream("/x", {}, connect_deadline=5, idle_deadline=5, total_deadline=30) as lines,
    ):
        with pytest.raises(errors.Undecodable):
            await anext(lines)


async def test_connections_are_bounded(tmp_path: Path) -> None:
    async def slow(writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.05)
        await answer(200)(writer)

    async with running(slow) as peer, client_of(kubeconfig(tmp_path, peer.url)) as client:
        await asyncio.gather(*(client.get("/x") for _ in range(200)))
    assert peer.connections <= 64
