"""The embedded queue behind the seams of ``stowhand.store``.

writer    one connection on one thread: everything that writes, in the order in which it was asked for
reader    one connection on another thread: looking never waits for writing
wake      one connection on the loop's thread, for a number that tells whether somebody committed
heart     a connection of its own, on the worker's other thread
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeVar

from stowhand.errors import ConfigurationError
from stowhand.job import Job, NewJob, State
from stowhand.lifecycle import Settlement
from stowhand.store import (
    Answer,
    Claim,
    ClaimRequest,
    JobFilter,
    Lease,
    SchemaStatus,
    StoreOptions,
    Verdict,
)
from stowhand.stores.sqlite import claim, enqueue, file, guest, inspector, moment, schema, settle, trouble
from stowhand.stores.sqlite.connection import Connection, Work
from stowhand.stores.sqlite.heart import SqliteHeart
from stowhand.stores.sqlite.spool import Spool
from stowhand.stores.sqlite.wake import Wake

T = TypeVar("T")
SYNCHRONOUS = ("FULL", "NORMAL")
DEFAULTS = StoreOptions()


class SqliteStore:
    """Jobs in one SQLite file, which may be the application's own. Any number of processes of one machine share it."""

    def __init__(self, path: str | Path, options: StoreOptions = DEFAULTS) -> None:
        if options.synchronous not in SYNCHRONOUS:
            raise ConfigurationError(
                f"synchronous is {options.synchronous!r}: it must be one of {', '.join(SYNCHRONOUS)}"
            )
        self._path = Path(os.path.abspath(path))  # noqa: PTH100 - resolve() would hide a symbolic link
        self._history = options.history
        self._synchronous = options.synchronous
        self._now = moment.clock(options.pinned)
        self._writer, self._reader = self._connect(), self._connect()
        # It is used on the loop's own thread, which must not be kept waiting.
        self._wake = Wake(self._connect(patience=0.0))
        self._threads: dict[Connection, ThreadPoolExecutor] = {}
        self._pid = os.getpid()

    @property
    def description(self) -> str:
        """Where it is, for people."""
        return f"sqlite:///{self._path}"

    @property
    def hears(self) -> bool:
        """Always: commits are counted in the file itself."""
        return True

    async def open(self) -> None:
        """Connect, and check the schema."""
        await self._write(lambda _connection, _now: None)
        self._wake.look()

    async def close(self) -> None:
        """Let every connection go. Harmless when repeated; the next use opens them again."""
        for connection in (self._reader, self._writer):
            await self._on_thread(connection, connection.close)
        self._wake.close()
        for thread in self._threads.values():
            thread.shutdown(wait=False)
        self._threads.clear()

    # -- work ---------------------------------------------------------------------------------------

    async def claim(self, request: ClaimRequest) -> Sequence[Claim[Job]]:
        """Move up to ``limit`` due jobs to processing."""
        # Transactions of bounded length: after a flood of new queues their heads take several.
        while True:
            claimed = await self._write(lambda connection, now: _claim(connection, now, request))
            if claimed is not None:
                return claimed

    async def settle(self, batch: Sequence[tuple[Lease, Settlement]], *, repeat: bool = False) -> Sequence[Verdict]:
        """Record how jobs left processing."""
        verdicts: list[Verdict] = []
        for start in range(0, len(batch), settle.AT_ONCE):
            part = batch[start : start + settle.AT_ONCE]
            verdicts += await self._write(
                lambda connection, now, part=part: settle.settle(  # type: ignore[misc]
                    connection, now, part, repeat=repeat, history=self._history is not None
                )
            )
        return verdicts

    async def next_due(self, tasks: tuple[str, ...] | None) -> float | None:
        """Seconds until the earliest waiting job of these tasks is due."""
        return await self._read(lambda connection, now: claim.next_due(connection, now, tasks))

    async def wait(self, timeout: float) -> bool:
        """Until somebody, in whatever process, committed something."""
        return await self._wake.wait(timeout)

    def heart(self) -> SqliteHeart:
        """A blocking connection of its own."""
        return SqliteHeart(self._connect(), self._history)

    # -- enqueue ------------------------------------------------------------------------------------

    async def enqueue(self, job: NewJob) -> Job:
        """Commit one job."""
        written = await self._write(lambda connection, now: _add(connection, now, job))
        self._wake.ring()
        return written

    async def enqueue_many(self, jobs: Iterable[NewJob] | AsyncIterable[NewJob]) -> list[int]:
        """Commit any number in one transaction.

        They are gathered first, beyond some thousands in a temporary file: a slow source must not keep other
        processes from writing.
        """
        spool = Spool()
        try:
            if isinstance(jobs, AsyncIterable):
                async for job in jobs:
                    spool.put(job)
            else:
                for job in jobs:
                    spool.put(job)
            ids = await self._write(lambda connection, now: _add_many(connection, now, spool))
        finally:
            spool.close()
        self._wake.ring()
        return ids

    def enqueue_in(self, connection: object, job: NewJob) -> Job:
        """Enqueue inside the transaction of the caller's ``sqlite3.Connection``; see ``guest``."""
        return guest.enqueue_in(connection, self._path, self._now, job)

    # -- inspect ------------------------------------------------------------------------------------

    async def get(self, job_id: int) -> Job | None:
        """Live, or in the history."""
        return await self._read(lambda connection, _: inspector.get(connection, job_id))

    async def list(self, wanted: JobFilter) -> Sequence[Job]:
        """In id order."""
        return await self._read(lambda connection, _: inspector.find(connection, wanted))

    async def counts(self) -> dict[State, int]:
        """By state."""
        return await self._read(lambda connection, _: inspector.counts(connection))

    async def retry(self, job_id: int) -> Answer:
        """Due now."""
        answer = await self._write(lambda connection, now: inspector.retry(connection, now, job_id))
        self._wake.ring()
        return answer

    async def cancel(self, job_id: int) -> Answer:
        """At once, or asked of its worker."""
        history = self._history is not None
        return await self._write(lambda connection, now: inspector.cancel(connection, now, job_id, history=history))

    async def remove(self, job_id: int) -> Answer:
        """Delete."""
        return await self._write(lambda connection, _: inspector.remove(connection, job_id))

    async def remove_key(self, key: str) -> Answer:
        """Delete the job that holds the key."""
        return await self._write(lambda connection, _: inspector.remove_key(connection, key))

    # -- schema -------------------------------------------------------------------------------------

    async def install(self) -> SchemaStatus:
        """Make the file (only its owner may read it) and its tables, or what is missing of them."""

        def install() -> SchemaStatus:
            file.create(self._path)
            with self._unchecked(lambda connection: schema.write_ahead(connection, self._path)) as connection:
                return connection.write(schema.install)

        return await self._on_thread(self._writer, install)

    async def status(self) -> SchemaStatus:
        """What is there; a file that does not exist has nothing installed."""

        def status() -> SchemaStatus:
            file.check_place(self._path)
            if not self._path.exists():
                return SchemaStatus(None, schema.VERSION)
            with self._unchecked() as connection:
                return connection.read(lambda raw, _: schema.status(raw))

        return await self._on_thread(self._reader, status)

    async def plan(self) -> str:
        """What ``install`` would run."""
        return schema.plan(await self.status())

    async def uninstall(self) -> None:
        """Remove everything of ours; the file stays."""

        def uninstall() -> None:
            if self._path.exists():
                with self._unchecked() as connection:
                    connection.write(lambda raw, _: schema.uninstall(raw))

        await self._on_thread(self._writer, uninstall)

    async def check(self) -> Sequence[str]:
        """What SQLite finds wrong with the file; reads all of it. Empty: it is sound."""
        return await self._read(lambda connection, _: trouble.find_damage(connection))

    # -- connections --------------------------------------------------------------------------------

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


def _claim(connection: sqlite3.Connection, now: moment.Moment, request: ClaimRequest) -> Sequence[Claim[Job]] | None:
    return claim.claim(connection, now, request) if claim.refresh_heads(connection, now) else None


def _add(connection: sqlite3.Connection, now: moment.Moment, job: NewJob) -> Job:
    with trouble.refusing():
        return enqueue.find(connection, enqueue.add(connection, now, job))


def _add_many(connection: sqlite3.Connection, now: moment.Moment, spool: Spool) -> list[int]:
    with trouble.refusing():
        return enqueue.add_many(connection, now, spool.chunks())
