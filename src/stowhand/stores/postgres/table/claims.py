"""Claims on their own connection. One transaction picks, marks and reads records, so a claim is all or nothing.

After an error a slower claim works with savepoints, if necessary record by record.

A record's values are read as text. Times that Python cannot represent (``infinity``, the year 20000) become its first
or last time, so that one such value does not make all claimed records unreadable. The session writes ISO dates in UTC
(``begin_claim``), while psycopg reads by the connection's settings, which it learns only after the transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, date, datetime
from functools import lru_cache
from typing import Any

import psycopg
from psycopg.adapt import Buffer, Loader
from psycopg.rows import TupleRow

from stowhand.clock import SystemClock, stopwatch
from stowhand.errors import StoreError, TableUnsuitable
from stowhand.jobs.conditions import split_conditions
from stowhand.jobs.text import clean
from stowhand.protocols.store import ClaimRequest
from stowhand.stores.database import postgres_errors
from stowhand.stores.database.address import STATEMENT_DEADLINE_SECONDS
from stowhand.stores.database.link import Connection, Link, Row
from stowhand.stores.database.refused_rows import write_each
from stowhand.stores.passed_over import PassedOver
from stowhand.stores.postgres.table.context import TableContext
from stowhand.stores.table.backend import ClaimedRow
from stowhand.stores.table.check import CHANGED_CLAIM
from stowhand.stores.table.claims import (
    MAX_RECORDS_AFTER_ERROR,
    NEIGHBORS_TO_READ,
    NOT_CHANGED,
    Reasons,
    Rows,
    UnreadableView,
    UnseenRecord,
    claimed_rows,
    read_by_key,
    rows_by_key,
)
from stowhand.stores.table.names import MARK_COLUMN, TOKEN_COLUMN, Shape

MAX_ROUNDS = 6
"""The rounds of one claim, which go on while records are canceled instead of claimed."""
PAUSE_PER_QUERY_SECOND = 50.0
"""Seconds to pause the search for suspects, per second it took: it may read a million records."""

_ONLY_INDEX_SCANS = (
    b"select pg_catalog.set_config(name, 'off', true) from unnest(array['enable_sort', 'enable_seqscan',"
    b" 'enable_bitmapscan', 'enable_incremental_sort']) as name"
)
"""For a plan that shows whether an index has the order, however few rows there are."""
_NO_TOKEN = "00000000-0000-0000-0000-000000000000"


Round = tuple[list[ClaimedRow], bool]
"""The claimed rows; whether there may be more, since some were canceled instead or could not be claimed."""


class _TokenAbandoned(Exception):
    """The claim's token was abandoned, so the transaction is rolled back."""


