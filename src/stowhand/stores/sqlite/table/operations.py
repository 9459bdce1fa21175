"""Operations of users and handlers on a table: reads (counts, waits, due times, logs), requeue, retry and cancel."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any

import msgspec

from stowhand.jobs.job import State
from stowhand.jobs.lease import JobId
from stowhand.protocols.queue_store import ActionResult, Answer
from stowhand.stores.sqlite.table.connections import TableConnections, TableTransaction
from stowhand.stores.sqlite.table.plan import CurrentRecord, find, no_lease
from stowhand.stores.sqlite.table.timestamps import MICROS_PER_SECOND, after, to_micros
from stowhand.stores.table.arguments import cancel_refusal, requeue_refusal, retry_refusal
from stowhand.stores.table.records import ShownRecord, shown_record

MAX_RECORDS_FOR_NEXT_DUE = 200
"""Maximum number of waiting records that are read for the next due time. Later polls find the others."""

_log_decoder = msgspec.json.Decoder(list[msgspec.Raw])


class SqliteOperations:
    """Operations, each a read or one transaction."""

    def __init__(self, connections: TableConnections) -> None:
        self._connections = connections

    async def count(self, states: Sequence[State], conditions: Sequence[Any] = ()) -> dict[State, int]:
        """Count the records in each requested state."""
        counts = dict(
            await self._connections.read(lambda tx: tx.select(tx.table.queries.counts(states, conditions)).fetchall())
        )
        return {state: counts.get(state.value, 0) for state in states}

    async def exists(self, states: Sequence[State], conditions: Sequence[Any] = ()) -> bool:
        """Return whether a record in any of these states meets the conditions."""
        return await self._connections.read(
            lambda tx: tx.select(tx.table.queries.exists(states, conditions)).fetchone() is not None
        )

    async def next_due(self) -> float | None:
        """Return the seconds until the first waiting record is due; ``None`` if none waits."""
        return await self._connections.read(_next_due)

    async def longest_wait(self) -> float:
        """Return for how many seconds the earliest due record has been due; 0 without one."""
        return await self._connections.read(lambda tx: _since(tx, "longest_wait"))

    async def longest_run(self) -> float:
        """Return the seconds since the oldest claim of a record in processing; 0 without one."""
        return await self._connections.read(lambda tx: _since(tx, "longest_run"))

    async def seconds_until(self, time: datetime) -> float:
        """Return the seconds from now until a time."""
        return (to_micros(time) - self._connections.now()) / MICROS_PER_SECOND

    async def requeue(self, record_id: JobId, after_: datetime | float | None) -> Answer:
        """Put a record back to queued, or cancel it if its column ``cancel`` is set. Finished records are refused.

        A running attempt loses its lease.
        """

        def requeue(tx: TableTransaction, record: CurrentRecord) -> Answer:
            if record.cancel:
                tx.run("reset_canceled" if record.state == State.PROCESSING else "cancel_waiting", id=record_id)
                reason = "its cancellation was requested, so it is canceled instead"
                return Answer(record_id, ActionResult.DONE, reason)
            if isinstance(after_, datetime):
                tx.run("requeue", due=to_micros(after_), id=record_id)
            else:
                tx.run("requeue", due=None if after_ is None else after(tx.now, after_), id=record_id)
            return Answer(record_id, ActionResult.DONE)

        return await self._act(record_id, requeue_refusal, requeue)

    async def page(self, states: Sequence[State], after_: JobId | None, limit: int) -> Sequence[ShownRecord]:
        """Return at most ``limit`` records in these states with ids above ``after_``, ordered by id."""
        parameters = {"states": json.dumps([state.value for state in states]), "after": after_, "limit": limit}
        return await self._connections.read(lambda tx: [shown_record(row) for row in tx.read("page", **parameters)])

    async def find(self, record_id: JobId) -> ShownRecord | None:
        """Return one record; ``None`` if there is none."""
        row = await self._connections.read(lambda tx: tx.read("find", id=record_id).fetchone())
        return None if row is None else shown_record(row)

    async def retry(self, record_id: JobId) -> Answer:
        """Put a record back to queued, due now, with no attempts. Running and completed records are refused."""

        def retry(tx: TableTransaction, _: CurrentRecord) -> Answer:
            tx.run("retry", id=record_id)
            return Answer(record_id, ActionResult.DONE)

        return await self._act(record_id, retry_refusal, retry)

    async def cancel(self, record_id: JobId) -> Answer:
        """Cancel a waiting record, or request the cancellation of a running one by its column ``cancel``."""

        def cancel(tx: TableTransaction, record: CurrentRecord) -> Answer:
            if record.state == State.PROCESSING:
                tx.run("cancel", id=record_id)
                return Answer(record_id, ActionResult.ASKED, "it is running; its worker will stop it")
            tx.run("cancel_waiting", id=record_id)
            return Answer(record_id, ActionResult.DONE)

        can_ask = self._connections.table.shape.has("cancel")
        return await self._act(record_id, partial(cancel_refusal, can_ask=can_ask), cancel)

    async def _act(
        self,
        record_id: JobId,
        refuse: Callable[[JobId, str | None], Answer | None],
        act: Callable[[TableTransaction, CurrentRecord], Answer],
    ) -> Answer:
        """Call ``act`` unless ``refuse`` returns an answer for the record's state (``None``: no such record)."""

        def work(tx: TableTransaction) -> Answer:
            record = find(tx, no_lease(record_id))
            refusal = refuse(record_id, None if record is None else record.state)
            if refusal is not None:
                return refusal
            assert record is not None  # a missing record is refused
            return act(tx, record)

        return await self._connections.write(work)

    async def logs(self, record_id: JobId) -> Sequence[str] | None:
        """Return a record's execution log, each entry as JSON text; ``None`` if there is no such record.

        The list is empty if the column does not contain a JSON array.
        """
        row = await self._connections.read(lambda tx: tx.read("logs", id=record_id).fetchone())
        if row is None:
            return None
        try:
            return [bytes(entry).decode() for entry in _log_decoder.decode(row[0] or "[]")]
        except (msgspec.DecodeError, TypeError, UnicodeError):
            return []


def _next_due(tx: TableTransaction) -> float | None:
    (due,) = tx.read("next_due", limit=MAX_RECORDS_FOR_NEXT_DUE).fetchone()
    return None if due is None else max(due - tx.now, 0) / MICROS_PER_SECOND


def _since(tx: TableTransaction, statement: str) -> float:
    """Return the seconds since the time that this named statement selects; 0 if it selects none."""
    (started_at,) = tx.read(statement, now=tx.now).fetchone()
    return 0.0 if started_at is None else max(tx.now - started_at, 0) / MICROS_PER_SECOND
