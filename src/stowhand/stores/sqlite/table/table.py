"""What is known of one table once its catalog has been read, and what its claims and heartbeats share."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Any

import msgspec

from stowhand.stores.database.sqlite_connection import SqliteConnection
from stowhand.stores.sqlite.table.moments import parameters
from stowhand.stores.sqlite.table.selecting import Selecting
from stowhand.stores.sqlite.table.statements import Kinds, Statements
from stowhand.stores.table.claim_starts import Begun
from stowhand.stores.table.keys import Key
from stowhand.stores.table.names import Shape
from stowhand.stores.table.options import TableOptions

ABANDONED = 10_000
"""Tokens remembered: a claim is asked for by this very process, and ends long before so many others."""


class Table(msgspec.Struct, frozen=True):
    """Options, and the statements that they and the catalog lead to."""

    options: TableOptions[Any]
    shape: Shape
    kinds: Kinds
    key: Key
    names: tuple[str, ...]
    """Of a record's columns."""
    statements: Statements
    selecting: Selecting
    walks: bool = False
    """There is an index of the very order in which records are claimed, of what waits alone."""

    def run(
        self, connection: sqlite3.Connection, name: str, now: int, given: Mapping[str, Any], due: int | None = None
    ) -> sqlite3.Cursor:
        """A statement about one record. ``due``: when it is to be due again; ``None``: at once."""
        bound = {**parameters("now", now), **given}
        if due is not None:
            bound |= parameters("due", due, not_before=True)
        else:
            bound |= dict.fromkeys(("due_text", "due_real", "due_integer"))
        return connection.execute(self.statements.record[name], bound)


class Abandoned:
    """Tokens that may claim nothing more. In memory: only this process claims with them."""

    def __init__(self, lease: float) -> None:
        self._tokens: dict[str, None] = {}
        self.begun = Begun(lease)

    def __contains__(self, token: str) -> bool:
        return token in self._tokens

    def add(self, token: str) -> None:
        """Called inside a write transaction, as claims are."""
        self._tokens[token] = None
        if len(self._tokens) > ABANDONED:
            del self._tokens[next(iter(self._tokens))]


TableConnection = SqliteConnection[int]
"""A connection whose clock gives microseconds since 1970."""
