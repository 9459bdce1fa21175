"""A table of the user's as a queue: what a worker, a handler and people see of it. The work is done by a backend.

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
from stowhand.protocols.store import PARTS, Capabilities, Claim, ClaimRequest, Foreign, Heartbeats, Reply, Terms
from stowhand.retry import constant
from stowhand.stores.calls import Calls
from stowhand.stores.table.arguments import (
    WAITING,
    read_after,
    read_conditions,
    read_filters,
    read_key,
    read_states,
)
from stowhand.stores.table.attempt_store import AttemptStore
from stowhand.stores.table.backend import AttemptTools, Backend, Finding, Notices, Taken
from stowhand.stores.table.names import Shape, read_shape
from stowhand.stores.table.options import TableOptions
from stowhand.stores.table.records import LIVE, MAX_PAGE_SIZE, PAGE_SIZE, Records, ShownRecord, rows_of, shown_log
from stowhand.stores.url import scheme_of, store_url

R = TypeVar("R")
_REFUSED = "a table of yours, and its rows, are the application's: use SQL"


class TableStore(Generic[R]):
    """Jobs in a table of yours. Inserting them is yours too; a plain INSERT is enough.

    ``place``: ``postgresql://…``, a libpq string, a ``psycopg_pool.AsyncConnectionPool``, or ``sqlite:///file``.
    Nothing is connected before it is used. Raises ConfigurationError.
    """

    jobs = transactions = inspect = admin = operate = timetable = results = None
    schema = settings = connections = flows = notices = None
    """Inserting, looking, changing and scheduling are the application's, in SQL; and so is the table."""

    def __init__(
        self,
        place: str | object,
        options: TableOptions[R],
        *,
        events: Events | None = None,
        _pinned: Pinned | None = None,
    ) -> None:
        self.options = options
        self.capabilities = Capabilities(table=options.name, absent=dict.fromkeys(PARTS, _REFUSED))
        self._notices = Notices(options.name)
        self._backend, shape = backend_of(place, options, _pinned, self._notices)
        self._folds = shape.folds
        self._records = Records(options.record, options.scan, options.record_id, shape.columns)
        self._calls = Calls(options.name, events)
        self._offer = partial(self._attempt_store, self._backend)
        self._opening = asyncio.Lock()
        self._open = False

    @property
    def name(self) -> str:
        """Of the options: what logs and metrics call it."""
        return self.options.name

    @property
    def description(self) -> str:
        """Where it is, for people."""
        return self._backend.description

    @property
    def events(self) -> Events | None:
        """Where calls to the table are reported."""
        return self._calls.events

    @events.setter
    def events(self, events: Events | None) -> None:
        self._calls.events = events

    # -- a worker's ------------------------------------------------------------------------------

    @property
    def terms(self) -> Terms:
        """What the options lay down for every worker."""
        options = self.options
        return Terms(
            lease=options.stalled,
            heartbeat_interval=None if options.heartbeat_interval is None else seconds(options.heartbeat_interval),
            cancel_interval=None if options.cancel_interval is None else seconds(options.cancel_interval),
            backoff=constant(options.retry_delay),
            polls=options.notify_channel is None,
        )

    async def open(self) -> None:
        """Connect and look at the catalog; no row is touched. Raises StoreUnreachable, TableUnsuitable."""
        if not self._open:
            await self._open_once()

    async def _open_once(self) -> None:
        async with self._opening:
            if self._open:
                return
            try:
                with self._calls.timed("open"):
                    await self._backend.open()
                self._check_record()
            except BaseException:
                await self._backend.close()
                raise
            self._open = True

    async def close(self) -> None:
        """Close every connection."""
        async with self._opening:
            self._open = False
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
        """Raises TableUnsuitable, with every trouble and its DDL, for a table that no worker can serve.

        ``events``: receive the warnings about one that can be served.
        """
        await self.open()
        if events is not None:
            self._notices.to(events)
            for finding in self._backend.warnings:
                events.emit(StoreWarning(self.name, finding.problem, finding.mend))

    async def claim(self, request: ClaimRequest) -> Sequence[Claim[R]]:
        """Due records, now processing. A record that could not be read is an ``Unreadable``: an error of its attempt.

        Raises TableUnsuitable when none of several could be: nothing is claimed then.
        """
        if request.tasks is not None and self.options.name not in request.tasks:
            return []
        conditions = read_conditions(request.conditions, folds=self._folds)
        if conditions != request.conditions:
            request = msgspec.structs.replace(request, conditions=conditions)
        await self.open()
        with self._calls.timed("claim"):
            taken = await self._backend.claim(request)
        return [self._claimed(one) for one in taken]

    async def settle(self, batch: Sequence[tuple[Lease, Settlement]], *, repeat: bool = False) -> Sequence[Reply]:
        """Record how attempts ended."""
        if not batch:
            return []
        await self.open()
        with self._calls.timed("settle"):
            return await self._backend.settle(batch, repeat=repeat)

    async def next_due(self, tasks: tuple[str, ...] | None, queues: Queues = ALL_QUEUES) -> float | None:
        """Seconds until the earliest waiting record is due."""
        if tasks is not None and self.options.name not in tasks:
            return None
        await self.open()
        with self._calls.timed("next_due"):
            return await self._backend.asking.next_due()

    def foreign(self) -> Foreign | None:
        """Unknown here: a table's heartbeats look at them."""
        return None

    async def wait(self, timeout: float) -> bool:
        """True when there may be new work."""
        return await self._backend.wait(timeout)

    @property
    def is_listening(self) -> bool:
        """Wake-ups are known to arrive just now."""
        return self._backend.is_listening

    def heartbeats(self) -> Heartbeats:
        """With a connection of its own."""
        return self._backend.heartbeats(self._calls)

    # -- a running handler's ---------------------------------------------------------------------

    def around(self, attempt: Attempt[Any]) -> AbstractAsyncContextManager[None] | None:
        """Give the handler its ``ctx.store``; with ``transactional``, a transaction that encloses it."""
        if self.options.transactional:
            return self._in_transaction(attempt)
        control_of(attempt).offer = self._offer
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
        """Put a record, or the one with this key, back to ``queued``, due at ``after``: a moment (aware), seconds from
        now, ``None``: at once.

        An attempt that is running will record nothing. Refused, with the reason, for what is over (completed, failed,
        canceled). Raises InvalidJob for a key or a time that is none.
        """
        key, due = await self._key(record), read_after(after)
        with self._calls.timed("requeue"):
            return await self._backend.asking.requeue(key, due)

    async def records(
        self, *states: State | str, after: JobId | None = None, limit: int = PAGE_SIZE
    ) -> list[ShownRecord]:
        """Records in these states by id, as the table's own columns tell them; none given: what is live, and failed.

        ``after``: only ids above this one. ``limit``: 1 to 10,000.
        """
        if type(limit) is not int or not 1 <= limit <= MAX_PAGE_SIZE:
            raise InvalidJob(f"limit: {limit!r}; give 1 to {MAX_PAGE_SIZE}")
        wanted = read_states(states or LIVE)
        await self.open()
        above = None if after is None else read_key(self._backend.key, after)
        with self._calls.timed("records"):
            return list(await self._backend.asking.page(wanted, above, limit))

    async def look_up(self, record: R | JobId) -> ShownRecord | None:
        """One record, as the table's own columns tell it; ``None``: there is none."""
        key = await self._key(record)
        with self._calls.timed("look_up"):
            return await self._backend.asking.find(key)

    async def retry_record(self, record: R | JobId) -> Answer:
        """Make a record due now, as if it had never been tried: also one that has failed, or was canceled.

        Refused while it runs, and when it is completed.
        """
        key = await self._key(record)
        with self._calls.timed("retry"):
            return await self._backend.asking.retry(key)

    async def cancel_record(self, record: R | JobId) -> Answer:
        """Cancel a waiting record; ask a running one to stop, which its worker learns with the next heartbeat."""
        key = await self._key(record)
        with self._calls.timed("cancel"):
            return await self._backend.asking.cancel(key)

    async def queued_count(self, include_processing: bool = False, conditions: object = ()) -> int:
        """How many records wait (queued or errored, due or not), with those in processing if asked for."""
        states = (*WAITING, State.PROCESSING) if include_processing else WAITING
        return await self.count_by_state(*states, conditions=conditions)

    async def count_by_state(self, *states: State | str, conditions: object = ()) -> int:
        """How many records are in any of these states. Raises ConfigurationError when none is given."""
        return sum((await self.counts(*states, conditions=conditions)).values()) if states else len(read_states(states))

    async def counts(self, *states: State | str, conditions: object = ()) -> dict[State, int]:
        """How many records are in each of these states (none given: of all), and fulfil the conditions."""
        wanted, asked = read_states(states or tuple(State)), read_filters(conditions, folds=self._folds)
        await self.open()
        with self._calls.timed("count"):
            found = await self._backend.asking.count(wanted, asked)
        return {state: found.get(state, 0) for state in wanted}

    async def exists(self, *states: State | str, conditions: object = ()) -> bool:
        """Is there a record in any of these states? Cheaper than counting. None given: refused."""
        wanted, asked = read_states(states), read_filters(conditions, folds=self._folds)
        await self.open()
        with self._calls.timed("exists"):
            return await self._backend.asking.exists(wanted, asked)

    async def max_duration_in_queue(self) -> timedelta:
        """How long the record due longest has been due; zero when none is."""
        await self.open()
        with self._calls.timed("longest_wait"):
            return timedelta(seconds=await self._backend.asking.longest_wait())

    async def oldest_claim_age(self) -> timedelta:
        """How long ago the record in processing was claimed that was claimed first; zero when none is."""
        await self.open()
        with self._calls.timed("longest_run"):
            return timedelta(seconds=await self._backend.asking.longest_run())

    async def logs(self, record: R | JobId) -> list[ExecutionLogEntry] | None:
        """The execution log of the latest attempt; ``None``: no such record."""
        key = await self._key(record)
        with self._calls.timed("logs"):
            found = await self._backend.asking.logs(key)
        return None if found is None else [shown_log(one) for one in found]

    async def scan_all(self, rows: Any) -> list[R]:
        """Records of rows of your own statement: of a cursor (asynchronous or not), or of a list of rows.

        Rows without names (tuples) of a list must hold the values of the column expressions. Raises what the record's
        type raises for the first row of which no record can be made.
        """
        names, plain = await rows_of(rows)
        if names is None and any(not isinstance(row, Mapping) for row in plain):
            await self.open()
            names = self._backend.names
        return [self._records.from_row(names, row) for row in plain]

    def record_id(self, record: R) -> JobId:
        """The record's key. Raises ConfigurationError when it has none."""
        return self._records.key(record)

    async def check(self) -> list[Finding]:
        """Compare table, view and options with the catalog: every trouble, each with what mends it."""
        with self._calls.timed("check"):
            return list(await self._backend.check())

    # --------------------------------------------------------------------------------------------

    async def _key(self, record: R | JobId) -> JobId:
        """As leases have it: which keys there can be is known once the store is open."""
        await self.open()
        return read_key(self._backend.key, self._records.key(record))

    def _claimed(self, taken: Taken) -> Claim[R]:
        most = self.options.max_num_retries + 1
        record: Any = Unreadable(taken.fault) if taken.fault else self._records.read(self._backend.names, taken.values)
        return Claim(
            lease=taken.lease,
            record=record,
            task=self.options.name,
            attempts=min(taken.num_failures + 1, most),
            max_attempts=most,
            resets=taken.num_resets,
        )

    def _check_record(self) -> None:
        """A field without a column would fail every record of the table, one after the other."""
        missing = self._records.missing(self._backend.names)
        if missing:
            raise TableUnsuitable(
                f"column_expressions give {', '.join(self._backend.names)}, and not {', '.join(missing)}, which"
                f' {self.options.record!r} cannot do without; name a column of SQL by AS: sql("… AS {missing[0]}")'
            )


