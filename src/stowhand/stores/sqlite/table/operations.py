"""What people and a waiting worker ask of the table: how many, how long, when the next one is due; logs, requeue."""

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
from stowhand.stores.sqlite.table.moments import SECOND, after, to_micros
from stowhand.stores.sqlite.table.plan import CurrentRecord, find, no_lease
from stowhand.stores.table.arguments import cancel_refusal, requeue_refusal, retry_refusal
from stowhand.stores.table.records import ShownRecord, shown_record

LOOKED_AT = 200
"""Waiting records looked at for the next due time; what is beyond is a poll's to find."""

_entries = msgspec.json.Decoder(list[msgspec.Raw])


class SqliteOperations:
    """Each call is one look, or one transaction."""

    def __init__(self, connections: TableConnections) -> None:
        self._connections = connections

    async def count(self, states: Sequence[State], conditions: Sequence[Any] = ()) -> dict[State, int]:
        """Of each state asked for."""
        found = dict(
            await self._connections.read(lambda tx: tx.select(tx.table.queries.counts(states, conditions)).fetchall())
        )
        return {state: found.get(state.value, 0) for state in states}

    async def exists(self, states: Sequence[State], conditions: Sequence[Any] = ()) -> bool:
        """At least one."""
        return await self._connections.read(
            lambda tx: tx.select(tx.table.queries.exists(states, conditions)).fetchone() is not None
        )

    async def next_due(self) -> float | None:
        """Seconds until the first waiting record is due; ``None``: none waits."""
        return await self._connections.read(_next_due)

    async def longest_wait(self) -> float:
        """Seconds; 0: nothing is due."""
        return await self._connections.read(lambda tx: _since(tx, "longest_wait"))

    async def longest_run(self) -> float:
        """Seconds; 0: nothing is running."""
        return await self._connections.read(lambda tx: _since(tx, "longest_run"))

    async def seconds_until(self, moment: datetime) -> float:
        """From now."""
        return (to_micros(moment) - self._connections.now()) / SECOND

    async def requeue(self, record_id: JobId, after_: datetime | float | None) -> Answer:
        """To queued; where ``cancel`` is set, to canceled. Terminal records are refused."""

        def requeue(tx: TableTransaction, held: CurrentRecord) -> Answer:
            if held.cancel:
                tx.run("reset_canceled" if held.state == State.PROCESSING else "cancel_waiting", id=record_id)
                return Answer(record_id, ActionResult.DONE, "it was asked to cancel: canceled instead")
            seconds = None if after_ is None or isinstance(after_, datetime) else after(tx.now, after_)
            tx.run("requeue", due=to_micros(after_) if isinstance(after_, datetime) else seconds, id=record_id)
            return Answer(record_id, ActionResult.DONE)

        return await self._act(record_id, requeue_refusal, requeue)

    async def page(self, states: Sequence[State], after_: JobId | None, limit: int) -> Sequence[ShownRecord]:
        """Records in these states, by id, above ``after_``."""
        given = {"states": json.dumps([state.value for state in states]), "after": after_, "limit": limit}
        return await self._connections.read(lambda tx: [shown_record(row) for row in tx.look("page", **given)])

    async def find(self, record_id: JobId) -> ShownRecord | None:
        """One record."""
        row = await self._connections.read(lambda tx: tx.look("find", id=record_id).fetchone())
        return None if row is None else shown_record(row)

    async def retry(self, record_id: JobId) -> Answer:
        """To queued, as if it had never been tried."""

        def retry(tx: TableTransaction, _: CurrentRecord) -> Answer:
            tx.run("retry", id=record_id)
            return Answer(record_id, ActionResult.DONE)

        return await self._act(record_id, retry_refusal, retry)

    async def cancel(self, record_id: JobId) -> Answer:
        """What waits is canceled, what runs is asked to end."""

        def cancel(tx: TableTransaction, held: CurrentRecord) -> Answer:
            if held.state == State.PROCESSING:
                tx.run("cancel", id=record_id)
                return Answer(record_id, ActionResult.ASKED, "it is running, and asked to stop")
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
        """Do it, unless it is refused for a record in this state, or for one that is not there."""

        def work(tx: TableTransaction) -> Answer:
            held = find(tx, no_lease(record_id))
            refusal = refuse(record_id, None if held is None else held.state)
            if refusal is not None:
                return refusal
            assert held is not None  # what is not there is refused
            return act(tx, held)

        return await self._connections.write(work)

    async def logs(self, record_id: JobId) -> Sequence[str] | None:
        """Entry by entry; none where the column holds anything but a JSON array."""
        row = await self._connections.read(lambda tx: tx.look("logs", id=record_id).fetchone())
        if row is None:
            return None
        try:
            return [bytes(entry).decode() for entry in _entries.decode(row[0] or "[]")]
        except (msgspec.DecodeError, TypeError, UnicodeError):
            return []


def _next_due(tx: TableTransaction) -> float | None:
    (due,) = tx.look("next_due", limit=LOOKED_AT).fetchone()
    return None if due is None else max(due - tx.now, 0) / SECOND


def _since(tx: TableTransaction, name: str) -> float:
    (since,) = tx.look(name, now=tx.now).fetchone()
    return 0.0 if since is None else max(tx.now - since, 0) / SECOND
