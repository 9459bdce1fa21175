"""Reads a table, changes single records, and writes the execution logs of running attempts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from functools import partial
from typing import Any

from stowhand.clock import SystemClock
from stowhand.errors import LogRefused, StoreUnreachable
from stowhand.jobs.execution_log import MAX_LOG_ENTRIES
from stowhand.jobs.job import State
from stowhand.jobs.lease import JobId, Lease
from stowhand.protocols.queue_store import ActionResult, Answer
from stowhand.stores.database.link import Row, Session, rows
from stowhand.stores.postgres.table.context import TableContext, mark_of
from stowhand.stores.table.arguments import cancel_refusal, requeue_refusal, retry_refusal
from stowhand.stores.table.records import ShownRecord, shown_record


class PostgresOperations:
    """Operations, each on a connection of ``session`` for a role, whose block converts errors."""

    def __init__(self, context: TableContext, session: Callable[[str], AbstractAsyncContextManager[Session]]) -> None:
        self._context = context
        self._session = session

    async def requeue(self, record_id: JobId, after: datetime | float | None) -> Answer:
        """Return a record to the queue; a running attempt loses its lease. Raise StoreUnreachable if it is locked."""
        time, delay = (after, None) if isinstance(after, datetime) else (None, after)
        result = await self._act("requeue", record_id, requeue_refusal, after=time, delay=delay)
        if isinstance(result, Answer):
            return result
        is_canceled = result == State.CANCELED
        return Answer(
            record_id,
            ActionResult.DONE,
            "its cancellation was requested, so it is canceled instead" if is_canceled else "",
        )

    async def retry(self, record_id: JobId) -> Answer:
        """Return a record to the queue with no attempts."""
        result = await self._act("retry", record_id, retry_refusal)
        return result if isinstance(result, Answer) else Answer(record_id, ActionResult.DONE)

    async def cancel(self, record_id: JobId) -> Answer:
        """Cancel a waiting record, or request it of a running one."""
        refuse = partial(cancel_refusal, can_ask=self._context.shape.has("cancel"))
        result = await self._act("cancel", record_id, refuse)
        if isinstance(result, Answer):
            return result
        if result == State.PROCESSING:
            return Answer(record_id, ActionResult.ASKED, "it is running; its worker will stop it")
        return Answer(record_id, ActionResult.DONE)

    async def _act(
        self, name: str, record_id: JobId, refuse: Callable[[JobId, str | None], Answer | None], **values: object
    ) -> str | Answer:
        """Return the statement's result, or why it found nothing. Raise StoreUnreachable if the row is locked."""
        async with self._session("requeue") as session:
            if result := await self._rows(session, name, id=str(record_id), **values):
                return str(result[0][0])
            refusal = refuse(record_id, await self._state(session, record_id))
        if refusal is None:
            where = f"{self._context}: an open transaction holds record {record_id}"
            raise StoreUnreachable(f"{where}; try again when it has ended")
        return refusal

    async def seconds_until(self, time: datetime) -> float:
        """Return the seconds until a time, by the database's clock."""
        ((seconds,),) = await self._ask("seconds_until", moment=time)
        return float(seconds)

    async def count(self, states: Sequence[State], conditions: Sequence[Any] = ()) -> dict[State, int]:
        """Count records in the view. Every requested state is a key."""
        matches = await self._counting("count", states, conditions)
        return dict.fromkeys(states, 0) | {State(state): number for state, number in matches}

    async def exists(self, states: Sequence[State], conditions: Sequence[Any] = ()) -> bool:
        """Return whether there is such a record."""
        ((matches,),) = await self._counting("exists", states, conditions)
        return bool(matches)

    async def next_due(self) -> float | None:
        """Return the seconds until the earliest waiting record is due; 0 if one is; ``None`` if none waits."""
        async with self._session("due") as session:
            ((seconds,),) = await self._rows(session, "next_due")
        return None if seconds is None else float(seconds)

    async def longest_wait(self) -> float:
        """Return the seconds since the earliest due record became due; 0 without one."""
        ((seconds,),) = await self._ask("longest_wait")
        return float(seconds)

    async def longest_run(self) -> float:
        """Return the seconds since the oldest claim of a record in processing; 0 without one."""
        ((seconds,),) = await self._ask("longest_run")
        return float(seconds)

    async def logs(self, record_id: JobId) -> Sequence[str] | None:
        """Return the log's entries as JSON texts; ``None`` if there is no such record."""
        matches = await self._ask("logs", id=str(record_id))
        return None if not matches else [entry or "null" for entry in matches[0][0] or ()]

    async def page(self, states: Sequence[State], after: JobId | None, limit: int) -> Sequence[ShownRecord]:
        """Return records in these states with ids above ``after``, ordered by id."""
        last_id = None if after is None else str(after)
        return [self._record(row) for row in await self._ask("page", states=_names(states), after=last_id, limit=limit)]

    async def find(self, record_id: JobId) -> ShownRecord | None:
        """Return one record; ``None`` if there is none."""
        matches = await self._ask("find", id=str(record_id))
        return self._record(matches[0]) if matches else None

    async def _counting(self, name: str, states: Sequence[State], conditions: Sequence[Any]) -> list[Row]:
        statement, values = self._context.composer.counting(name, conditions)
        async with self._session("inspect") as session:
            return await rows(session, statement, {**values, **self._context.values(states=_names(states))})

    async def _ask(self, name: str, **values: object) -> list[Row]:
        async with self._session("inspect") as session:
            return await self._rows(session, name, **values)

    async def _rows(self, session: Session, name: str, **values: object) -> list[Row]:
        return await rows(session, self._context.statement(name), self._context.values(**values))

    async def _state(self, session: Session, record_id: JobId) -> str | None:
        rows = await self._rows(session, "state_of", id=str(record_id))
        return str(rows[0][0]) if rows else None

    def _record(self, row: Row) -> ShownRecord:
        return shown_record((self._context.job_id(str(row[0])), *row[1:]))


