"""Claims, on a connection of their own: pick, mark and read in one transaction, so that all of it holds, or nothing.

After an error the slow way is taken: record by record where need be, with a savepoint for each part.

A record's values are read as text. What PostgreSQL can say and Python cannot (``infinity``, the year 20000) becomes the
last or the first moment that Python can: one such value must not make everything claimed together unreadable. The
session writes ISO, in UTC (``begin_claim``), though psycopg reads by the connection's settings, which it learns only
after the transaction.
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
"""Claims in a row, when records of the first were canceled instead."""
PAUSE_PER_SECOND = 50.0
"""Seconds without another look for suspects for each second that one took: they may be sought among a million."""

_ONLY_INDEX_SCANS = (
    b"select pg_catalog.set_config(name, 'off', true) from unnest(array['enable_sort', 'enable_seqscan',"
    b" 'enable_bitmapscan', 'enable_incremental_sort']) as name"
)
"""For a plan that shows whether an index can give the order, however few rows there are yet."""
_NO_TOKEN = "00000000-0000-0000-0000-000000000000"


Round = tuple[list[ClaimedRow], bool]
"""What was taken; whether there may be more, because some were canceled instead or could not be taken."""


class _Abandoned(Exception):
    """Somebody has abandoned the claim's token: the transaction is undone."""


