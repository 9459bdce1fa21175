"""A user's table as a queue, for workers, handlers and users. A backend does the work.

The driver of a backend is imported only where it is used.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime, timedelta
from functools import partial
from pathlib import PurePath
from typing import Any, Generic, Self, TypeVar

import msgspec

from stowhand.errors import ConfigurationError, InvalidJob, TableUnsuitable, a_type
from stowhand.events import Events, StoreWarning
from stowhand.jobs.durations import Duration, seconds
from stowhand.jobs.execution_log import ExecutionLogEntry
from stowhand.jobs.job import State
from stowhand.jobs.lease import JobId, Lease, Unreadable
from stowhand.jobs.lifecycle import Settlement
from stowhand.jobs.queues import ALL_QUEUES, Queues
from stowhand.protocols.attempt import Attempt, control_of
from stowhand.protocols.handler import EnclosingStore
from stowhand.protocols.queue_store import Answer
from stowhand.protocols.store import PART_NAMES, Capabilities, Claim, ClaimRequest, Foreign, Heartbeats, Reply, Terms
from stowhand.retry import constant
from stowhand.stores.calls import Calls
from stowhand.stores.table.arguments import (
    WAITING_STATES,
    read_after,
    read_conditions,
    read_filters,
    read_key,
    read_states,
)
from stowhand.stores.table.attempt_store import AttemptStore
from stowhand.stores.table.backend import AttemptTools, Backend, ClaimedRow, Finding, Notices
from stowhand.stores.table.names import Shape, read_shape
from stowhand.stores.table.options import TableOptions
from stowhand.stores.table.records import (
    LIVE_STATES,
    MAX_PAGE_SIZE,
    PAGE_SIZE,
    Records,
    ShownRecord,
    rows_of,
    shown_log,
)
from stowhand.stores.url import scheme_of, store_url

R = TypeVar("R")
_PART_IS_ABSENT = "a table of yours, and its rows, are the application's: use SQL"


class TableStore(Generic[R]):
    """Jobs in your own table. You insert them, with a plain INSERT.

    ``place``: ``postgresql://…``, a libpq string, a ``psycopg_pool.AsyncConnectionPool``, or ``sqlite:///file``.
    Nothing is connected before it is used. Raises ConfigurationError.
    """

    jobs = transactions = inspect = admin = operate = timetable = results = workflows = None
    schema = settings = connections = flows = notices = None
    """Parts that the application does itself, in SQL: inserting, reading, changing, scheduling, the schema."""

    def __init__(
        self,
        place: str | object,
        options: TableOptions[R],
        *,
        events: Events | None = None,
        _pinned: DatabaseClock | None = None,
    ) -> None:
        self.options = options
        self.capabilities = Capabilities(table=options.name, absent=dict.fromkeys(PART_NAMES, _PART_IS_ABSENT))
        self._notices = Notices(options.name)
        self._backend, shape = backend_of(place, options, _pinned, self._notices)
        self._folds = shape.folds
        self._records = Records(options.record, options.scan, options.record_id, shape.columns)
        self._calls = Calls(options.name, events)
        self._store_factory = partial(self._attempt_store, self._backend)
        self._open_lock = asyncio.Lock()
        self._is_open = False

    @property
    def name(self) -> str:
        """The name in logs and metrics, from the options."""
        return self.options.name

    @property
    def description(self) -> str:
        """The address of the table, without a password."""
        return self._backend.description

    @property
    def events(self) -> Events | None:
        """The receiver of reports about calls to the table."""
        return self._calls.events

    @events.setter
    def events(self, events: Events | None) -> None:
        self._calls.events = events

    # -- a worker's ------------------------------------------------------------------------------

    @property
    def terms(self) -> Terms:
        """The terms of every worker, from the options."""
        options = self.options
        return Terms(
            lease=options.stalled,
            heartbeat_interval=None if options.heartbeat_interval is None else seconds(options.heartbeat_interval),
            cancel_interval=None if options.cancel_interval is None else seconds(options.cancel_interval),
            backoff=constant(options.retry_delay),
            polls=options.notify_channel is None,
        )

    async def open(self) -> None:
        """Connect and read the catalog, but no row. Raises StoreUnreachable, TableUnsuitable."""
        if not self._is_open:
            await self._open_once()

    async def _open_once(self) -> None:
        async with self._open_lock:
            if self._is_open:
                return
            try:
                with self._calls.timed("open"):
                    await self._backend.open()
                self._check_record()
            except BaseException:
                await self._backend.close()
                raise
            self._is_open = True

    async def close(self) -> None:
        """Close every connection."""
        async with self._open_lock:
            self._is_open = False
            await self._backend.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()

    @property
    def enclosing(self) -> EnclosingStore:
        """The store itself."""
        return self

    async def validate(self, events: Events | None = None) -> None:
        """Raise TableUnsuitable, with every problem and its DDL, for a table that no worker can serve.

        ``events``: receive the warnings about a table that can be served.
        """
        await self.open()
        if events is not None:
            self._notices.add_listener(events)
            for finding in self._backend.warnings:
                events.emit(StoreWarning(self.name, finding.problem, finding.fix))

    async def claim(self, request: ClaimRequest) -> Sequence[Claim[R]]:
        """Claim due records. One that cannot be read is an ``Unreadable``, which is an error of its attempt.

        Raises TableUnsuitable, and claims nothing, if none of several records can be read.
        """
        if request.tasks is not None and self.options.name not in request.tasks:
            return []
        conditions = read_conditions(request.conditions, folds=self._folds)
        if conditions != request.conditions:
            request = msgspec.structs.replace(request, conditions=conditions)
        await self.open()
        with self._calls.timed("claim"):
            rows = await self._backend.claim(request)
        return [self._claimed(row) for row in rows]

    async def settle(self, batch: Sequence[tuple[Lease, Settlement]], *, repeat: bool = False) -> Sequence[Reply]:
        """Record the outcomes of attempts."""
        if not batch:
            return []
        await self.open()
        with self._calls.timed("settle"):
            return await self._backend.settle(batch, repeat=repeat)

    async def next_due(self, tasks: tuple[str, ...] | None, queues: Queues = ALL_QUEUES) -> float | None:
        """Return the seconds until the earliest waiting record is due."""
        if tasks is not None and self.options.name not in tasks:
            return None
        await self.open()
        with self._calls.timed("next_due"):
            return await self._backend.queries.next_due()

    def foreign(self) -> Foreign | None:
        """Return ``None``: the heartbeats of a table watch foreign leases."""
        return None

    async def wait(self, timeout: float) -> bool:
        """Wait for new work, and return True when there may be some."""
        return await self._backend.wait(timeout)

    @property
    def is_listening(self) -> bool:
        """Whether wake-ups are known to arrive now."""
        return self._backend.is_listening

    def heartbeats(self) -> Heartbeats:
        """Return heartbeats with their own connection."""
        return self._backend.heartbeats(self._calls)

    # -- a running handler's ---------------------------------------------------------------------

    def around(self, attempt: Attempt[Any]) -> AbstractAsyncContextManager[None] | None:
        """Give the handler its ``ctx.store``, and with ``transactional`` an enclosing transaction."""
        if self.options.transactional:
            return self._in_transaction(attempt)
        control_of(attempt).offer = self._store_factory
        return None

    @asynccontextmanager
    async def _in_transaction(self, attempt: Attempt[Any]) -> AsyncIterator[None]:
        with self._calls.timed("begin"):
            connection, transaction = await self._backend.begin(attempt)
        # From here on the end of the attempt ends the transaction.
        control = control_of(attempt)
        control.transaction = transaction
        control.connection = connection
        control.offer = partial(self._attempt_store, transaction)
        yield

    def _attempt_store(self, tools: AttemptTools, attempt: Attempt[Any]) -> AttemptStore[R]:
        return AttemptStore(tools, attempt, self._records, lambda: self._backend.key, self._calls, self._folds)

    # -- people's --------------------------------------------------------------------------------

    async def requeue(self, record: R | JobId, after: datetime | Duration | None = None) -> Answer:
        """Put a record, or the one with this key, back to ``queued``.

        A running attempt loses its lease and will record nothing. Completed, failed and canceled records are refused,
        with the reason.

        Args:
            record: A record or its key.
            after: The due time: an aware datetime, seconds from now, or ``None`` for now.

        Raises:
            InvalidJob: The key or the time is invalid.

        """
        key, due = await self._key(record), read_after(after)
        with self._calls.timed("requeue"):
            return await self._backend.queries.requeue(key, due)

    async def records(
        self, *states: State | str, after: JobId | None = None, limit: int = PAGE_SIZE
    ) -> list[ShownRecord]:
        """Return records in these states by id, read from the table's own columns.

        Args:
            states: Without any, all live and failed records.
            after: Return only ids above this one.
            limit: 1 to 10,000.

        """
        if type(limit) is not int or not 1 <= limit <= MAX_PAGE_SIZE:
            raise InvalidJob(f"limit: {limit!r}; use 1 to {MAX_PAGE_SIZE}")
        requested_states = read_states(states or LIVE_STATES)
        await self.open()
        above = None if after is None else read_key(self._backend.key, after)
        with self._calls.timed("records"):
            return list(await self._backend.queries.page(requested_states, above, limit))

    async def look_up(self, record: R | JobId) -> ShownRecord | None:
        """Return one record, read from the table's own columns; ``None`` if there is none."""
        key = await self._key(record)
        with self._calls.timed("look_up"):
            return await self._backend.queries.find(key)

    async def retry_record(self, record: R | JobId) -> Answer:
        """Make a record due now with no attempts, including failed and canceled records.

        Refused while it runs, and when it is completed.
        """
        key = await self._key(record)
        with self._calls.timed("retry"):
            return await self._backend.queries.retry(key)

    async def cancel_record(self, record: R | JobId) -> Answer:
        """Cancel a waiting record, or request it of a running one, which its worker learns with the next heartbeat."""
        key = await self._key(record)
        with self._calls.timed("cancel"):
            return await self._backend.queries.cancel(key)

    async def queued_count(self, include_processing: bool = False, conditions: object = ()) -> int:
        """Count waiting records (queued or errored, due or not), optionally with those in processing."""
        states = (*WAITING_STATES, State.PROCESSING) if include_processing else WAITING_STATES
        return await self.count_by_state(*states, conditions=conditions)

    async def count_by_state(self, *states: State | str, conditions: object = ()) -> int:
        """Count the records in these states. Raises ConfigurationError without any state."""
        return sum((await self.counts(*states, conditions=conditions)).values()) if states else len(read_states(states))

    async def counts(self, *states: State | str, conditions: object = ()) -> dict[State, int]:
        """Count the records in each of these states (without any: in all) that meet the conditions."""
        requested_states, filters = read_states(states or tuple(State)), read_filters(conditions, folds=self._folds)
        await self.open()
        with self._calls.timed("count"):
            counts = await self._backend.queries.count(requested_states, filters)
        return {state: counts.get(state, 0) for state in requested_states}

    async def exists(self, *states: State | str, conditions: object = ()) -> bool:
        """Return whether there is a record in any of these states. Cheaper than counting. Needs at least one state."""
        requested_states, filters = read_states(states), read_filters(conditions, folds=self._folds)
        await self.open()
        with self._calls.timed("exists"):
            return await self._backend.queries.exists(requested_states, filters)

    async def max_duration_in_queue(self) -> timedelta:
        """Return how long the earliest due record has been due; zero without one."""
        await self.open()
        with self._calls.timed("longest_wait"):
            return timedelta(seconds=await self._backend.queries.longest_wait())

    async def oldest_claim_age(self) -> timedelta:
        """Return the time since the oldest claim of a record in processing; zero without one."""
        await self.open()
        with self._calls.timed("longest_run"):
            return timedelta(seconds=await self._backend.queries.longest_run())

    async def logs(self, record: R | JobId) -> list[ExecutionLogEntry] | None:
        """Return the execution log of the latest attempt; ``None`` if there is no such record."""
        key = await self._key(record)
        with self._calls.timed("logs"):
            entries = await self._backend.queries.logs(key)
        return None if entries is None else [shown_log(entry) for entry in entries]

    async def scan_all(self, rows: Any) -> list[R]:
        """Return the records of your own statement's rows: a cursor (asynchronous or not), or a list of rows.

        Rows without names (tuples) must contain the values of the column expressions. Raises the error of the record's
        type for the first row that cannot become a record.
        """
        names, plain = await rows_of(rows)
        if names is None and any(not isinstance(row, Mapping) for row in plain):
            await self.open()
            names = self._backend.names
        return [self._records.from_row(names, row) for row in plain]

    def record_id(self, record: R) -> JobId:
        """Return the record's key. Raises ConfigurationError when it has none."""
        return self._records.key(record)

    async def check(self) -> list[Finding]:
        """Compare table, view and options with the catalog. Return every problem with its fix."""
        with self._calls.timed("check"):
            return list(await self._backend.check())

    # --------------------------------------------------------------------------------------------

    async def _key(self, record: R | JobId) -> JobId:
        """Return the key as in leases. The type of keys is known once the store is open."""
        await self.open()
        return read_key(self._backend.key, self._records.key(record))

    def _claimed(self, row: ClaimedRow) -> Claim[R]:
        max_attempts = self.options.max_num_retries + 1
        record: Any = Unreadable(row.fault) if row.fault else self._records.read(self._backend.names, row.values)
        return Claim(
            lease=row.lease,
            record=record,
            task=self.options.name,
            attempts=min(row.num_failures + 1, max_attempts),
            max_attempts=max_attempts,
            resets=row.num_resets,
        )

    def _check_record(self) -> None:
        """Raise TableUnsuitable for a required field without a column: it would fail every record."""
        missing = self._records.missing(self._backend.names)
        if missing:
            raise TableUnsuitable(
                f"column_expressions give {', '.join(self._backend.names)}, and not {', '.join(missing)}, which"
                f' {self.options.record!r} cannot do without; name a column of SQL by AS: sql("… AS {missing[0]}")'
            )


