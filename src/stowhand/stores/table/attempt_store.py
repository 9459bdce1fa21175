"""``ctx.store``: the operations of a running handler on its table, in the attempt's transaction if it has one.

Every change of the attempt's own record is guarded by its lease: a handler that has lost its record writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Generic, TypeVar

import msgspec

from stowhand.errors import LogRefused, a_type
from stowhand.jobs.durations import Duration
from stowhand.jobs.execution_log import MAX_LOG_ENTRIES, ExecutionLogEntry, bounded
from stowhand.jobs.job import State
from stowhand.jobs.lease import JobId
from stowhand.jobs.lifecycle import Snooze
from stowhand.protocols.attempt import Attempt, control_of
from stowhand.protocols.queue_store import ActionResult, Answer
from stowhand.stores.calls import Calls
from stowhand.stores.table.arguments import KeyType, read_after, read_filters, read_key, read_states
from stowhand.stores.table.backend import AttemptTools
from stowhand.stores.table.records import Records

R = TypeVar("R")
_MAX_ENTRY_NUMBER = 2**31 - 1
"""The largest index of an array in PostgreSQL."""


class AttemptStore(Generic[R]):
    """Operations of one attempt on its table. ``folds``: the database folds bare names to lower case (PostgreSQL)."""

    def __init__(
        self,
        tools: AttemptTools,
        attempt: Attempt[Any],
        records: Records,
        key: Callable[[], KeyType],
        calls: Calls,
        folds: bool,
    ) -> None:
        self._tools = tools
        self._attempt = attempt
        self._records = records
        self._key = key
        self._calls = calls
        self._folds = folds
        self._entry_count = 0

    @property
    def requeued(self) -> float | None:
        """The seconds until the attempt's own record is due again; ``None`` if it was not requeued."""
        decided = control_of(self._attempt).decided
        return decided.delay if isinstance(decided, Snooze) else None

    async def requeue(self, record: R | JobId, after: datetime | Duration | None = None) -> Answer:
        """Put a record back to ``queued``, due at ``after`` (an aware datetime or a duration), or now.

        The attempt's own record is put back when the handler returns without raising; its attempt is not counted.
        Other records are put back at once, and a running attempt of theirs loses its lease. The answer is REFUSED for a
        finished record, MISSING for an unknown one.

        Raises InvalidJob for an invalid key or time, LeaseLost if the attempt's handler has finished, StoreUnreachable.
        """
        key = read_key(self._key(), self._records.key(record))
        due = read_after(after)
        if key != self._attempt.lease.job_id:
            with self._calls.timed("requeue"):
                return await self._tools.queries.requeue(key, due)
        if isinstance(due, datetime):
            with self._calls.timed("seconds_until"):
                due = await self._tools.queries.seconds_until(due)
        control_of(self._attempt).decide(Snooze(max(due or 0.0, 0.0)))
        return Answer(key, ActionResult.DONE)

    async def exists(self, *states: State | str, conditions: object = ()) -> bool:
        """Return whether a record in any of these states meets the conditions. At least one state is required."""
        with self._calls.timed("exists"):
            return await self._tools.queries.exists(read_states(states), read_filters(conditions, folds=self._folds))

    async def count_by_state(self, *states: State | str, conditions: object = ()) -> int:
        """Count the records in these states that meet the conditions. At least one state is required."""
        with self._calls.timed("count"):
            counts = await self._tools.queries.count(read_states(states), read_filters(conditions, folds=self._folds))
        return sum(counts.values())

    async def add_execution_log_entry(self, entry: ExecutionLogEntry) -> int:
        """Append an entry to the record's execution log, and return its number: 1, 2, …

        Long texts are cut (``out`` keeps its end). Raises LogRefused when the lease is lost or the attempt has
        MAX_LOG_ENTRIES entries; StoreUnreachable.
        """
        if self._entry_count >= MAX_LOG_ENTRIES:
            raise LogRefused(f"an attempt's log has at most {MAX_LOG_ENTRIES} entries; update the last one instead")
        text = _as_json(entry)
        with self._calls.timed("add_log"):
            number = await self._tools.add_log(self._attempt.lease, text)
        self._entry_count = number
        return number

    async def update_execution_log_entry(self, number: int, entry: ExecutionLogEntry) -> None:
        """Replace entry ``number``. Raises LogRefused when there is no such entry, or the lease is lost."""
        # For 0, PostgreSQL would add an element before the first one.
        if type(number) is not int or not 0 < number <= _MAX_ENTRY_NUMBER:
            raise LogRefused(f"there is no entry {number!r}; entries are numbered 1, 2, …")
        text = _as_json(entry)
        with self._calls.timed("update_log"):
            await self._tools.update_log(self._attempt.lease, number, text)


def _as_json(entry: object) -> str:
    if not isinstance(entry, ExecutionLogEntry):
        raise LogRefused(f"got {a_type(entry)}; use an ExecutionLogEntry")
    return msgspec.json.encode(bounded(entry)).decode()
