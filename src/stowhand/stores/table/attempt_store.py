"""What a running handler may ask of its table: ``ctx.store``. Inside its transaction, where the attempt has one.

Everything about the attempt's own record is guarded by its lease: a handler that has lost its record writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Generic, TypeVar

import msgspec

from stowhand.errors import LogRefused, a_type
from stowhand.jobs.durations import Duration
from stowhand.jobs.execution_log import ENTRIES_LIMIT, ExecutionLogEntry, bounded
from stowhand.jobs.job import State
from stowhand.jobs.lease import JobId
from stowhand.jobs.lifecycle import Snooze
from stowhand.protocols.attempt import Attempt, control_of
from stowhand.protocols.queue_store import ActionResult, Answer
from stowhand.stores.calls import Calls
from stowhand.stores.table.arguments import Key, read_after, read_filters, read_key, read_states
from stowhand.stores.table.backend import AttemptTools
from stowhand.stores.table.records import Records

R = TypeVar("R")
_MAX_NUMBER = 2**31 - 1
"""Elements of an array."""


class AttemptStore(Generic[R]):
    """The table as one attempt sees it."""

    def __init__(
        self,
        tools: AttemptTools,
        attempt: Attempt[Any],
        records: Records,
        key: Callable[[], Key],
        calls: Calls,
        folds: bool,
    ) -> None:
        self._tools = tools
        self._attempt = attempt
        self._records = records
        self._key = key
        self._calls = calls
        self._folds = folds
        self._entries = 0

    @property
    def requeued(self) -> float | None:
        """Seconds after which the attempt's own record is to be due again; ``None``: it was not requeued."""
        decided = control_of(self._attempt).decided
        return decided.delay if isinstance(decided, Snooze) else None

    async def requeue(self, record: R | JobId, after: datetime | Duration | None = None) -> Answer:
        """Put a record back to ``queued``, due at ``after``: a moment (aware), seconds from now, ``None``: at once.

        The attempt's own record is put back when the handler returns, its attempt unspent, and only if it returns
        without raising. Others at once, unless they are over (the answer says REFUSED). Raises InvalidJob for a
        key or a time that is none, StoreUnreachable.
        """
        key = read_key(self._key(), self._records.key(record))
        due = read_after(after)
        if key != self._attempt.lease.job_id:
            with self._calls.timed("requeue"):
                return await self._tools.asking.requeue(key, due)
        if isinstance(due, datetime):
            with self._calls.timed("seconds_until"):
                due = await self._tools.asking.seconds_until(due)
        control_of(self._attempt).decide(Snooze(max(due or 0.0, 0.0)))
        return Answer(key, ActionResult.DONE)

    async def exists(self, *states: State | str, conditions: object = ()) -> bool:
        """Is there a record in any of these states that fulfils the conditions? No states: refused."""
        with self._calls.timed("exists"):
            return await self._tools.asking.exists(read_states(states), read_filters(conditions, folds=self._folds))

    async def count_by_state(self, *states: State | str, conditions: object = ()) -> int:
        """How many records are in any of these states, and fulfil the conditions. No states: refused."""
        with self._calls.timed("count"):
            found = await self._tools.asking.count(read_states(states), read_filters(conditions, folds=self._folds))
        return sum(found.values())

    async def add_execution_log_entry(self, entry: ExecutionLogEntry) -> int:
        """Append to the record's execution log; the entry's number: 1, 2, …

        What is too long is cut (of ``out`` the end is kept). Raises LogRefused when the lease is gone or the attempt
        has ENTRIES_LIMIT entries; StoreUnreachable.
        """
        if self._entries >= ENTRIES_LIMIT:
            raise LogRefused(f"an attempt's log has {ENTRIES_LIMIT} entries at most; update the last one instead")
        text = _as_json(entry)
        with self._calls.timed("add_log"):
            number = await self._tools.add_log(self._attempt.lease, text)
        self._entries = number
        return number

    async def update_execution_log_entry(self, number: int, entry: ExecutionLogEntry) -> None:
        """Put this in the place of entry ``number``. Raises LogRefused when there is none, or the lease is gone."""
        # 0 would be an element before the first, which PostgreSQL would make.
        if type(number) is not int or not 0 < number <= _MAX_NUMBER:
            raise LogRefused(f"no entry {number!r}: they are numbered 1, 2, …")
        text = _as_json(entry)
        with self._calls.timed("update_log"):
            await self._tools.update_log(self._attempt.lease, number, text)


def _as_json(entry: object) -> str:
    if not isinstance(entry, ExecutionLogEntry):
        raise LogRefused(f"{a_type(entry)} given; give an ExecutionLogEntry")
    return msgspec.json.encode(bounded(entry)).decode()