DatabaseClock = Callable[[], datetime]
"""Replaces the database's time in tests."""


def backend_of(
    place: str | object, options: TableOptions[Any], pinned: DatabaseClock | None, notices: Notices
) -> tuple[Backend, Shape]:
    """Return the backend and its names. Raises ConfigurationError."""
    if not isinstance(options, TableOptions):
        raise ConfigurationError(f"options: got {a_type(options)}; use TableOptions(…)")
    if isinstance(place, str):
        place = store_url(place)
        if (scheme := scheme_of(place)) == "sqlite":
            return _sqlite(place, options, pinned, notices)
        if scheme != "postgresql":
            raise ConfigurationError(f"a table of yours is in PostgreSQL or SQLite, not at {scheme}://")
    if isinstance(place, PurePath):
        raise ConfigurationError(f"got a path; for an SQLite file write {f'sqlite:///{place}'!r}")
    try:
        from stowhand.stores.postgres.table import PostgresTable
    except ImportError as error:
        raise ConfigurationError(f"PostgreSQL needs a driver: pip install 'stowhand[binary]' ({error})") from error

    shape = _shape(options, folds=True)
    return PostgresTable(place, options, shape, pinned=pinned, notices=notices), shape


def _sqlite(
    url: str, options: TableOptions[Any], pinned: DatabaseClock | None, notices: Notices
) -> tuple[Backend, Shape]:
    path = url.removeprefix("sqlite:///").partition("?")[0]
    problems = ["a path cannot hold NUL"] if "\0" in path else []
    if options.transactional:
        problems.append(
            "transactional: it needs locks of single rows, which SQLite does not have; use PostgreSQL, or leave it out"
        )
    if options.notify_channel is not None:
        problems.append("notify_channel: SQLite has no channels, and is polled; leave it out")
    if options.unique_ids:
        problems.append("unique_ids: SQLite has no partitions, so a unique index can be made; leave it out")
    if problems:
        raise ConfigurationError("; ".join(problems))
    from stowhand.stores.sqlite.table import SqliteTable

    shape = _shape(options, folds=False)
    return SqliteTable(path, options, shape, pinned=pinned, notices=notices), shape


def _shape(options: TableOptions[Any], *, folds: bool) -> Shape:
    return read_shape(options.table_name, options.view_name, options.alternate_column_names, folds=folds)