class TableClaims:
    """Claims due records."""

    def __init__(self, context: TableContext, passed_over: PassedOver) -> None:
        self._context = context
        self._passed_over = passed_over
        self._link = Link(context.dialer, lambda: context.role("claim"))
        self._clock = SystemClock()
        self._suspects_not_before = 0.0
        self._can_walk_index = False
        """Whether an index has the waiting records in the order of claims."""

    async def claim(self, request: ClaimRequest) -> Sequence[ClaimedRow]:
        """Claim records in order under the request's token. Raise TableUnsuitable if the view is at fault."""
        context = self._context
        context.worker = request.worker
        context.abandoned.started_claims.note(request.token)
        if request.limit < 1 or (request.suspects and self._clock.monotonic() < self._suspects_not_before):
            return []
        claimed: list[ClaimedRow] = []
        with context.translated():
            for _ in range(MAX_ROUNDS):
                try:
                    round_rows, has_more = await self._claim(request, request.limit - len(claimed))
                except _TokenAbandoned:
                    break
                claimed += round_rows
                if claimed and split_conditions(request.conditions)[1]:
                    break  # only the caller knows the rest of the bound
                if not has_more or len(claimed) >= request.limit:
                    break
        return claimed

    async def _claim(self, request: ClaimRequest, limit: int) -> Round:
        started_at = stopwatch()

        async def on_connection(take: Callable[[Connection, ClaimRequest, int], Awaitable[Round]]) -> Round:
            async with self._link.connection() as connection:
                return await take(connection, request, limit)

        try:
            claimed, has_more = await on_connection(self._take)
        except (UnseenRecord, psycopg.Error) as error:
            context = self._context
            if postgres_errors.concerns_call(error) and not isinstance(error, UnseenRecord):
                raise
            try:
                claimed, has_more = await on_connection(self._take_each)
            except UnreadableView as view_error:
                raise TableUnsuitable(
                    f"{context}: nothing is claimed from the view {context.shape.view.display_name}: {view_error}"
                ) from None
            except NoRecordClaimed as view_error:
                # The store may be at fault. If not, the next claim finds the records after these.
                for key, reason in view_error.reasons.items():
                    self._passed_over.add(key, reason, report=False)
                raise StoreError(f"{context}: {view_error}") from None
        if request.suspects and not claimed:
            now = stopwatch()
            self._suspects_not_before = self._clock.monotonic() + PAUSE_PER_QUERY_SECOND * (now - started_at)
        return claimed, has_more

    async def _take(self, connection: Connection, request: ClaimRequest, limit: int) -> Round:
        """Claim with two statements: one marks, the other reads."""
        statement, values = self._composed("claim", request)
        parameters = {**values, **self._marking(request), "limit": limit}
        async with asyncio.timeout(STATEMENT_DEADLINE_SECONDS), _pipelined(connection), connection.transaction():
            await self._begin(connection, request)
            marking = connection.cursor(binary=True)
            await marking.execute(statement, parameters, prepare=False)  # plan it for its values: limit and time
            # A view may have shown a record twice.
            marked = {row[1]: row for row in sorted(await marking.fetchall(), key=lambda row: row[0])}
            self._check_abandoned(request)
            if any(row[6] is False for row in marked.values()):
                raise changed_claim_error(self._context.shape)
            rows = [row[1:6] for row in marked.values() if row[2] is False]
            unchanged = [key for key, row in marked.items() if row[2] is None]
            claimed: list[ClaimedRow] = []
            if rows:
                await self._end_walk(connection, request)
                reading = connection.cursor()
                register_loaders(reading)
                ids = [row[0] for row in rows]
                await reading.execute(self._context.statement("read"), self._reading(ids), prepare=False)
                claimed = self._taken(request, rows, rows_by_key(ids, await reading.fetchall()), {})
        for key in unchanged:
            self._passed_over.add(key, NOT_CHANGED)
        return claimed, len(rows) < len(marked)

    async def _take_each(self, connection: Connection, request: ClaimRequest, limit: int) -> Round:
        """Claim slowly, to find the bad record."""
        pick, values = self._composed("pick", request)
        async with asyncio.timeout(STATEMENT_DEADLINE_SECONDS), connection.transaction():
            await self._begin(connection, request)
            self._check_abandoned(request)
            validator = RowValidator(self._context, connection, pick, values, self._marking(request))
            await self._end_walk(connection, request)
            # One record always fits; the sum of several is not computed here.
            marked = await validator.claim(1 if split_conditions(request.conditions)[1] else limit)
            rows = [row for row in marked if not row[1]]
            claimed = self._taken(request, rows, validator.rows, validator.bad)
        for key, reason in validator.unchanged.items():
            self._passed_over.add(key, reason)
        return claimed, len(rows) < len(marked) or bool(validator.unchanged)

    async def _begin(self, connection: Connection, request: ClaimRequest) -> None:
        # In any case read committed: rows changed by other transactions are read again, without an error.
        await connection.reader().execute(b"set transaction isolation level read committed")
        begin = "begin_walk" if self._walks_index(request) else "begin_claim"
        await connection.reader().execute(self._context.statement(begin), {"token": request.token})

    def _check_abandoned(self, request: ClaimRequest) -> None:
        """Check under the lock of ``_begin``: until the commit, a caller that abandons the token must repeat it."""
        if request.token in self._context.abandoned:
            raise _TokenAbandoned

    def _walks_index(self, request: ClaimRequest) -> bool:
        """Return whether to walk the index. Suspects are few, and found by their resets."""
        return self._can_walk_index and not request.suspects

    async def _end_walk(self, connection: Connection, request: ClaimRequest) -> None:
        if self._walks_index(request) and self._context.shape.viewed:
            await connection.reader().execute(self._context.statement("end_walk"))

    def _composed(self, name: str, request: ClaimRequest) -> tuple[bytes, Mapping[str, object]]:
        passed_over = self._passed_over.current()
        statement, values = self._context.composer.claim(
            request.conditions,
            suspects=request.suspects,
            passing=bool(passed_over),
            name=name,
        )
        return statement, {**values, **self._context.values(passed=passed_over)}

    def _marking(self, request: ClaimRequest) -> Mapping[str, object]:
        return self._context.values(token=request.token, mark=self._context.mark(request.worker, request.token))

    def _reading(self, ids: list[str]) -> Mapping[str, object]:
        return {**self._context.composer.values, **self._context.values(ids=ids)}

    def _taken(self, request: ClaimRequest, rows: Sequence[Row], read_by_key: Rows, bad: Reasons) -> list[ClaimedRow]:
        """Return the claimed rows. ``rows``: the marked rows; ``read_by_key``: the rows of the view."""
        context = self._context
        marks = {row[0]: row[2:5] for row in rows}
        return claimed_rows(context.shape, request.token, marks, read_by_key, bad, context.job_id)

    # -- the first call --------------------------------------------------------------------------

    async def probe(self) -> None:
        """Let the server plan the statements, and read the names of the record's columns, but no row."""
        context = self._context
        async with self._link.connection() as connection:
            async with asyncio.timeout(STATEMENT_DEADLINE_SECONDS):
                cursor = connection.cursor()
                await cursor.execute(context.statement("read"), self._reading([]), prepare=False)
                context.names = tuple(column.name for column in cursor.description or ())[1:]
                for suspects in (False, True):
                    await self._explain(connection, suspects=suspects)
                async with connection.transaction():
                    await cursor.execute(_ONLY_INDEX_SCANS)
                    plan = await self._explain(connection, suspects=False)
            self._can_walk_index = any(is_index_walk(plan, name) for name in context.composer.waiting_indexes)

    async def _explain(self, connection: Connection, *, suspects: bool) -> Any:
        statement, values = self._context.composer.claim((), suspects=suspects)
        parameters = {**values, **self._context.values(limit=1, mark="", token=_NO_TOKEN, passed=[])}
        cursor = connection.reader()
        await cursor.execute(b"explain (format json) " + statement, parameters, prepare=False)
        ((plan,),) = await cursor.fetchall()
        return plan[0]["Plan"]

    async def close(self) -> None:
        """Close the connection."""
        await self._link.close()


