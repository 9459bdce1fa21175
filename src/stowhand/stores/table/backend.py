"""What one database must be able to do for a table's store: stores/postgres/table and stores/sqlite/table do it.

``shape`` is made of the options (names.py); what is selected, and in what order, comes from options.py;
``options.stalled``, ``retry_delay`` and so on are seconds. Nothing is connected before ``open``.
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
from stowhand.stores.table.arguments import Key
from stowhand.stores.table.names import Shape
from stowhand.stores.table.records import ShownRecord

MOST_RESETS = 999_999
"""What is added to an epoch at most: less than a second."""


class Taken(msgspec.Struct, frozen=True):
    """A row that was claimed, as the database gave it."""

    lease: Lease
    """``epoch``: ``started_at`` in microseconds since 1970, as the column holds it after the claim; where that is whole
    seconds, with ``num_resets`` added. Every later write compares it, beside the token."""
    values: tuple[Any, ...]
    """Of the column expressions, after the update, in order."""
    num_failures: int
    num_resets: int
    fault: str = ""
    """Why there are no values: the view shows it twice, say. Its attempt is an error; empty: nothing is wrong."""


class Finding(msgspec.Struct, frozen=True):
    """One trouble with a table, and how to mend it."""

    problem: str
    mend: str = ""
    """SQL, ready to be run statement by statement; empty where only a person can decide."""
    fatal: bool = True
    """A worker cannot serve the table like this. Otherwise it is advice (an index)."""
    warned: bool = False
    """Reported whenever a worker starts, not only by the check: records wait, or run again, for this reason."""


class Notices:
    """Warnings about a table that is served, emitted as events of its workers. Without a worker they are dropped."""

    def __init__(self, store: str) -> None:
        self._store = store
        self._listeners: list[Events] = []

    def to(self, events: Events) -> None:
        """Emit to these too."""
        if not any(events is one for one in self._listeners):
            self._listeners.append(events)

    def say(self, warning: str, mend: str = "") -> None:
        """From the loop, or from the heartbeats' thread."""
        for events in tuple(self._listeners):
            events.emit(StoreWarning(self._store, warning, mend))


def refuse_fatal(shape: Shape, found: Sequence[Finding]) -> None:
    """Raises TableUnsuitable that names each fatal finding and what mends it."""
    fatal = [finding for finding in found if finding.fatal]
    if not fatal:
        return
    lines = [f"the table {shape.table.shown} cannot be served (stowhand table check):"]
    for finding in fatal:
        lines.append(f"* {finding.problem}")
        lines.extend(f"    {line}" for line in finding.mend.splitlines())
    raise TableUnsuitable("\n".join(lines))


class Asking(Protocol):
    """What people and handlers ask of a table. Ids have passed ``read_key``; every time is the database's own."""

    async def requeue(self, record_id: JobId, after: datetime | float | None) -> Answer:
        """To queued, due at ``after`` (a moment, or seconds from now); a running attempt is fenced out. Terminal:
        refused."""

    async def seconds_until(self, moment: datetime) -> float:
        """From the database's now to this (aware) moment; negative when it has passed."""

    async def count(self, states: Sequence[State], conditions: Sequence[Any] = ()) -> dict[State, int]:
        """How many are in each of these states, and fulfil the conditions; every state asked for is a key."""

    async def exists(self, states: Sequence[State], conditions: Sequence[Any] = ()) -> bool:
        """Is there one?"""

    async def next_due(self) -> float | None:
        """As ``Store.next_due``."""

    async def longest_wait(self) -> float:
        """Seconds that the one due longest has been due; 0: none is."""

    async def longest_run(self) -> float:
        """Seconds since the oldest record in processing was claimed; 0: none is."""

    async def logs(self, record_id: JobId) -> Sequence[str] | None:
        """Its execution log, entry by entry as JSON text; ``None``: no such record."""

    async def page(self, states: Sequence[State], after: JobId | None, limit: int) -> Sequence[ShownRecord]:
        """Records in these states, by id, above ``after``."""

    async def find(self, record_id: JobId) -> ShownRecord | None:
        """One record; ``None``: there is none."""

    async def retry(self, record_id: JobId) -> Answer:
        """To queued, due now, as if it had never been tried. Refused for what runs, and what is completed."""

    async def cancel(self, record_id: JobId) -> Answer:
        """A waiting one is canceled; a running one is asked to end, by the column ``cancel``. Others are refused."""


class AttemptTools(Protocol):
    """What a backend does for one running attempt; guarded by the attempt's lease, on its connection if it has one."""

    @property
    def asking(self) -> Asking:
        """Of the table."""

    async def add_log(self, lease: Lease, entry: str) -> int:
        """Append an entry (JSON text). Raises LogRefused."""

    async def update_log(self, lease: Lease, number: int, entry: str) -> None:
        """Put it in the place of entry ``number`` (1, 2, …). Raises LogRefused."""


class AttemptTransaction(Transaction, AttemptTools, Protocol):
    """An attempt's transaction, and what its handler may do there besides using the connection."""


class Backend(AttemptTools, Protocol):
    """One table in one database. Every time is the database's own; ``_now`` of tests excepted."""

    @property
    def description(self) -> str:
        """Where it is, for people; never a password."""

    @property
    def key(self) -> Key:
        """What the id column holds; known once it is open."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of the columns that a record is made of, in order; known once it is open."""

    async def open(self) -> None:
        """Connect and look at the catalog. Raises StoreUnreachable, TableUnsuitable; touches no row."""

    @property
    def warnings(self) -> Sequence[Finding]:
        """Findings at opening that every worker reports."""

    async def close(self) -> None:
        """Close every connection. Harmless when repeated."""

    async def claim(self, request: ClaimRequest) -> Sequence[Taken]:
        """Due records in the order of ``order_by_expression``, locked ones skipped, now processing under the token."""

    async def settle(self, batch: Sequence[tuple[Lease, Settlement]], *, repeat: bool = False) -> Sequence[Reply]:
        """As ``Store.settle``. A record whose ``cancel`` is set goes to canceled instead of anywhere but completed."""

    async def wait(self, timeout: float) -> bool:
        """As ``Store.wait``."""

    @property
    def is_listening(self) -> bool:
        """As ``Store.is_listening``."""

    def heartbeats(self, calls: Calls) -> Heartbeats:
        """As ``Store.heartbeats``. ``calls``: report them there."""

    async def begin(self, attempt: Attempt[Any]) -> tuple[Any, AttemptTransaction]:
        """A transaction for the attempt: its connection, and how it ends. Raises LeaseLost."""

    async def check(self) -> Sequence[Finding]:
        """Compare table and view with the options."""
