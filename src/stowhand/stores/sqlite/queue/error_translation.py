"""Translation of SQLite's errors to errors of the queue; ``database.sqlite_errors`` classifies them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stowhand.errors import InvalidJob, SchemaMissing, StoreError
from stowhand.stores.database import sqlite_errors
from stowhand.stores.database.migrations import HOW_TO_INSTALL

_CONSTRAINT_MESSAGES = {
    "run_at_is_a_date": "run_at lies outside the years 1 to 9999",
    "at_least_one_attempt": "max_attempts must lie between 1 and 2147483647",
    "resets_not_negative": "max_resets must not be negative",
    "priority_has_32_bits": "priority does not fit 32 bits",
}


def refusal(error: BaseException) -> InvalidJob:
    """Return the InvalidJob for an error about refused data."""
    if isinstance(error, InvalidJob):
        return error
    name = str(error).rpartition(": ")[2]
    return InvalidJob(_CONSTRAINT_MESSAGES.get(name, f"the store cannot write it: {error}"))


def reason(error: Exception) -> str:
    """Return the reason for which a settlement cannot be written. ``error``: the error of its transaction."""
    cause = error.__cause__ if isinstance(error, StoreError) else error
    return str(refusal(error if cause is None else cause))


@contextmanager
def refusing() -> Iterator[None]:
    """Raise InvalidJob in place of an error about refused data that the block raises."""
    try:
        yield
    except (sqlite3.Error, ValueError, OverflowError) as error:
        if isinstance(error, InvalidJob) or not sqlite_errors.is_refused_data(error):
            raise
        raise refusal(error) from error


def explain(error: sqlite3.Error, path: Path) -> StoreError:
    """Return the error of the package for any other error of SQLite."""
    if "no such table: stowhand_" in str(error):
        return SchemaMissing(f"{path}: the tables of stowhand no longer exist ({error}): {HOW_TO_INSTALL}")
    return sqlite_errors.explain(error, path)