def is_index_walk(plan: Any, index: str) -> bool:
    """Return whether a claim's plan walks that index in order. ``plan``: one node of EXPLAIN's JSON."""
    children = plan.get("Plans", ())
    if "Sort" in plan["Node Type"]:
        return False
    if plan.get("Index Name") == index and plan["Node Type"] != "Bitmap Index Scan":
        return True
    return any(is_index_walk(node, index) for node in children)


@asynccontextmanager
async def _pipelined(connection: Connection) -> AsyncIterator[None]:
    """Send statements without waiting for each other's replies, where libpq supports it."""
    if not psycopg.Pipeline.is_supported():
        yield
        return
    async with connection.pipeline():
        yield


MAX_REASON_CHARACTERS = 1000
Attempt = Callable[[Sequence[str]], Awaitable[list[Row]]]


def changed_claim_error(shape: Shape) -> psycopg.Error:
    """Return the error of a trigger that changed a claim's mark, as if the database refused the record."""
    return psycopg.DataError(
        CHANGED_CLAIM.format(column=shape.columns[TOKEN_COLUMN if TOKEN_COLUMN in shape.columns else MARK_COLUMN])
    )


class NoRecordClaimed(Exception):
    """None of several records can be claimed. The message has the reason of the first one."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        key, reason = next(iter(reasons.items()))
        super().__init__(f"none of {len(reasons)} records can be claimed: record {key}: {reason}")
        self.reasons = reasons


class RowValidator:
    """Claims in a transaction that has started. ``pick``: the statement that returns keys in order."""

    def __init__(
        self,
        context: TableContext,
        connection: Connection,
        pick: bytes,
        picking: Mapping[str, object],
        mark: Mapping[str, object],
    ) -> None:
        self._context = context
        self._connection = connection
        self._pick = pick
        self._picking = picking
        self._mark = mark
        self._clock = SystemClock()
        self.unchanged: dict[str, str] = {}
        """By key, why it could not be marked."""
        self.bad: dict[str, str] = {}
        """By key of a marked record, why it could not be read."""
        self.rows: dict[str, Row] = {}
        """By key, the view's row of the other marked records."""

    async def claim(self, limit: int) -> list[Row]:
        """Those that are marked, in order: key, canceled, epoch, failures, resets. Raises ViewFault, NoneMarked."""
        if limit == 1:
            # Neighbors show whether the record or the view is at fault. This is rolled back.
            async with self._connection.transaction(force_rollback=True):
                await self._take(NEIGHBORS_TO_READ)
            self.unchanged, self.bad, self.rows = {}, {}, {}
        return await self._take(min(limit, MAX_RECORDS_AFTER_ERROR))

    async def _take(self, limit: int) -> list[Row]:
        # Pick more than the limit: a view may show the first one several times.
        found = await self._run(self._pick, {**self._picking, "limit": MAX_RECORDS_AFTER_ERROR})
        picked = list(dict.fromkeys(row[0] for row in found))[:limit]
        answer, self.unchanged = await self._apply_each(picked, self._mark_rows)
        marked = {row[0]: row for row in answer}
        if not marked and len(self.unchanged) > 1:
            raise NoRecordClaimed(self.unchanged)
        self.unchanged |= {key: NOT_CHANGED for key in picked if key not in marked and key not in self.unchanged}
        claimed = [marked[key] for key in picked if key in marked]
        keys = [row[0] for row in claimed if not row[1]]
        answer, refused = await self._apply_each(keys, self._read)
        self.rows, self.bad = read_by_key(keys, answer, refused)
        return claimed

    async def _apply_each(self, keys: Sequence[str], attempt: Attempt) -> tuple[list[Row], dict[str, str]]:
        """Return the rows, and the reasons of refused keys. Each part is in a savepoint."""

        async def in_savepoint(part: Sequence[str]) -> list[Row]:
            async with self._connection.transaction():
                return await attempt(part)

        if not keys:
            return [], {}
        answer = await write_each(keys, in_savepoint, self._clock, postgres_errors.concerns_call, pauses=())
        reasons = {
            key: clean(postgres_errors.first_line(error), MAX_REASON_CHARACTERS) for key, error in answer.refused
        }
        return answer.rows, reasons

    async def _mark_rows(self, ids: Sequence[str]) -> list[Row]:
        rows = await self._run(self._context.statement("mark"), {**self._mark, "ids": list(ids)})
        if not all(row[5] for row in rows):
            raise changed_claim_error(self._context.shape)
        return [row[:5] for row in rows]

    async def _read(self, ids: Sequence[str]) -> list[Row]:
        values = {**self._context.composer.values, **self._context.values(ids=list(ids))}
        return await self._run(self._context.statement("read"), values)

    async def _run(self, statement: bytes, values: Mapping[str, object]) -> list[TupleRow]:
        cursor = self._connection.cursor()
        register_loaders(cursor)
        await cursor.execute(statement, values, prepare=False)
        return await cursor.fetchall()