Pinned = Callable[[], datetime]
"""Tests only: the database's idea of now."""


def backend_of(
    place: str | object, options: TableOptions[Any], pinned: Pinned | None, notices: Notices
) -> tuple[Backend, Shape]:
    """The backend, and the names it was made with. Raises ConfigurationError."""
    if not isinstance(options, TableOptions):
        raise ConfigurationError(f"options: {a_type(options)} given; give TableOptions(…)")
    if isinstance(place, str):
        place = store_url(place)
        if (scheme := scheme_of(place)) == "sqlite":
            return _sqlite(place, options, pinned, notices)
        if scheme != "postgresql":
            raise ConfigurationError(f"a table of yours is in PostgreSQL or SQLite, not at {scheme}://")
    if isinstance(place, PurePath):
        raise ConfigurationError(f"a path given; for an SQLite file write {f'sqlite:///{place}'!r}")
    try:
        from stowhand.stores.postgres.table import PostgresTable
    except ImportError as error:
        raise ConfigurationError(f"PostgreSQL needs a driver: pip install 'stowhand[binary]' ({error})") from error

    shape = _shape(options, folds=True)
    return PostgresTable(place, options, shape, pinned=pinned, notices=notices), shape


def _sqlite(url: str, options: TableOptions[Any], pinned: Pinned | None, notices: Notices) -> tuple[Backend, Shape]:
    path = url.removeprefix("sqlite:///").partition("?")[0]
    problems = ["a path cannot hold NUL"] if "\0" in path else []
    if options.transactional:
        problems.append(
            "transactional: it needs locks of single rows, which SQLite has not; take PostgreSQL, or leave it out"
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
