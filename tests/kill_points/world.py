"""What a scenario has: a store, and a ledger that outlives its process."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import psycopg

from stowhand.app.app import App
from stowhand.errors import OutcomeUnknown, StoreUnreachable
from stowhand.events import Events
from stowhand.jobs.job import Job, State
from stowhand.jobs.lease import Lease
from stowhand.protocols.queue_store import JobFilter, QueueStore
from stowhand.protocols.store import StoreOptions
from stowhand.stores.url import open_store

LATER = timedelta(hours=1)
"""By so much the clock of a recovery is ahead: every lease has expired, and every retry is due."""


class World(msgspec.Struct, frozen=True):
    """One run of a scenario: in its process, and in the process that recovers from it (``is_recovery``)."""

    url: str
    folder: Path
    is_recovery: bool = False
    clock: datetime | None = None
    """``None``: the store's own."""

    @property
    def is_sqlite(self) -> bool:
        return self.url.startswith("sqlite:///")

    def store(self) -> QueueStore:
        """Return a store that is not open yet."""
        pinned = None
        if self.clock is not None or self.is_recovery or self._advance.exists():
            pinned = self._now
        return open_store(self.url, StoreOptions(pinned=pinned))

    def _now(self) -> datetime:
        now = datetime.now(UTC) if self.clock is None else self.clock
        if self._advance.exists():
            now += timedelta(seconds=float(self._advance.read_text()))
        return now + LATER if self.is_recovery else now

    @property
    def _advance(self) -> Path:
        return self.folder / "advance"

    def advance(self, seconds: float) -> None:
        """Let time pass, in this process and in those that follow. From the first call on, the clock is pinned."""
        before = float(self._advance.read_text()) if self._advance.exists() else 0.0
        new = self.folder / "advance.new"
        new.write_text(str(before + seconds))
        new.replace(self._advance)

    # -- the ledger -----------------------------------------------------------------------------

    def note(self, *words: object) -> None:
        """Append a line: whole or not at all, whenever the process is killed."""
        descriptor = os.open(self.folder / "ledger", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, (" ".join(map(str, words)) + "\n").encode())
        finally:
            os.close(descriptor)

    def note_end(self, lease: Lease, *words: object) -> None:
        """Note that a handler has reached its end under this lease."""
        self.note("ended", lease.job_id, lease.token, *words)

    def emitted(self) -> set[str]:
        """Return the events that were noted as emitted."""
        return {words[0] for words in self.notes("emitted")}

    def notes(self, kind: str) -> list[list[str]]:
        """Return the words of the lines of this kind."""
        file = self.folder / "ledger"
        lines = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
        return [words for first, *words in lines if first == kind]

    # -- the database ---------------------------------------------------------------------------

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        """Run one statement behind the store's back."""
        if self.is_sqlite:
            with closing(sqlite3.connect(self.url.removeprefix("sqlite:///"))) as file, file:
                return file.execute(statement).fetchall()
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description is not None else []

    # -- calls ----------------------------------------------------------------------------------

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[QueueStore]:
        """Return an open store."""
        store = self.store()
        await store.open()
        try:
            yield store
        finally:
            await store.close()

    async def acknowledged(self, number: int, call: Awaitable[Any]) -> None:
        """Make an enqueue, and note its ids if the store has confirmed it."""
        with suppress(StoreUnreachable, OutcomeUnknown):
            reply = await call
            self.note("enqueued", number, *(reply if isinstance(reply, list) else [reply.id]))

    async def work(self, app: App, **options: Any) -> None:
        """Run all due jobs of an open app."""
        await app.worker(once=True, events=Events(), poll_interval=0.05, **options).run()

    async def recover(self, app: App) -> None:
        """Reset the jobs of the lost worker, then run jobs until none is left."""
        store = await app.open()
        heartbeats = store.heartbeats()
        try:
            async with asyncio.timeout(60):
                while await self.unended(store):
                    while await heartbeats.reset_stalled(0):
                        pass
                    await self.work(app)
        finally:
            await heartbeats.close()

    async def unended(self, store: QueueStore) -> int:
        counts = await store.inspect.counts()
        return sum(counts.get(state, 0) for state in State if not state.terminal)


async def all_jobs(store: QueueStore) -> list[Job]:
    """Return every job, by id."""
    jobs = await store.inspect.list(JobFilter(states=tuple(State), limit=1000))
    return sorted(jobs, key=lambda job: job.id)