def _names(states: Sequence[State]) -> list[str]:
    return [state.value for state in states]


_RETRY_PAUSES_SECONDS = (0.0, 0.01, 0.05, 0.25)
"""A beat locks the row briefly. An application's transaction takes longer, and then the caller tries again."""


class Logs:
    """Adds and replaces entries of execution logs."""

    def __init__(self, context: TableContext) -> None:
        self._context, self._clock = context, SystemClock()

    async def add(self, lease: Lease, entry: str) -> int:
        """Append an entry, and return its number. Raise LogRefused, StoreUnreachable."""
        return await self._write("add_log", lease, most=MAX_LOG_ENTRIES, entry=entry)

    async def update(self, lease: Lease, number: int, entry: str) -> None:
        """Replace the entry with this number. Raise LogRefused, StoreUnreachable."""
        await self._write("update_log", lease, number=number, entry=entry)

    async def replace(self, session: Session, lease: Lease, entries: Sequence[str]) -> None:
        """Replace the whole log on this connection, unless the lease is lost or the record is locked."""
        await rows(session, self._context.statement("write_logs"), self.values(lease, entries=list(entries)))

    async def _write(self, name: str, lease: Lease, **values: object) -> int:
        context = self._context
        with context.translated():
            for pause in _RETRY_PAUSES_SECONDS:
                await self._clock.sleep(pause)
                async with context.pool.connection("log") as session:
                    result = await rows(session, context.statement(name), self.values(lease, **values))
                    if result:
                        return int(result[0][0])
                    matches = await rows(session, context.statement("look_at_log"), self.values(lease))
                self._refuse(lease, matches[0] if matches else (False, 0), values)
        raise StoreUnreachable(f"{context}: an open transaction holds record {lease.job_id}; try again")

    @staticmethod
    def _refuse(lease: Lease, matches: tuple[bool, int], values: dict[str, object]) -> None:
        """Raise LogRefused, unless the row is only locked by another transaction."""
        held, length = matches
        if not held:
            raise LogRefused(f"record {lease.job_id}: the attempt that this log belongs to is over")
        number = values.get("number")
        if isinstance(number, int) and not 1 <= number <= length:
            raise LogRefused(f"record {lease.job_id}: its log has no entry {number}, it has {length}")
        if number is None and length >= MAX_LOG_ENTRIES:
            raise LogRefused(f"record {lease.job_id}: its log is full, {MAX_LOG_ENTRIES} entries")

    def values(self, lease: Lease, **values: object) -> dict[str, object]:
        """Return the parameters of a statement about the record of this lease."""
        return {**values, **self._context.values(**mark_of(lease))}
