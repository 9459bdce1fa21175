"""Live update as a stream of events, with a clock that tests advance."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import TypeVar

import pytest

from stowhand.errors import StoreUnreachable
from stowhand.jobs.job import NewJob
from stowhand.protocols.queue_store import QueueStore
from stowhand.testing import FakeClock, MemoryStore
from stowhand.web import live
from stowhand.web.board import Board
from stowhand.web.live import MAX_QUIET_SECONDS, MAX_STREAM_SECONDS, MAX_STREAMS_PER_BROWSER, LiveStreams
from stowhand.web.reader import Reader
from stowhand.web.request import Reply, Request
from tests.web.conftest import ADMIN, LOOKER

T = TypeVar("T")


class Counting(Reader):
    """Counts what it asks its store."""

    questions = 0

    async def query(self, question: Callable[[QueueStore], Awaitable[T]]) -> T:
        self.questions += 1
        return await super().query(question)


class Theatre:
    """A page whose text a test sets, and its streams."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.store = MemoryStore()
        self.body = b'<section id="a" data-region>one</section><section id="b" data-region>two</section>'
        self.status = 200
        self.asked: list[Request] = []
        self.takes = 0.0
        self.reader = Counting(self._opened, self.clock)
        self.live = LiveStreams(self._answer, self.reader, self.clock)

    async def _opened(self) -> QueueStore:
        return self.store

    async def _answer(self, asked: Request) -> Reply:
        self.asked.append(asked)
        if self.takes:
            await self.clock.sleep(self.takes)
        return Reply(status=self.status, body=self.body)

    async def stream(self, path: str = "/") -> AsyncIterator[bytes]:
        reply = await self.live.stream(Request(path=path, headers={"accept": "text/event-stream", "cookie": "c"}))
        assert reply.status == 200
        assert not isinstance(reply.body, bytes)
        return reply.body

    async def next(self, stream: AsyncIterator[bytes], after: float = 0) -> bytes:
        """The next piece, for which the time passes."""
        piece = asyncio.ensure_future(anext(stream))
        for _ in range(int(after / 0.25) + 1):
            await self.clock.settle()
            if piece.done():
                break
            await self.clock.advance(0.25)
        return await piece


async def test_regions_are_sent_first_and_then_when_they_change() -> None:
    theatre = Theatre()
    stream = await theatre.stream()
    first = await theatre.next(stream)
    assert first.startswith(b'data: <section id="a" data-region>one</section><section id="b"')
    theatre.body = theatre.body.replace(b"two", b"three\nlines\r\nof it")
    await theatre.store.jobs.enqueue(NewJob(task="t"))
    piece = await theatre.next(stream, after=2)
    assert piece.startswith(
        b'data: <section id="b" data-region>three\ndata: lines\ndata: of it</section>\n\nevent: now\n'
    )
    assert b'id="a"' not in piece


async def test_an_unchanged_page_sends_only_the_time() -> None:
    theatre = Theatre()
    theatre.body = b'<section id="a" data-region><time datetime="2030" title="x">3s ago</time></section>'
    stream = await theatre.stream()
    await theatre.next(stream)
    theatre.body = theatre.body.replace(b"3s", b"8s")
    assert (await theatre.next(stream, after=MAX_QUIET_SECONDS + 1)).startswith(b"event: now\ndata: ")


async def test_all_viewers_share_one_query_a_second() -> None:
    theatre = Theatre()
    streams = [await theatre.stream() for _ in range(20)]
    pieces = [asyncio.ensure_future(_all(stream)) for stream in streams]
    await theatre.clock.advance(10.0)
    assert 5 <= theatre.reader.questions <= 12
    theatre.live.close()
    await theatre.clock.advance(1.0)
    assert all(await asyncio.gather(*pieces))


async def test_a_page_is_rendered_less_often_while_counts_change_constantly() -> None:
    """A drain beside open pages is as fast as before: they take at most a fortieth of the time."""
    theatre = Theatre()
    theatre.takes = 0.1
    watching = asyncio.ensure_future(_watch(theatre))
    rendered = []
    for _ in range(120):
        await theatre.store.jobs.enqueue(NewJob(task="t"))
        await theatre.clock.advance(1.0)
        rendered.append(len(theatre.asked))
    assert 60 / 6 <= rendered[-1] - rendered[59] <= 60 / 4
    await _ended(theatre, watching)


async def test_a_change_after_a_quiet_period_is_shown_soon() -> None:
    theatre = Theatre()
    theatre.takes = 0.1
    watching = asyncio.ensure_future(_watch(theatre))
    await theatre.clock.advance(120.0)
    before = rendered = len(theatre.asked)
    while rendered == before:
        await theatre.clock.advance(0.25)
        rendered = len(theatre.asked)
    await theatre.clock.advance(1.0)
    await theatre.store.jobs.enqueue(NewJob(task="t"))
    await theatre.clock.advance(2.0)
    assert len(theatre.asked) == rendered + 1
    await _ended(theatre, watching)


async def test_a_stream_ends_when_the_server_stops_and_at_its_maximum_duration() -> None:
    theatre = Theatre()
    ended = asyncio.ensure_future(_all(await theatre.stream()))
    await theatre.clock.advance(MAX_STREAM_SECONDS + 1)
    assert ended.done()
    ended = asyncio.ensure_future(_all(await theatre.stream()))
    await theatre.clock.advance(1.0)
    assert not ended.done()
    theatre.live.close()
    await theatre.clock.advance(0.3)
    assert ended.done()


