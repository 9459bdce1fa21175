"""Interfaces to connections that an application owns and commits.

Everything runs through the application's own object, inside its transaction; nothing here commits. Each method returns
its result, or an awaitable of it where the object is asynchronous.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    import sqlite3

T = TypeVar("T")

POSTGRES, SQLITE = "postgresql", "sqlite"
"""Kinds of databases, named as in SQLAlchemy and Django."""

ConnectionCheck = Callable[[object], None]
"""A check of the driver's own connection, called before any write to it. It raises ConfigurationError."""


def function_call(function: str) -> str:
    """Return the statement that calls an SQL function of one text, for drivers with ``%s`` placeholders."""
    return f"select {function.replace('%', '%%')}(%s::text)"


class PostgresCaller(Protocol):
    """A connection to PostgreSQL."""

    def ask(self, function: str, value: str, check: ConnectionCheck) -> Any:
        """Call an SQL function of one text, and return the text that it returns.

        Raise ConfigurationError if the connection's owner could not commit.
        """


class SqliteCaller(Protocol):
    """A connection to SQLite."""

    def run(self, work: Callable[[sqlite3.Connection], T]) -> Any:
        """Run the work on the driver's connection, in the thread that may use it, and return its result.

        Raise ConfigurationError if the connection's owner could not commit.
        """


class PendingCommit(Protocol):
    """Jobs that become visible to others when the caller commits."""

    def show(self) -> None:
        """Make the jobs visible: the transaction is committed."""


class CommitAwareCaller(Protocol):
    """A connection whose library reports its commit."""

    def add_pending(self, pending: PendingCommit) -> Any:
        """Call ``pending.show()`` once the transaction is committed."""