_FIRST_TIMESTAMP, _LAST_TIMESTAMP = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


@lru_cache(maxsize=1024)
def _timestamp(data: bytes) -> datetime:
    text = data.decode()
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        return _limit_of(text)


class _TimestampLoader(Loader):
    """Loader with a cache: a claim writes the same time into all of its records, twice."""

    def load(self, data: Buffer) -> datetime:
        return _timestamp(bytes(data))


class _LocalTimestampLoader(Loader):
    def load(self, data: Buffer) -> datetime:
        text = bytes(data).decode()
        try:
            return datetime.fromisoformat(text)
        except ValueError:
            return _limit_of(text).replace(tzinfo=None)


class _DateLoader(Loader):
    def load(self, data: Buffer) -> date:
        text = bytes(data).decode()
        try:
            return date.fromisoformat(text)
        except ValueError:
            return _limit_of(text).date()


def register_loaders(cursor: psycopg.AsyncCursor[Any]) -> None:
    """Register the loaders on one cursor."""
    cursor.adapters.register_loader("timestamptz", _TimestampLoader)
    cursor.adapters.register_loader("timestamp", _LocalTimestampLoader)
    cursor.adapters.register_loader("date", _DateLoader)


def _limit_of(text: str) -> datetime:
    return _FIRST_TIMESTAMP if text.startswith("-") or text.endswith("BC") else _LAST_TIMESTAMP
