"""The slow way to claim: after an error, record by record where need be. One transaction, a savepoint for each part."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

import psycopg
from psycopg.rows import TupleRow

from stowhand.jobs.text import clean
from stowhand.stores.database import trouble
from stowhand.stores.database.link import Connection, Row
from stowhand.stores.postgres.table.context import TableContext
from stowhand.stores.postgres.table.values import read_plainly
from stowhand.stores.table.sifting import AT_ONCE, BESIDE, NOT_CHANGED, Parts, Refused, halving, shown

REASON_LIMIT = 1000
_CLASSES = ("21", "2F", "38", "39", "P0")
"""SQLSTATE: a subquery gives several rows; a function of the user's raises."""
Try = Callable[[list[str]], Awaitable[list[Row]]]


def is_of_a_record(error: psycopg.Error) -> bool:
    """May one record be at fault, and not the statement?"""
    return trouble.is_about_values(error) or (error.sqlstate or "").startswith(_CLASSES)


class Sifter:
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
        self.unchanged: dict[str, str] = {}
        """Key -> why it could not be marked."""
        self.bad: dict[str, str] = {}
        """Key -> why it could not be read; it is marked."""
        self.rows: dict[str, Row] = {}
        """What the view shows of the others."""

    async def claim(self, limit: int) -> list[Row]:
        """Those that are marked, in order: key, canceled, epoch, failures, resets. Raises ViewFault."""
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
        marked, self.unchanged = await self._sift(halving(picked), self._marked)
        self.unchanged |= {key: NOT_CHANGED for key in picked if key not in marked and key not in self.unchanged}
        taken = [marked[key] for key in picked if key in marked]
        keys = [row[0] for row in taken if not row[1]]
        self.rows, refused = await self._sift(halving(keys), self._read)
        self.bad = shown(keys, self.rows, refused)
        return taken

    async def _sift(self, parts: Parts, attempt: Try) -> tuple[dict[str, Row], dict[str, str]]:
        try:
            part = next(parts)
            while True:
                part = parts.send(await self._tried(part, attempt))
        except StopIteration as done:
            found: tuple[dict[str, Row], dict[str, str]] = done.value
            return found

    async def _tried(self, part: list[str], attempt: Try) -> Sequence[Row] | Refused:
        try:
            async with self._connection.transaction():
                return await attempt(part)
        except psycopg.Error as error:
            if not is_of_a_record(error):
                raise
            return Refused(clean(trouble.first_line(error), REASON_LIMIT))

    async def _marked(self, ids: list[str]) -> list[Row]:
        return await self._run(self._context.statement("mark"), {**self._mark, "ids": ids})

    async def _read(self, ids: list[str]) -> list[Row]:
        values = {**self._context.composer.values, **self._context.values(ids=ids)}
        return await self._run(self._context.statement("read"), values)

    async def _run(self, statement: bytes, values: Mapping[str, object]) -> list[TupleRow]:
        cursor = self._connection.cursor()
        read_plainly(cursor)
        await cursor.execute(statement, values, prepare=False)
        return await cursor.fetchall()