class TableClaims:
    """Claims due records."""

    def __init__(self, context: TableContext, passed: PassedOver) -> None:
        self._context = context
        self._passed = passed
        self._link = Link(context.dialer, lambda: context.role("claim"))
        self._clock = SystemClock()
        self._suspects_not_before = 0.0
        self._walks = False
        """An index holds what waits in the order of claims."""

    async def claim(self, request: ClaimRequest) -> Sequence[ClaimedRow]:
        """In order, now processing under the request's token. Raises TableUnsuitable where the view is at fault."""
        context = self._context
        context.worker = request.worker
        context.abandoned.started_claims.note(request.token)
        if request.limit < 1 or (request.suspects and self._clock.monotonic() < self._suspects_not_before):
            return []
        taken: list[ClaimedRow] = []
        with context.translated():
            for _ in range(MAX_ROUNDS):
                try:
                    more, again = await self._claim(request, request.limit - len(taken))
                except _Abandoned:
                    break
                taken += more
                if taken and split_conditions(request.conditions)[1]:
                    break  # only the caller knows what is left of the bound
                if not again or len(taken) >= request.limit:
                    break
        return taken

    async def _claim(self, request: ClaimRequest, limit: int) -> Round:
        began = stopwatch()

        async def by(way: Callable[[Connection, ClaimRequest, int], Awaitable[Round]]) -> Round:
            async with self._link.connection() as connection:
                return await way(connection, request, limit)

        try:
            taken, again = await by(self._take)
        except (UnseenRecord, psycopg.Error) as error:
            context = self._context
            if postgres_errors.concerns_call(error) and not isinstance(error, UnseenRecord):
                raise
            try:
                taken, again = await by(self._take_each)
            except UnreadableView as fault:
                raise TableUnsuitable(
                    f"{context}: nothing is claimed from the view {context.shape.view.display_name}, for {fault}"
                ) from None
            except NoneMarked as fault:
                # The store may be at fault; if not, the next claim finds what comes after them.
                for key, why in fault.reasons.items():
                    self._passed.refused(key, why, report=False)
                raise StoreError(f"{context}: {fault}") from None
        if request.suspects and not taken:
            now = stopwatch()
            self._suspects_not_before = self._clock.monotonic() + PAUSE_PER_SECOND * (now - began)
        return taken, again

    async def _take(self, connection: Connection, request: ClaimRequest, limit: int) -> Round:
        """The usual way: one statement marks, another reads."""
        statement, values = self._composed("claim", request)
        given = {**values, **self._marking(request), "limit": limit}
        async with asyncio.timeout(STATEMENT_DEADLINE_SECONDS), _together(connection), connection.transaction():
            await self._begin(connection, request)
            marking = connection.cursor(binary=True)
            await marking.execute(statement, given, prepare=False)  # planned for its values: how many, until when
            # A view may have shown one twice.
            marked = {row[1]: row for row in sorted(await marking.fetchall(), key=lambda row: row[0])}
            self._check_abandoned(request)
            if any(row[6] is False for row in marked.values()):
                raise mark_changed(self._context.shape)
            rows = [row[1:6] for row in marked.values() if row[2] is False]
            unchanged = [key for key, row in marked.items() if row[2] is None]
            taken: list[ClaimedRow] = []
            if rows:
                await self._end_walk(connection, request)
                reading = connection.cursor()
                read_plainly(reading)
                ids = [row[0] for row in rows]
                await reading.execute(self._context.statement("read"), self._reading(ids), prepare=False)
                taken = self._taken(request, rows, rows_by_key(ids, await reading.fetchall()), {})
        for key in unchanged:
            self._passed.refused(key, NOT_CHANGED)
        return taken, len(rows) < len(marked)

    async def _take_each(self, connection: Connection, request: ClaimRequest, limit: int) -> Round:
        """The slow way: one of them is bad, and is searched for."""
        pick, values = self._composed("pick", request)
        async with asyncio.timeout(STATEMENT_DEADLINE_SECONDS), connection.transaction():
            await self._begin(connection, request)
            self._check_abandoned(request)
            validator = RowValidator(self._context, connection, pick, values, self._marking(request))
            await self._end_walk(connection, request)
            # One fits by itself; how much several are together is not summed here.
            marked = await validator.claim(1 if split_conditions(request.conditions)[1] else limit)
            rows = [row for row in marked if not row[1]]
            taken = self._taken(request, rows, validator.rows, validator.bad)
        for key, why in validator.unchanged.items():
            self._passed.refused(key, why)
        return taken, len(rows) < len(marked) or bool(validator.unchanged)

    async def _begin(self, connection: Connection, request: ClaimRequest) -> None:
        # Whatever the database's default is: rows that other transactions have changed are read anew, and are no error.
        await connection.reader().execute(b"set transaction isolation level read committed")
        begin = "begin_walk" if self._walks_for(request) else "begin_claim"
        await connection.reader().execute(self._context.statement(begin), {"token": request.token})

    def _check_abandoned(self, request: ClaimRequest) -> None:
        """Under the lock of ``_begin``: from here to the commit, whoever abandons the token is told to repeat it."""
        if request.token in self._context.abandoned:
            raise _Abandoned

    def _walks_for(self, request: ClaimRequest) -> bool:
        """Suspects are few, and found by their resets."""
        return self._walks and not request.suspects

    async def _end_walk(self, connection: Connection, request: ClaimRequest) -> None:
        if self._walks_for(request) and self._context.shape.viewed:
            await connection.reader().execute(self._context.statement("end_walk"))

    def _composed(self, name: str, request: ClaimRequest) -> tuple[bytes, Mapping[str, object]]:
        passed = self._passed.current()
        statement, values = self._context.composer.claim(
            request.conditions,
            suspects=request.suspects,
            passing=bool(passed),
            name=name,
        )
        return statement, {**values, **self._context.values(passed=passed)}

    def _marking(self, request: ClaimRequest) -> Mapping[str, object]:
        return self._context.values(token=request.token, mark=self._context.mark(request.worker, request.token))

    def _reading(self, ids: list[str]) -> Mapping[str, object]:
        return {**self._context.composer.values, **self._context.values(ids=ids)}

    def _taken(self, request: ClaimRequest, rows: Sequence[Row], read_by_key: Rows, bad: Reasons) -> list[ClaimedRow]:
        """``rows``: what was marked; ``shown``: what the view shows of it."""
        context = self._context
        marks = {row[0]: row[2:5] for row in rows}
        return claimed_rows(context.shape, request.token, marks, read_by_key, bad, context.job_id)

    # -- before the first ------------------------------------------------------------------------

    async def probe(self) -> None:
        """Let the server plan what will be run, and learn what the record's columns are called. Touches no row."""
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
            self._walks = any(walks(plan, name) for name in context.composer.waiting_indexes)

    async def _explain(self, connection: Connection, *, suspects: bool) -> Any:
        statement, values = self._context.composer.claim((), suspects=suspects)
        given = {**values, **self._context.values(limit=1, mark="", token=_NO_TOKEN, passed=[])}
        cursor = connection.reader()
        await cursor.execute(b"explain (format json) " + statement, given, prepare=False)
        ((plan,),) = await cursor.fetchall()
        return plan[0]["Plan"]

    async def close(self) -> None:
        """Close the connection."""
        await self._link.close()


def walks(plan: Any, index: str) -> bool:
    """Does this plan of a claim find what waits by that index, in order? ``plan``: one node of EXPLAIN's JSON."""
    below = plan.get("Plans", ())
    if "Sort" in plan["Node Type"]:
        return False
    if plan.get("Index Name") == index and plan["Node Type"] != "Bitmap Index Scan":
        return True
    return any(walks(one, index) for one in below)


@asynccontextmanager
async def _together(connection: Connection) -> AsyncIterator[None]:
    """Statements that need not wait for each other's answers travel together, where libpq can do it."""
    if not psycopg.Pipeline.is_supported():
        yield
        return
    async with connection.pipeline():
        yield


REASON_LIMIT = 1000
Try = Callable[[Sequence[str]], Awaitable[list[Row]]]


