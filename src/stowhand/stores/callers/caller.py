"""What a store asks of a connection that an application holds and commits.

Everything runs through the application's own object, inside its transaction; nothing here commits. Each call is
answered at once, or, where the object is asynchronous, by an awaitable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

T = TypeVar("T")

POSTGRES, SQLITE = "postgresql", "sqlite"
"""Databases, as SQLAlchemy and Django call them, too."""

Check = Callable[[object], None]
"""Is given the driver's own connection, before anything is written there; raises ConfigurationError."""


class PostgresCaller(Protocol):
    """A connection to PostgreSQL."""

    def ask(self, function: str, value: str, check: Check) -> Any:
        """What an SQL function of one text gives, which is a text; or an awaitable of it.

        Raises ConfigurationError where the connection's owner could not commit.
        """


class SqliteHost(Protocol):
    """SQLite beneath a connection, in the thread that may use it."""

    def execute(self, sql: str, values: Any = (), /) -> Any:
        """A cursor: ``fetchone``, ``fetchall``, ``lastrowid``. Raises what sqlite3 raises."""

    @property
    def in_transaction(self) -> bool: ...

    @property
    def refusal(self) -> str | None:
        """Why its owner could not commit a transaction that is begun here."""


class SqliteCaller(Protocol):
    """A connection to SQLite."""

    def run(self, work: Callable[[SqliteHost], T]) -> Any:
        """What the work gives; or an awaitable of it."""


class Held(Protocol):
    """What waits for a commit."""

    def show(self) -> None:
        """It has been committed."""
