"""Claims records in a write transaction: no other program writes meanwhile, so no row is locked or read twice."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from stowhand.errors import TableUnsuitable
from stowhand.jobs.conditions import split_conditions
from stowhand.jobs.lease import JobId
from stowhand.jobs.text import clean
from stowhand.protocols.store import ClaimRequest
from stowhand.stores.database.sqlite_connection import write_in_savepoint
from stowhand.stores.database.sqlite_errors import concerns_call
from stowhand.stores.sqlite.table.connections import TableTransaction
from stowhand.stores.sqlite.table.moments import DAY, SECOND, parameters
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
from stowhand.stores.table.names import MARK_COLUMN, TOKEN_COLUMN

MANY = 1000
"""Due records; so many are sorted in about a millisecond."""
MOST_REFUSED = 500
"""Records that their table would not let be changed, in one claim."""
REASON_LIMIT = 1000
CANCELED_AT_ONCE = 500
"""Records that a claim may find canceled and put away; the others are left to the next one."""


def is_due(tx: TableTransaction) -> bool:
    """Whether anything is due, for any worker."""
    return _due(tx, 1) > 0


class RolledBack(Exception):
    """A trigger undid the whole claim for one record (RAISE(ROLLBACK))."""

    def __init__(self, key: JobId, why: str) -> None:
        super().__init__(why)
        self.key = key


class TableClaim:
    """One claim. ``passed``: keys that are passed over."""

    def __init__(self, tx: TableTransaction, request: ClaimRequest, passed: Sequence[str]) -> None:
        self._tx = tx
        self._request = request
        self._passed = passed
        self._marks: dict[JobId, tuple[int, int, int]] = {}
        """Of each record that was taken: epoch, failures and resets."""
        self._refused: Reasons = {}
        """Why the table would not let them be changed."""

    def is_worth_it(self) -> bool:
        """Is there anything to claim? A look without the write lock, which most claims of an idle worker end with."""
        if self._request.suspects and self._tx.look("suspected").fetchone() is None:
            return False
        return is_due(self._tx) and bool(self._candidates(1))

    def claim(self) -> tuple[Sequence[ClaimedRow], Reasons]:
        """Take up to ``limit`` due records in order; those with ``cancel`` set go to canceled instead.

        Gives what was taken, and why the table would not let others be. Raises TableUnsuitable where none of several
        can be read.
        """
        raw = self._tx.raw
        try:
            raw.execute("SAVEPOINT stowhand_claim")
            self._take_in_order(self._request.limit)
            taken = self._read() if self._marks else []
            raw.execute("RELEASE stowhand_claim")
            return taken, self._refused
        except (UnseenRecord, sqlite3.Error) as error:
            if not raw.in_transaction or (isinstance(error, sqlite3.Error) and concerns_call(error)):
                raise
        self._undo()
        return self._sift(), self._refused

    # -- taking ----------------------------------------------------------------------------------

    def _take_in_order(self, limit: int) -> None:
        self._marks, self._refused = {}, {}
        canceled, full = 0, True
        while full and len(self._marks) < limit and canceled < CANCELED_AT_ONCE:
            room = limit - len(self._marks) + CANCELED_AT_ONCE // 10
            found = within(self._candidates(room), self._request.conditions)
            canceled += self._change(found, limit)
            full = len(found) == room and len(self._refused) < MOST_REFUSED
            if self._marks and split_conditions(self._request.conditions)[1]:
                break  # the rest of the bound is known to the caller that set it

    def _candidates(self, room: int) -> list[tuple[Any, ...]]:
        tx, request = self._tx, self._request
        passed = [*self._passed, *map(str, self._refused)]
        # Few are sorted; of many, the first ones are found by an index of their order, if there is one.
        in_order = tx.table.walks and _due(tx, MANY) == MANY
        query = tx.table.queries.candidates(
            request.conditions, suspects=request.suspects, in_order=in_order, passing=bool(passed)
        )
        values = {**_bounds(tx), "limit": room, "passed": msgspec.json.encode(passed).decode()}
        return tx.select(query, **values).fetchall()

    def _change(self, found: Sequence[tuple[Any, ...]], limit: int) -> int:
        """Take them, or put them away; how many were put away."""
        canceled = 0
        for key, cancel, *_ in found:
            if not _is_key(key) or key in self._marks or (not cancel and len(self._marks) >= limit):
                continue
            done = False

            def change(key: JobId = key, cancel: int = cancel) -> None:
                nonlocal done
                done = self._put_away(key) if cancel else self._take(key)

            try:
                trouble = write_in_savepoint(self._tx.raw, change)
            except sqlite3.Error as error:
                if concerns_call(error) or self._tx.raw.in_transaction:
                    raise
                raise RolledBack(key, clean(str(error), REASON_LIMIT)) from None
            if trouble is not None or not done:
                self._refused[key] = clean(str(trouble), REASON_LIMIT) if trouble is not None else NOT_CHANGED
            elif cancel:
                canceled += 1
        return canceled

    def _put_away(self, key: JobId) -> bool:
        return self._tx.run("cancel_waiting", id=key).rowcount > 0

    def _take(self, key: JobId) -> bool:
        token = self._request.token
        counts = self._tx.run("mark", id=key, worker=self._request.worker, token=token).fetchone()
        if counts is None:
            return False
        epoch, has_token = self._tx.look("taken", id=key, token=token).fetchone()
        if not has_token:
            shape = self._tx.table.shape
            own = shape.columns[TOKEN_COLUMN if TOKEN_COLUMN in shape.columns else MARK_COLUMN]
            raise sqlite3.IntegrityError(CHANGED_CLAIM.format(column=own))
        self._marks[key] = (epoch, *counts)
        return True

    # -- reading ---------------------------------------------------------------------------------

    def _read(self) -> list[ClaimedRow]:
        """The view's columns, as they are after the update. Raises Unseen."""
        return self._taken(rows_by_key(self._marks, self._shown(list(self._marks))), {})

    def _shown(self, keys: Sequence[JobId]) -> list[tuple[Any, ...]]:
        query = self._tx.table.queries.records()
        return self._tx.select(query, ids=msgspec.json.encode(keys).decode()).fetchall()

    def _taken(self, rows: Rows, bad: Reasons) -> list[ClaimedRow]:
        return claimed_rows(self._tx.table.shape, self._request.token, self._marks, rows, bad)

    # -- the slow way: one of them is bad, and is searched ---------------------------------------

    def _sift(self) -> list[ClaimedRow]:
        try:
            if self._request.limit == 1:
                # Is it the record's fault, or the view's? Those beside it tell. None of it stays.
                self._tx.raw.execute("SAVEPOINT stowhand_claim")
                self._sifted(NEIGHBORS_TO_READ)
                self._undo()
            return self._sifted(min(self._request.limit, MAX_RECORDS_AFTER_ERROR))
        except UnreadableView as fault:
            view = self._tx.table.shape.view.display_name
            raise TableUnsuitable(f"nothing is claimed from the view {view}, for {fault}") from None

    def _undo(self) -> None:
        self._tx.raw.execute("ROLLBACK TO stowhand_claim")
        self._tx.raw.execute("RELEASE stowhand_claim")

    def _sifted(self, limit: int) -> list[ClaimedRow]:
        self._take_in_order(limit)
        keys = list(self._marks)
        found: list[tuple[Any, ...]] = []
        unread: Reasons = {}
        for key in keys:
            try:
                found += self._shown([key])
            except sqlite3.Error as error:
                if concerns_call(error):
                    raise
                unread[key] = clean(str(error), REASON_LIMIT)
        return self._taken(*read_by_key(keys, found, unread))


def within(found: Sequence[tuple[Any, ...]], conditions: Sequence[Any]) -> Sequence[tuple[Any, ...]]:
    """As many, from the first one on, as are together within the bounds of the conditions."""
    _, together = split_conditions(conditions)
    for at, one in enumerate(together):
        total = 0.0
        for number, row in enumerate(found):
            if row[1]:
                continue  # it is put away, and takes up nothing
            total += row[2 + at]
            if total > one.value:
                found = found[:number]
                break
    return found


def _is_key(value: object) -> bool:
    """SQLite also keeps invalid texts (no UTF-8), and such a key could not be looked up again."""
    return not isinstance(value, str) or clean(value, len(value) * 4 + 1) == value


def _due(tx: TableTransaction, limit: int) -> int:
    number: int = tx.raw.execute(tx.table.queries.due(), {**_bounds(tx), "limit": limit}).fetchone()[0]
    return number


def _bounds(tx: TableTransaction) -> Mapping[str, Any]:
    late, soon = tx.now - round(tx.table.options.retry_delay * SECOND), tx.now + 2 * DAY
    return {**tx.times, **parameters("late", late), **parameters("soon", soon)}