async def test_a_browser_with_enough_streams_polls_in_its_other_windows() -> None:
    """A browser opens six connections to a server: six streams would leave none for a page."""
    theatre = Theatre()
    streams = [await theatre.stream() for _ in range(MAX_STREAMS_PER_BROWSER)]
    for stream in streams:
        await theatre.next(stream)
    reply = await theatre.live.stream(Request(headers={"accept": "text/event-stream"}))
    assert isinstance(reply.body, bytes), "it ends, and the browser asks again"
    assert b"one</section>" in reply.body
    assert b"retry: 5000\nevent: poll\n" in reply.body
    other = await theatre.live.stream(Request(headers={"user-agent": "another browser"}))
    assert not isinstance(other.body, bytes)
    assert isinstance(streams[0], AsyncGenerator)
    await streams[0].aclose()
    assert await theatre.next(await theatre.stream()), "a window was closed"


async def test_each_rendering_uses_the_current_rights() -> None:
    theatre = Theatre()
    stream = await theatre.stream("/job")
    await theatre.next(stream)
    theatre.status = 403
    with pytest.raises(StopAsyncIteration):
        await theatre.next(stream, after=3)
    assert [asked.headers for asked in theatre.asked] == [{"cookie": "c", "accept": "text/html"}] * 2


async def test_an_asset_is_not_streamed() -> None:
    """Or who has not signed in keeps asking the store, and takes the places of viewers."""
    request = Request(path="/assets/board.css", headers={"accept": "text/event-stream"})
    reply = await Board(Theatre().reader).answer(request)
    assert isinstance(reply.body, bytes)


async def test_a_missing_page_ends_the_stream() -> None:
    theatre = Theatre()
    theatre.status = 404
    assert (await theatre.live.stream(Request())).status == 204


async def test_an_outage_is_sent_by_its_title_and_ends_by_itself() -> None:
    theatre = Theatre()
    stream = await theatre.stream()
    await theatre.next(stream)
    theatre.status, body = 503, theatre.body
    theatre.body = b"<h1>The schema is older</h1><p>Run: stowhand migrate</p>"
    assert await theatre.next(stream, after=MAX_QUIET_SECONDS + 1) == b"event: outage\ndata: The schema is older\n\n"
    theatre.status, theatre.body = 200, body.replace(b"one", b"back")
    assert b"back" in await theatre.next(stream, after=MAX_QUIET_SECONDS + 1)


async def test_an_outage_is_reported_without_another_query(monkeypatch: pytest.MonkeyPatch) -> None:
    """A frozen server keeps each question waiting for ten seconds."""

    async def away() -> None:
        raise StoreUnreachable("frozen")

    theatre = Theatre()
    stream = await theatre.stream()
    await theatre.next(stream)
    monkeypatch.setattr(theatre.store.inspect, "amounts", away)
    request = len(theatre.asked)
    assert await theatre.next(stream, after=MAX_QUIET_SECONDS) == b"event: outage\ndata: The store does not answer\n\n"
    assert len(theatre.asked) == request
    monkeypatch.undo()
    theatre.body = theatre.body.replace(b"one", b"back")
    assert b"back" in await theatre.next(stream, after=MAX_QUIET_SECONDS + 1)


async def test_the_number_of_viewers_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MAX_STREAMS", 1)
    theatre = Theatre()
    stream = await theatre.stream()
    await theatre.next(stream)
    assert (await theatre.live.stream(Request())).status == 503
    assert isinstance(stream, AsyncGenerator)
    await stream.aclose()
    assert (await theatre.live.stream(Request())).status == 200


async def test_values_that_a_viewer_may_not_see_are_not_sent() -> None:
    store = MemoryStore()
    await store.jobs.enqueue(NewJob(task="t"))
    await store.admin.permanently_fail_jobs([1], "a secret")

    async def opened() -> QueueStore:
        return store

    board = Board(Reader(opened))
    for who, sees in ((ADMIN, True), (LOOKER, False)):
        reply = await board.answer(
            Request(path="/jobs", headers={"accept": "text/event-stream"}, visitor=who, is_identified=True)
        )
        assert not isinstance(reply.body, bytes)
        piece = await anext(aiter(reply.body))
        assert b"data-region" in piece
        assert (b"a secret" in piece) is sees


async def _all(stream: AsyncIterator[bytes]) -> list[bytes]:
    return [piece async for piece in stream]


async def _watch(theatre: Theatre) -> None:
    await _all(await theatre.stream())


async def _ended(theatre: Theatre, watching: asyncio.Future[None]) -> None:
    theatre.live.close()
    await theatre.clock.advance(1.0)
    await watching


SERVER = """
import sys, uvicorn
from stowhand.testing import MemoryStore
from stowhand.web import dashboard
app = dashboard(MemoryStore(), rights=lambda _: ["look"])
uvicorn.run(app, fd=int(sys.argv[1]), log_config=None, lifespan="off", ws="none")
"""


def test_a_stream_does_not_delay_the_stop_of_a_server() -> None:
    """uvicorn waits for streams, and has told nobody that it is to stop."""
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        door.listen()
        command = [sys.executable, "-c", SERVER, str(door.fileno())]
        with subprocess.Popen(command, pass_fds=[door.fileno()]) as server:
            with socket.create_connection(door.getsockname(), timeout=60) as client, client.makefile("rb") as reply:
                client.sendall(b"GET /jobs HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n")
                assert any(b"event: now" in line for line in reply)
                server.terminate()
                reply.read()  # to its end
            assert server.wait(60) in (0, -signal.SIGTERM)
