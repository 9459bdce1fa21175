"""The meaning of PostgreSQL's errors for a caller.

client           raised by the driver, not sent by a server or caused by a socket; a retry does not help
connection lost  no reply arrived, so the outcome is unknown
transient        the server refused temporarily (deadlock, shutdown, disk full, read-only); a retry may help
values           the values are refused; a retry does not help, but other values may be accepted
undefined        the schema, a table or a function does not exist
forbidden        the login lacks a privilege

Errors of other drivers (asyncpg, psycopg2) are judged by their SQLSTATE.
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
    """Return whether the driver refused the call: values that it cannot send, a closed cursor, a bug here."""
    if isinstance(error, UnicodeError):
        return True
    return isinstance(error, psycopg.Error) and not error.sqlstate and not isinstance(error, psycopg.OperationalError)


def is_connection_lost(error: BaseException) -> bool:
    """Return whether the session ended without a reply: no SQLSTATE, closed by server or pooler, or past the deadline.

    An error of class 08 in a session that continues has another source, such as a trigger that calls a foreign server.
    """
    if isinstance(error, TimeoutError | OSError):
        return True
    if not isinstance(error, psycopg.OperationalError):
        return False
    return error.sqlstate is None or error.diag.severity_nonlocalized in _FATAL_SEVERITIES


def concerns_call(error: Exception) -> bool:
    """Return whether the error concerns the whole call, not a row: a lost connection, or an error of other code."""
    return is_connection_lost(error) or not isinstance(error, psycopg.Error | UnicodeError | OverflowError)


def is_transient(error: BaseException) -> bool:
    """Return whether nothing was done and the same call may succeed later."""
    code = _code(error)
    return code in _TRANSIENT_CODES or code.startswith(_TRANSIENT_CLASSES)


def is_about_values(error: BaseException) -> bool:
    """Return whether the database or its driver refuses these values."""
    if isinstance(error, UnicodeError):
        return True
    code = _code(error)
    if not code:
        return isinstance(error, psycopg.DataError)
    return code.startswith(_VALUE_CLASSES)


def is_undefined_object(error: BaseException) -> bool:
    """Return whether the statement names an object that does not exist."""
    return _code(error) in _ABSENT_CODES


def is_forbidden(error: BaseException) -> bool:
    """Return whether a privilege is missing."""
    return _code(error) == "42501"


def is_read_only(error: BaseException) -> bool:
    """Return whether the server accepts no writes."""
    return _code(error) == "25006"


def is_query_canceled(error: BaseException) -> bool:
    """Return whether the server canceled the statement: it timed out, or another session requested that."""
    return _code(error) == "57014"


def is_pooler_error(error: BaseException) -> bool:
    """Return whether a pooler exchanged the connection: a prepared statement exists already, or is unknown."""
    return _code(error) in {"42P05", "26000"}


def ends_connection(error: BaseException) -> bool:
    """Return whether a new connection may help: the server stopped, or is a replica now."""
    return is_connection_lost(error) or _code(error).startswith("57P") or _code(error) == "25006"


def first_line(error: BaseException) -> str:
    """Return the database's message without context lines."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def driver_error(error: BaseException) -> BaseException:
    """Return the driver's own error if a library (SQLAlchemy, Django) has wrapped it."""
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
"""The pause after the first attempt. The pause after attempt n is n times as long."""


async def retry_transient(action: Callable[[], Awaitable[T]], clock: Clock) -> T:
    """Return the result of ``action``. Raise a transient error only after all attempts, others at once."""
    for attempt in range(1, MAX_TRANSIENT_ATTEMPTS):
        try:
            return await action()
        except psycopg.Error as error:
            if not postgres_errors.is_transient(error):
                raise
            await clock.sleep(TRANSIENT_PAUSE_SECONDS * attempt)
    return await action()
