"""Claims records in a write transaction. No other program can write meanwhile, so rows need no locks."""

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
from stowhand.stores.sqlite.table.timestamps import MICROS_PER_DAY, MICROS_PER_SECOND, parameters
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

MAX_RECORDS_TO_SORT = 1000
"""Sorting this number of due records takes about a millisecond."""
MAX_REFUSED_PER_CLAIM = 500
"""The limit of records in one claim that the table refuses to change."""
MAX_REASON_CHARACTERS = 1000
MAX_CANCELED_PER_CLAIM = 500
"""The limit of records that one claim cancels. The next claim cancels more."""


def is_due(tx: TableTransaction) -> bool:
    """Return whether a record is due, for any worker."""
    return _due(tx, 1) > 0


class RolledBack(Exception):
    """A trigger rolled back the whole claim for one record (RAISE(ROLLBACK))."""

    def __init__(self, key: JobId, reason: str) -> None:
        super().__init__(reason)
        self.key = key


class TableClaim:
    """One claim. ``skipped``: the keys of records to pass over."""

    def __init__(self, tx: TableTransaction, request: ClaimRequest, skipped: Sequence[str]) -> None:
        self._tx = tx
        self._request = request
        self._skipped = skipped
        self._marks: dict[JobId, tuple[int, int, int]] = {}
        """Epoch, failures and resets of each claimed record."""
        self._refused: Reasons = {}
        """The reasons of records that the table refuses to change."""

    def may_claim_any(self) -> bool:
        """Return whether there is anything to claim, without the write lock. An idle worker's claims end here."""
        if self._request.suspects and self._tx.read("suspected").fetchone() is None:
            return False
        return is_due(self._tx) and bool(self._candidates(1))

    def claim(self) -> tuple[Sequence[ClaimedRow], Reasons]:
        """Claim up to ``limit`` due records in order, and cancel those with ``cancel`` set.

        Return the claimed rows, and the reasons of records that the table refuses to change. Raises TableUnsuitable if
        none of several records can be read.
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
        return self._take_readable(), self._refused

    # -- taking ----------------------------------------------------------------------------------

    def _take_in_order(self, limit: int) -> None:
        self._marks, self._refused = {}, {}
        canceled, has_more = 0, True
        while has_more and len(self._marks) < limit and canceled < MAX_CANCELED_PER_CLAIM:
            room = limit - len(self._marks) + MAX_CANCELED_PER_CLAIM // 10
            candidates = within(self._candidates(room), self._request.conditions)
            canceled += self._change(candidates, limit)
            has_more = len(candidates) == room and len(self._refused) < MAX_REFUSED_PER_CLAIM
            if self._marks and split_conditions(self._request.conditions)[1]:
                break  # The caller must set the bound for further records.

    def _candidates(self, room: int) -> list[tuple[Any, ...]]:
        tx, request = self._tx, self._request
        skipped = [*self._skipped, *map(str, self._refused)]
        # Sort a small number of records. For more, find the first ones by an index of their order, if there is one.
        in_order = tx.table.walks and _due(tx, MAX_RECORDS_TO_SORT) == MAX_RECORDS_TO_SORT
        query = tx.table.queries.candidates(
            request.conditions, suspects=request.suspects, in_order=in_order, skips_keys=bool(skipped)
        )
        values = {**_bounds(tx), "limit": room, "skipped": msgspec.json.encode(skipped).decode()}
        return tx.select(query, **values).fetchall()

    def _change(self, candidates: Sequence[tuple[Any, ...]], limit: int) -> int:
        """Claim or cancel the records, and return how many were canceled."""
        canceled = 0
        for key, cancel, *_ in candidates:
            if not _is_key(key) or key in self._marks or (not cancel and len(self._marks) >= limit):
                continue
            is_changed = False

            def change(key: JobId = key, cancel: int = cancel) -> None:
                nonlocal is_changed
                is_changed = self._cancel(key) if cancel else self._take(key)

            try:
                refusal = write_in_savepoint(self._tx.raw, change)
            except sqlite3.Error as error:
                if concerns_call(error) or self._tx.raw.in_transaction:
                    raise
                raise RolledBack(key, clean(str(error), MAX_REASON_CHARACTERS)) from None
            if refusal is not None or not is_changed:
                self._refused[key] = clean(str(refusal), MAX_REASON_CHARACTERS) if refusal is not None else NOT_CHANGED
            elif cancel:
                canceled += 1
        return canceled

    def _cancel(self, key: JobId) -> bool:
        return self._tx.run("cancel_waiting", id=key).rowcount > 0

    def _take(self, key: JobId) -> bool:
        token = self._request.token
        counts = self._tx.run("mark", id=key, worker=self._request.worker, token=token).fetchone()
        if counts is None:
            return False
        epoch, has_token = self._tx.read("taken", id=key, token=token).fetchone()
        if not has_token:
            shape = self._tx.table.shape
            own = shape.columns[TOKEN_COLUMN if TOKEN_COLUMN in shape.columns else MARK_COLUMN]
            raise sqlite3.IntegrityError(CHANGED_CLAIM.format(column=own))
        self._marks[key] = (epoch, *counts)
        return True

    # -- reading ---------------------------------------------------------------------------------

    def _read(self) -> list[ClaimedRow]:
        """Return the view's columns after the update. Raises UnseenRecord."""
        return self._taken(rows_by_key(self._marks, self._shown(list(self._marks))), {})

    def _shown(self, keys: Sequence[JobId]) -> list[tuple[Any, ...]]:
        query = self._tx.table.queries.records()
        return self._tx.select(query, ids=msgspec.json.encode(keys).decode()).fetchall()

    def _taken(self, rows: Rows, bad: Reasons) -> list[ClaimedRow]:
        return claimed_rows(self._tx.table.shape, self._request.token, self._marks, rows, bad)

    # -- the slow path: find the bad record ------------------------------------------------------

    def _take_readable(self) -> list[ClaimedRow]:
        try:
            if self._request.limit == 1:
                # Neighbors show whether the record or the view is at fault. This is rolled back.
                self._tx.raw.execute("SAVEPOINT stowhand_claim")
                self._read_each(NEIGHBORS_TO_READ)
                self._undo()
            return self._read_each(min(self._request.limit, MAX_RECORDS_AFTER_ERROR))
        except UnreadableView as view_error:
            view = self._tx.table.shape.view.display_name
            raise TableUnsuitable(f"nothing is claimed from the view {view}: {view_error}") from None

    def _undo(self) -> None:
        self._tx.raw.execute("ROLLBACK TO stowhand_claim")
        self._tx.raw.execute("RELEASE stowhand_claim")

    def _read_each(self, limit: int) -> list[ClaimedRow]:
        self._take_in_order(limit)
        keys = list(self._marks)
        rows: list[tuple[Any, ...]] = []
        unread: Reasons = {}
        for key in keys:
            try:
                rows += self._shown([key])
            except sqlite3.Error as error:
                if concerns_call(error):
                    raise
                unread[key] = clean(str(error), MAX_REASON_CHARACTERS)
        return self._taken(*read_by_key(keys, rows, unread))


def within(candidates: Sequence[tuple[Any, ...]], conditions: Sequence[Any]) -> Sequence[tuple[Any, ...]]:
    """Return the first rows whose sums stay within the bounds of the conditions."""
    _, together = split_conditions(conditions)
    for index, bound in enumerate(together):
        total = 0.0
        for number, row in enumerate(candidates):
            if row[1]:
                continue  # A canceled record costs nothing.
            total += row[2 + index]
            if total > bound.value:
                candidates = candidates[:number]
                break
    return candidates


def _is_key(value: object) -> bool:
    """Return whether a value can be a key. SQLite also has invalid texts (not UTF-8), which cannot be looked up."""
    return not isinstance(value, str) or clean(value, len(value) * 4 + 1) == value


def _due(tx: TableTransaction, limit: int) -> int:
    number: int = tx.raw.execute(tx.table.queries.due(), {**_bounds(tx), "limit": limit}).fetchone()[0]
    return number


def _bounds(tx: TableTransaction) -> Mapping[str, Any]:
    late, soon = tx.now - round(tx.table.options.retry_delay * MICROS_PER_SECOND), tx.now + 2 * MICROS_PER_DAY
    return {**tx.times, **parameters("late", late), **parameters("soon", soon)}
