"""A proxy before Redis that breaks connections at the worst moment. It lives on the test's own event loop.

async with RedisProxy(url) as proxy:
    proxy.url                            the way through it
    proxy.cut("reply", b"word")          done by the server, and its word never arrives
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Literal, Self
from urllib.parse import urlsplit

Cut = Literal["reply", "request", "middle"]


class RedisProxy:
    """On a unix socket of its own, before a server on a unix socket or a port."""

    def __init__(self, url: str) -> None:
        self._target = urlsplit(url)
        self._folder = Path(tempfile.mkdtemp(prefix="stow-redis-"))
        query = f"?{self._target.query}" if self._target.query else ""
        database = self._target.path.strip("/") if self._target.scheme == "redis" else ""
        self.url = f"unix://{self._folder / 'redis.sock'}" + (f"?db={database}" if database else query)
        self._cuts: list[tuple[Cut, bytes]] = []
        self.broken = 0
        """Requests whose connection was cut."""
        self._running: set[asyncio.Task[None]] = set()
        self._open: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_unix_server(self._serve, self._folder / "redis.sock")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._open:
            writer.close()
        await asyncio.gather(*self._running)
        shutil.rmtree(self._folder, ignore_errors=True)

    def lead_to(self, url: str) -> None:
        """From now on to this server, as an address that moves with the primary does it; what is connected stays so."""
        self._target = urlsplit(url)

    def cut(self, what: Cut, to: bytes, times: int = 1) -> None:
        """The next requests with these bytes: their ``reply`` is lost; the ``request`` never arrives; or its ``middle``
        is the last that the server sees of it.
        """
        self._cuts += [(what, to)] * times

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        try:
            beyond, back = await self._dial()
        except OSError:  # nobody is there, and the client finds out
            writer.close()
            return
        self._open |= {writer, back}
        losing = asyncio.Event()
        replies = asyncio.create_task(_pump(beyond, writer, losing))
        try:
            await self._carry(reader, back, losing, replies)
        finally:
            replies.cancel()
            self._open -= {writer, back}
            for end in (writer, back):
                end.close()

    async def _carry(
        self,
        reader: asyncio.StreamReader,
        back: asyncio.StreamWriter,
        losing: asyncio.Event,
        replies: asyncio.Task[None],
    ) -> None:
        with contextlib.suppress(OSError):  # the server has gone
            while data := await _receive(reader):
                cut = self._take(data)
                if cut == "reply":
                    losing.set()
                if cut != "request":
                    back.write(data[: len(data) // 2] if cut == "middle" else data)
                    await back.drain()
                if cut == "reply":
                    await replies
                if cut is not None:
                    break

    def _take(self, data: bytes) -> Cut | None:
        for place, (what, to) in enumerate(self._cuts):
            if to in data:
                del self._cuts[place]
                self.broken += 1
                return what
        return None

    async def _dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._target.scheme == "unix":
            return await asyncio.open_unix_connection(self._target.path)
        return await asyncio.open_connection(self._target.hostname, self._target.port or 6379)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, losing: asyncio.Event) -> None:
    with contextlib.suppress(OSError):
        while data := await _receive(reader):
            if losing.is_set():
                return
            writer.write(data)
            await writer.drain()


async def _receive(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read(1 << 20)
    except OSError:
        return b""
