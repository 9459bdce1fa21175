"""The interface of a database to a table's store, implemented by stores/postgres/table and stores/sqlite/table.

``shape`` is created from the options (names.py); options.py determines the selected columns and their order. The
durations ``options.stalled``, ``retry_delay`` and so on are in seconds. No backend connects before ``open``.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Protocol

import msgspec

from stowhand.errors import TableUnsuitable
from stowhand.events import Events, StoreWarning
from stowhand.jobs.job import State
from stowhand.jobs.lease import JobId, Lease
from stowhand.jobs.lifecycle import Settlement
from stowhand.protocols.attempt import Attempt, Transaction
from stowhand.protocols.queue_store import Answer
from stowhand.protocols.store import ClaimRequest, Heartbeats, Reply
from stowhand.stores.calls import Calls
from stowhand.stores.table.arguments import KeyType
from stowhand.stores.table.names import Shape
from stowhand.stores.table.records import ShownRecord

MAX_RESETS_IN_EPOCH = 999_999
"""The largest addition to an epoch: less than a second, in microseconds."""


class ClaimedRow(msgspec.Struct, frozen=True):
    """A claimed row, as read from the database."""

    lease: Lease
    """Its epoch is ``started_at`` in microseconds since 1970, as stored after the claim. If the column stores whole
    seconds, ``num_resets`` is added. Every later write compares the epoch and the token."""
    values: tuple[Any, ...]
    """The values of the column expressions after the update, in order."""
    num_failures: int
    num_resets: int
    fault: str = ""
    """The reason why there are no values, such as a view that shows the row twice. The attempt then fails. Empty: no
    fault."""


class Finding(msgspec.Struct, frozen=True):
    """One problem of a table, and its fix."""

    problem: str
    fix: str = ""
    """SQL to run statement by statement; empty if the user must decide."""
    fatal: bool = True
    """Whether no worker can serve the table with this problem. Otherwise the finding is advice, such as an index."""
    warned: bool = False
    """Whether every starting worker reports the finding, because it makes records wait, or run again."""


class Notices:
    """Warnings about a table, emitted as events of its workers. Without a worker they are dropped."""

    def __init__(self, store: str) -> None:
        self._store = store
        self._listeners: list[Events] = []

    def add_listener(self, events: Events) -> None:
        """Emit to these events too."""
        if not any(events is listener for listener in self._listeners):
            self._listeners.append(events)

    def warn(self, warning: str, fix: str = "") -> None:
        """Emit a warning, from the event loop or from the thread of the heartbeats."""
        for events in tuple(self._listeners):
            events.emit(StoreWarning(self._store, warning, fix))


def refuse_fatal(shape: Shape, findings: Sequence[Finding]) -> None:
    """Raise TableUnsuitable, with each fatal finding and its fix, if there is one."""
    fatal = [finding for finding in findings if finding.fatal]
    if not fatal:
        return
    lines = [f"the table {shape.table.display_name} cannot be served (stowhand table check):"]
    for finding in fatal:
        lines.append(f"* {finding.problem}")
        lines.extend(f"    {line}" for line in finding.fix.splitlines())
    raise TableUnsuitable("\n".join(lines))


class RecordQueries(Protocol):
    """Operations of users and handlers on records. Ids have passed ``read_key``; times are the database's own."""

    async def requeue(self, record_id: JobId, after: datetime | float | None) -> Answer:
        """Put a record back to queued, due at ``after`` (a datetime, or seconds from now).

        A running attempt loses its lease. Finished records are refused.
        """

    async def seconds_until(self, time: datetime) -> float:
        """Return the seconds from the database's time to this aware datetime; negative if it has passed."""

    async def count(self, states: Sequence[State], conditions: Sequence[Any] = ()) -> dict[State, int]:
        """Count the records in each of these states that meet the conditions. Every requested state is a key."""

    async def exists(self, states: Sequence[State], conditions: Sequence[Any] = ()) -> bool:
        """Return whether there is such a record."""

    async def next_due(self) -> float | None:
        """See ``Store.next_due``."""

    async def longest_wait(self) -> float:
        """Return for how many seconds the earliest due record has been due; 0 without one."""

    async def longest_run(self) -> float:
        """Return the seconds since the oldest claim of a record in processing; 0 without one."""

    async def logs(self, record_id: JobId) -> Sequence[str] | None:
        """Return a record's execution log, each entry as JSON text; ``None`` if there is no such record."""

    async def page(self, states: Sequence[State], after: JobId | None, limit: int) -> Sequence[ShownRecord]:
        """Return records in these states with ids above ``after``, ordered by id."""

    async def find(self, record_id: JobId) -> ShownRecord | None:
        """Return one record; ``None`` if there is none."""

    async def retry(self, record_id: JobId) -> Answer:
        """Put a record back to queued, due now, with no attempts. Refused for running and completed records."""

    async def cancel(self, record_id: JobId) -> Answer:
        """Cancel a waiting record, or request it of a running one by the column ``cancel``. Others are refused."""


class AttemptTools(Protocol):
    """Operations of one running attempt, guarded by its lease, on the attempt's own connection if it has one."""

    @property
    def queries(self) -> RecordQueries:
        """The operations on records of the table."""

    async def add_log(self, lease: Lease, entry: str) -> int:
        """Append an entry (JSON text), and return its number. Raises LogRefused."""

    async def update_log(self, lease: Lease, number: int, entry: str) -> None:
        """Replace entry ``number`` (1, 2, …). Raises LogRefused."""


class AttemptTransaction(Transaction, AttemptTools, Protocol):
    """An attempt's transaction, and the operations of its handler there."""


class Backend(AttemptTools, Protocol):
    """One table in one database. Every time is the database's own, except in tests."""

    @property
    def description(self) -> str:
        """The address of the table, without a password."""

    @property
    def key(self) -> KeyType:
        """The type of the id column, known once the table is open."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of a record's columns in order, known once the table is open."""

    async def open(self) -> None:
        """Connect and read the catalog, but no row. Raises StoreUnreachable, TableUnsuitable."""

    @property
    def warnings(self) -> Sequence[Finding]:
        """The findings at opening that every worker reports."""

    async def close(self) -> None:
        """Close every connection. Harmless when repeated."""

    async def claim(self, request: ClaimRequest) -> Sequence[ClaimedRow]:
        """Claim due records in the order of ``order_by_expression``, skipping locked ones."""

    async def settle(self, batch: Sequence[tuple[Lease, Settlement]], *, repeat: bool = False) -> Sequence[Reply]:
        """See ``Store.settle``. A record whose ``cancel`` is set becomes canceled, unless it is completed."""

    async def wait(self, timeout: float) -> bool:
        """See ``Store.wait``."""

    @property
    def is_listening(self) -> bool:
        """See ``Store.is_listening``."""

    def heartbeats(self, calls: Calls) -> Heartbeats:
        """See ``Store.heartbeats``. ``calls`` reports them."""

    async def begin(self, attempt: Attempt[Any]) -> tuple[Any, AttemptTransaction]:
        """Start a transaction for the attempt. Return its connection and the transaction. Raises LeaseLost."""

    async def check(self) -> Sequence[Finding]:
        """Compare table and view with the options."""
