"""The connections of a store, each on a thread of its own.

writer    everything that writes, in the order in which it was asked for
reader    looking never waits for writing
wake      on the loop's own thread: a number that tells whether somebody committed
heart     on the worker's other thread
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeVar

from stowhand.stores.sqlite import schema
from stowhand.stores.sqlite.connection import Connection, Work
from stowhand.stores.sqlite.moment import Now
from stowhand.stores.sqlite.wake import Wake

T = TypeVar("T")


class Threads:
    """What a store stands on: its file, and the ways to work on it."""

    def __init__(self, path: Path, synchronous: str, now: Now) -> None:
        self._path, self._synchronous, self._now = path, synchronous, now
        self._writer, self._reader = self._connect(), self._connect()
        # It is used on the loop's own thread, which must not be kept waiting.
        self._wake = Wake(self._connect(patience=0.0))
        self._threads: dict[Connection, ThreadPoolExecutor] = {}
        self._pid = os.getpid()

    @property
    def description(self) -> str:
        """Where it is, for people."""
        return f"sqlite:///{self._path}"

    def _connect(self, patience: float | None = None) -> Connection:
        def prepare(connection: sqlite3.Connection) -> None:
            schema.prepare(connection, self._path)

        return Connection(self._path, self._synchronous, self._now, prepare, patience)

    @contextmanager
    def _unchecked(self, prepare: Callable[[sqlite3.Connection], None] = lambda _: None) -> Iterator[Connection]:
        """For work on the schema itself: a connection that does not ask for one."""
        with closing(Connection(self._path, self._synchronous, self._now, prepare)) as connection:
            yield connection

    async def _write(self, work: Work[T]) -> T:
        return await self._on_thread(self._writer, lambda: self._writer.write(work))

    async def _read(self, work: Work[T]) -> T:
        return await self._on_thread(self._reader, lambda: self._reader.read(work))

    async def _on_thread(self, connection: Connection, call: Callable[[], T]) -> T:
        if self._pid != os.getpid():
            # Threads do not survive a fork.
            self._threads, self._pid = {}, os.getpid()
        thread = self._threads.get(connection)
        if thread is None:
            thread = self._threads[connection] = ThreadPoolExecutor(1, thread_name_prefix="stowhand-sqlite")
        return await asyncio.get_running_loop().run_in_executor(thread, call)

    async def _close_threads(self) -> None:
        for connection in (self._reader, self._writer):
            await self._on_thread(connection, connection.close)
        for thread in self._threads.values():
            thread.shutdown(wait=False)
        self._threads.clear()
