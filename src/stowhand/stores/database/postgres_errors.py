"""What a database error means for the caller.

own         raised on this side: no server sent it, and no socket failed; trying again is no use
cut         the connection is gone, and with it the reply: the outcome is not known
transient   the server refused for now (deadlock, shutdown, no space, read-only): nothing was done, try again
values      the values are at fault: trying again is no use, but other values may pass
absent      the schema, a table or a function is not there
forbidden   the login lacks a privilege

Another driver's error, asyncpg's or psycopg2's, is looked at by its SQLSTATE.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import psycopg

from stowhand.clock import Clock
from stowhand.stores.database import postgres_errors

_TRANSIENT_CODES = frozenset({"40001", "40P01", "25006", "55P03", "57014"})
_TRANSIENT_CLASSES = ("53", "57P")
_VALUE_CLASSES = ("22", "23", "54", "GW")
_FATAL_SEVERITIES = ("FATAL", "PANIC")
_ABSENT_CODES = frozenset({"3F000", "42P01", "42883", "42704", "42703"})


def is_client_error(error: BaseException) -> bool:
    """The driver refused the call: values that cannot be sent, a closed cursor, a mistake in our own code."""
    if isinstance(error, UnicodeError):
        return True
    return isinstance(error, psycopg.Error) and not error.sqlstate and not isinstance(error, psycopg.OperationalError)


def is_connection_lost(error: BaseException) -> bool:
    """No reply, so no SQLSTATE; or the server, or a pooler, has ended the session; or our own deadline.

    An error of class 08 within a session that goes on is another one's: a trigger that asks a foreign server.
    """
    if isinstance(error, TimeoutError | OSError):
        return True
    if not isinstance(error, psycopg.OperationalError):
        return False
    return error.sqlstate is None or error.diag.severity_nonlocalized in _FATAL_SEVERITIES


def concerns_call(error: Exception) -> bool:
    """It says nothing about a row: the connection was cut, or it is no error of the database or of the values."""
    return is_connection_lost(error) or not isinstance(error, psycopg.Error | UnicodeError | OverflowError)


def is_transient(error: BaseException) -> bool:
    """Definitely not done; the same call may succeed later."""
    code = _code(error)
    return code in _TRANSIENT_CODES or code.startswith(_TRANSIENT_CLASSES)


def is_about_values(error: BaseException) -> bool:
    """The database, or the driver on the way to it, refuses these values."""
    if isinstance(error, UnicodeError):
        return True
    code = _code(error)
    if not code:
        return isinstance(error, psycopg.DataError)
    return code.startswith(_VALUE_CLASSES)


def is_undefined_object(error: BaseException) -> bool:
    """What the statement names does not exist."""
    return _code(error) in _ABSENT_CODES


def is_forbidden(error: BaseException) -> bool:
    """A privilege is missing."""
    return _code(error) == "42501"


def is_read_only(error: BaseException) -> bool:
    """The server takes no writes."""
    return _code(error) == "25006"


def is_query_canceled(error: BaseException) -> bool:
    """The server ended the statement: its time was up, or somebody asked for that."""
    return _code(error) == "57014"


def is_pooler_error(error: BaseException) -> bool:
    """A prepared statement is there already, or not there: it was made on another connection of a pooler's."""
    return _code(error) in {"42P05", "26000"}


def ends_connection(error: BaseException) -> bool:
    """Reconnecting may help: the server went away, or turned out to be a replica."""
    return is_connection_lost(error) or _code(error).startswith("57P") or _code(error) == "25006"


def first_line(error: BaseException) -> str:
    """What the database said, without context lines."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def driver_error(error: BaseException) -> BaseException:
    """The driver's own error, where libraries (SQLAlchemy, Django) have raised theirs for it."""
    while (inner := getattr(error, "orig", None) or error.__cause__) is not None and _code(inner):
        error = inner
    return error


def _code(error: BaseException) -> str:
    if isinstance(error, psycopg.Error):
        return error.sqlstate or ""
    return getattr(error, "sqlstate", None) or getattr(error, "pgcode", None) or ""


T = TypeVar("T")

MAX_TRANSIENT_ATTEMPTS = 4
TRANSIENT_PAUSE_SECONDS = 0.05
"""Seconds after the first try; twice as many after the second, and so on."""


async def retry_transient(action: Callable[[], Awaitable[T]], clock: Clock) -> T:
    """The result of ``action``. Raises any other error at once, and a transient one when it does not pass."""
    for attempt in range(1, MAX_TRANSIENT_ATTEMPTS):
        try:
            return await action()
        except psycopg.Error as error:
            if not postgres_errors.is_transient(error):
                raise
            await clock.sleep(TRANSIENT_PAUSE_SECONDS * attempt)
    return await action()
