"""The slow way to claim: after an error, record by record where need be. One transaction, a savepoint for each part."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

import psycopg
from psycopg.rows import TupleRow

from stowhand.clock import SystemClock
from stowhand.jobs.text import clean
from stowhand.stores.database import trouble
from stowhand.stores.database.link import Connection, Row
from stowhand.stores.database.refused_rows import write_each
from stowhand.stores.postgres.table.context import TableContext
from stowhand.stores.postgres.table.values import read_plainly
from stowhand.stores.table.check import CHANGES_CLAIM
from stowhand.stores.table.claims import AT_ONCE, BESIDE, NOT_CHANGED, shown
from stowhand.stores.table.names import MARK, TOKEN, Shape

REASON_LIMIT = 1000
Try = Callable[[Sequence[str]], Awaitable[list[Row]]]


def mark_changed(shape: Shape) -> psycopg.Error:
    """A trigger has changed what a claim has just written; raised as if the database refused the record."""
    return psycopg.DataError(CHANGES_CLAIM.format(column=shape.columns[TOKEN if TOKEN in shape.columns else MARK]))


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
                await self._take(BESIDE)
            self.unchanged, self.bad, self.rows = {}, {}, {}
        return await self._take(min(limit, AT_ONCE))

    async def _take(self, limit: int) -> list[Row]:
        # More than are taken: a view may show the first one several times.
        found = await self._run(self._pick, {**self._picking, "limit": AT_ONCE})
        picked = list(dict.fromkeys(row[0] for row in found))[:limit]
        answer, self.unchanged = await self._apply_each(picked, self._marked)
        marked = {row[0]: row for row in answer}
        if not marked and len(self.unchanged) > 1:
            raise NoneMarked(self.unchanged)
        self.unchanged |= {key: NOT_CHANGED for key in picked if key not in marked and key not in self.unchanged}
        taken = [marked[key] for key in picked if key in marked]
        keys = [row[0] for row in taken if not row[1]]
        answer, refused = await self._apply_each(keys, self._read)
        self.rows, self.bad = shown(keys, answer, refused)
        return taken

    async def _apply_each(self, keys: Sequence[str], attempt: Try) -> tuple[list[Row], dict[str, str]]:
        """What comes of each, and why the others are refused. Each part is behind a savepoint."""

        async def behind_savepoint(part: Sequence[str]) -> list[Row]:
            async with self._connection.transaction():
                return await attempt(part)

        if not keys:
            return [], {}
        answer = await write_each(keys, behind_savepoint, self._clock, trouble.concerns_call, pauses=())
        reasons = {key: clean(trouble.first_line(error), REASON_LIMIT) for key, error in answer.refused}
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
