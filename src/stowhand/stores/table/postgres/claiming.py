"""Claims, on a connection of their own: pick, mark and read in one transaction, so that all of it holds, or nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import psycopg

from stowhand.clock import SystemClock, stopwatch
from stowhand.database.address import DEADLINE
from stowhand.database.link import Connection, Link, Row
from stowhand.database.repeating import repeated
from stowhand.errors import TableUnsuitable
from stowhand.store import ClaimRequest, Lease
from stowhand.stores.table.backend import Taken
from stowhand.stores.table.postgres.home import Home
from stowhand.stores.table.postgres.values import read_plainly

ROUNDS = 6
"""Claims in a row, when records of the first were canceled instead."""
SWEEP_AFTER = 3
"""So many of them; then all that are to be canceled are looked for at once, however dear that was the last time."""
CANCELED_AT_ONCE = 1000
SHARE = 50.0
"""Seconds without another look for suspects, or for what is to be canceled, for each second that one took: they may be
sought among a million."""

_NOBODY = "00000000-0000-0000-0000-000000000000"


class _Unseen(Exception):
    """The view does not show, or shows twice, what was claimed."""


class Claims:
    """Takes due records."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._link = Link(home.dialer, lambda: home.role("claim"))
        self._clock = SystemClock()
        self._suspects_not_before = self._sweep_not_before = 0.0

    async def claim(self, request: ClaimRequest) -> Sequence[Taken]:
        """In order, now processing under the request's token."""
        home = self._home
        home.worker = request.worker
        home.begun.note(request.token)
        if request.limit < 1 or (request.suspects and self._clock.monotonic() < self._suspects_not_before):
            return []
        statement, values = home.composer.claim(request.conditions, suspects=request.suspects)
        taken: list[Taken] = []
        with home.translated():
            for number in range(1, ROUNDS + 1):
                more, canceled = await self._claim(request, request.limit - len(taken), statement, values)
                taken += more
                if not canceled or len(taken) >= request.limit:
                    break
                if number == SWEEP_AFTER or self._clock.monotonic() >= self._sweep_not_before:
                    await self._sweep()
        return taken

    async def _sweep(self) -> None:
        """Where one record was to be canceled there may be more; some of them not due for long."""
        began = stopwatch()
        await self._link.rows(self._home.statement("cancel_waiting"), self._home.values(page=CANCELED_AT_ONCE))
        self._sweep_not_before = self._clock.monotonic() + SHARE * (stopwatch() - began)

    async def _claim(
        self, request: ClaimRequest, limit: int, statement: bytes, values: Mapping[str, object]
    ) -> tuple[list[Taken], bool]:
        began = stopwatch()
        given = {**values, **self._home.values(limit=limit, mark=self._home.mark(request.worker, request.token))}
        given["token"] = request.token

        async def once() -> tuple[list[Taken], bool]:
            async with self._link.connection() as connection:
                return await self._take(connection, request, statement, given)

        try:
            taken, canceled = await repeated(once, self._clock)
        except _Unseen:
            try:  # what the view joins may have changed just then
                taken, canceled = await repeated(once, self._clock)
            except _Unseen as unseen:
                raise TableUnsuitable(f"{self._home}: {unseen}") from None
        if request.suspects and not taken:
            now = stopwatch()
            self._suspects_not_before = self._clock.monotonic() + SHARE * (now - began)
        return taken, canceled

    async def _take(
        self, connection: Connection, request: ClaimRequest, statement: bytes, values: Mapping[str, object]
    ) -> tuple[list[Taken], bool]:
        async with asyncio.timeout(DEADLINE), _together(connection), connection.transaction():
            # Whatever the database's default is: rows that others have changed are looked at anew, not stumbled over.
            await connection.reader().execute(b"set transaction isolation level read committed")
            await connection.reader().execute(self._home.statement("begin_claim"), {"token": request.token})
            marking = connection.cursor(binary=True)
            await marking.execute(statement, values, prepare=False)  # planned for its values: how many, until when
            marked = sorted(await marking.fetchall())
            rows = [row[1:] for row in marked if not row[2]]
            if not rows:
                return [], bool(marked)
            reading = connection.cursor()
            read_plainly(reading)
            ids = [row[0] for row in rows]
            await reading.execute(self._home.statement("read"), self._reading(ids), prepare=False)
            shown = await reading.fetchall()
            taken = self._taken(request, rows, shown)
        return taken, len(rows) < len(marked)

    def _reading(self, ids: list[str]) -> Mapping[str, object]:
        return {**self._home.composer.values, **self._home.values(ids=ids)}

    def _taken(self, request: ClaimRequest, rows: Sequence[Row], shown: Sequence[Row]) -> list[Taken]:
        by_key: dict[str, Row] = {}
        for row in shown:
            if by_key.setdefault(row[0], row) is not row:
                raise _Unseen(f"{self._view} shows record {row[0]} more than once")
        names, found = self._home.names, []
        for key, _, epoch, failures, resets in rows:
            if key not in by_key:
                raise _Unseen(f"{self._view} does not show record {key} once it is in processing; nothing was claimed")
            lease = Lease(self._home.job_id(key), request.token, epoch)
            found.append(Taken(lease, by_key[key][1:], names, failures, resets))
        return found

    @property
    def _view(self) -> str:
        return f"the view {'.'.join(self._home.shape.view.parts)}"

    # -- before the first ------------------------------------------------------------------------

    async def probe(self) -> None:
        """Let the server plan what will be run, and learn what the record's columns are called. Touches no row."""
        home = self._home
        async with self._link.connection() as connection:
            async with asyncio.timeout(DEADLINE):
                cursor = connection.cursor()
                await cursor.execute(home.statement("read"), self._reading([]), prepare=False)
                home.names = tuple(column.name for column in cursor.description or ())[1:]
                for suspects in (False, True):
                    statement, values = home.composer.claim((), suspects=suspects)
                    given = {**values, **home.values(limit=1, mark="", token=_NOBODY)}
                    await cursor.execute(b"explain " + statement, given, prepare=False)

    async def close(self) -> None:
        """Let the connection go."""
        await self._link.close()


@asynccontextmanager
async def _together(connection: Connection) -> AsyncIterator[None]:
    """Statements that need not wait for each other's answers travel together, where libpq can do it."""
    if not psycopg.Pipeline.is_supported():
        yield
        return
    async with connection.pipeline():
        yield