def mark_changed(shape: Shape) -> psycopg.Error:
    """A trigger has changed what a claim has just written; raised as if the database refused the record."""
    return psycopg.DataError(
        CHANGED_CLAIM.format(column=shape.columns[TOKEN_COLUMN if TOKEN_COLUMN in shape.columns else MARK_COLUMN])
    )


class NoneMarked(Exception):
    """The table lets none of several records be claimed; why the first one is refused."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        key, why = next(iter(reasons.items()))
        super().__init__(f"none of {len(reasons)} records can be claimed: record {key}: {why}")
        self.reasons = reasons


class RowValidator:
    """Claims on a connection, in a transaction that has begun. ``pick``: the statement that gives keys in order."""

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
        """Key -> why it could not be marked."""
        self.bad: dict[str, str] = {}
        """Key -> why it could not be read; it is marked."""
        self.rows: dict[str, Row] = {}
        """What the view shows of the others."""

    async def claim(self, limit: int) -> list[Row]:
        """Those that are marked, in order: key, canceled, epoch, failures, resets. Raises ViewFault, NoneMarked."""
        if limit == 1:
            # Is it the record's fault, or the view's? Those beside it tell. None of it stays.
            async with self._connection.transaction(force_rollback=True):
                await self._take(NEIGHBORS_TO_READ)
            self.unchanged, self.bad, self.rows = {}, {}, {}
        return await self._take(min(limit, MAX_RECORDS_AFTER_ERROR))

    async def _take(self, limit: int) -> list[Row]:
        # More than are taken: a view may show the first one several times.
        found = await self._run(self._pick, {**self._picking, "limit": MAX_RECORDS_AFTER_ERROR})
        picked = list(dict.fromkeys(row[0] for row in found))[:limit]
        answer, self.unchanged = await self._apply_each(picked, self._marked)
        marked = {row[0]: row for row in answer}
        if not marked and len(self.unchanged) > 1:
            raise NoneMarked(self.unchanged)
        self.unchanged |= {key: NOT_CHANGED for key in picked if key not in marked and key not in self.unchanged}
        taken = [marked[key] for key in picked if key in marked]
        keys = [row[0] for row in taken if not row[1]]
        answer, refused = await self._apply_each(keys, self._read)
        self.rows, self.bad = read_by_key(keys, answer, refused)
        return taken

    async def _apply_each(self, keys: Sequence[str], attempt: Try) -> tuple[list[Row], dict[str, str]]:
        """What comes of each, and why the others are refused. Each part is behind a savepoint."""

        async def behind_savepoint(part: Sequence[str]) -> list[Row]:
            async with self._connection.transaction():
                return await attempt(part)

        if not keys:
            return [], {}
        answer = await write_each(keys, behind_savepoint, self._clock, postgres_errors.concerns_call, pauses=())
        reasons = {key: clean(postgres_errors.first_line(error), REASON_LIMIT) for key, error in answer.refused}
        return answer.rows, reasons

    async def _marked(self, ids: Sequence[str]) -> list[Row]:
        rows = await self._run(self._context.statement("mark"), {**self._mark, "ids": list(ids)})
        if not all(row[5] for row in rows):
            raise mark_changed(self._context.shape)
        return [row[:5] for row in rows]

    async def _read(self, ids: Sequence[str]) -> list[Row]:
        values = {**self._context.composer.values, **self._context.values(ids=list(ids))}
        return await self._run(self._context.statement("read"), values)

    async def _run(self, statement: bytes, values: Mapping[str, object]) -> list[TupleRow]:
        cursor = self._connection.cursor()
        read_plainly(cursor)
        await cursor.execute(statement, values, prepare=False)
        return await cursor.fetchall()


_FIRST, _LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


@lru_cache(maxsize=1024)
def _moment(data: bytes) -> datetime:
    text = data.decode()
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        return _nearest(text)


class _Moment(Loader):
    """Remembered: a claim writes the same moment into all of its records, twice."""

    def load(self, data: Buffer) -> datetime:
        return _moment(bytes(data))


class _LocalMoment(Loader):
    def load(self, data: Buffer) -> datetime:
        text = bytes(data).decode()
        try:
            return datetime.fromisoformat(text)
        except ValueError:
            return _nearest(text).replace(tzinfo=None)


class _Day(Loader):
    def load(self, data: Buffer) -> date:
        text = bytes(data).decode()
        try:
            return date.fromisoformat(text)
        except ValueError:
            return _nearest(text).date()


def read_plainly(cursor: psycopg.AsyncCursor[Any]) -> None:
    """Register the loaders on one cursor."""
    cursor.adapters.register_loader("timestamptz", _Moment)
    cursor.adapters.register_loader("timestamp", _LocalMoment)
    cursor.adapters.register_loader("date", _Day)


def _nearest(text: str) -> datetime:
    return _FIRST if text.startswith("-") or text.endswith("BC") else _LAST
