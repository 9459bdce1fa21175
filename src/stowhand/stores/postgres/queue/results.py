"""Hearing of the end of jobs: a mark on their rows, and a connection that listens for those who end marked ones
(functions/waiters.sql)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from uuid import UUID, uuid4

import psycopg

from stowhand.jobs.job import NewJob, State
from stowhand.protocols.results import Standing
from stowhand.retry import exponential
from stowhand.stores.database import trouble
from stowhand.stores.database.link import Connection, Row, rows
from stowhand.stores.database.statements import quote_identifier
from stowhand.stores.postgres.queue.context import PostgresContext, ends_of
from stowhand.stores.postgres.shared.array_literals import plain_array
from stowhand.stores.postgres.shared.listener import Listener, NoAnnouncement

HEALTHY = 10.0
"""Seconds between two looks while notifications are known to arrive: one that is lost costs so much."""
_LOCKED, _GONE, _UNKNOWN = "locked", "gone", "unknown"


class Results:
    """Of one process, on one loop. It connects when somebody waits for the first time. ``marks``: whether a job bears
    its waiter from the first."""

    def __init__(self, context: PostgresContext, marks: Callable[[NewJob], bool], behind_pooler: str | None) -> None:
        self._context = context
        self.waiter = uuid4()
        self.marked = marks
        common = ends_of(context.schema)
        self._listener = Listener(
            context.listen_dialer,
            lambda: context.role("results"),
            f"{common}:{self.waiter}",
            behind_pooler,
            _Common(common),
        )
        self._looks = 0
        """Since the last notification, while none is known to arrive."""
        self._pause = exponential(base=0.05, cap=2.0)

    async def retention(self) -> float | None:
        """As this store's options say."""
        return self._context.options.history

    async def mark(self, job_ids: Sequence[int]) -> Sequence[Standing]:
        """One statement. Where a trigger of the application's refuses a mark, the end is seen by looking."""
        try:
            return await self._standings(job_ids, self.waiter)
        except psycopg.Error as error:
            if trouble.concerns_call(error):
                raise
            return await self.ask(job_ids)

    async def ask(self, job_ids: Sequence[int]) -> Sequence[Standing]:
        """One statement."""
        return await self._standings(job_ids, None)

    async def hear(self, job_ids: Sequence[int]) -> None:
        """Until a notification, or until it is time to look: rarely while notifications are known to arrive."""
        if self._listener.is_listening:
            self._looks = 0
            await self._listener.wait(HEALTHY)
        else:
            self._looks += 1
            await self._listener.wait(self._pause(self._looks))

    async def rest(self) -> None:
        """Close the connection that listens."""
        await self._listener.close()

    async def _standings(self, job_ids: Sequence[int], waiter: UUID | None) -> list[Standing]:
        with self._context.translated():
            found = await self._context.ask("inspect", "await_jobs", (plain_array(job_ids), waiter))
        return [_standing(row) for row in found]


class _Common(NoAnnouncement):
    """Listens for the ends of jobs that several processes wait for, too."""

    def __init__(self, channel: str) -> None:
        super().__init__()
        self.changed = asyncio.Event()
        self._listen = f"listen {quote_identifier(channel)}".encode()

    async def begin(self, connection: Connection) -> None:
        """On the same connection."""
        await rows(connection, self._listen, (), False)


def _standing(row: Row) -> Standing:
    job_id, state, attempts, resets, last_error, result, started_at, finished_at, revision, replaced = row
    if state in (_GONE, _UNKNOWN):
        return Standing(job_id, is_known=state == _GONE)
    return Standing(
        job_id, None if state == _LOCKED else State(state), is_marked=state != _LOCKED, attempts=attempts,
        resets=resets, last_error=last_error, result_text=result, started_at=started_at, finished_at=finished_at,
        revision=revision, replaced=replaced,
    )  # fmt: skip
