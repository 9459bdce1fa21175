"""A record's values, read as text: whatever its columns' types are, they are what psycopg makes of them by itself.

What PostgreSQL can say and Python cannot (``infinity``, the year 20000) becomes the last or the first moment that
Python can: one such value must not make everything claimed together unreadable. The session writes ISO, in UTC
(``begin_claim``), though psycopg reads by the connection's settings, which it learns only after the transaction.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from functools import lru_cache
from typing import Any

import psycopg
from psycopg.adapt import Buffer, Loader

_FIRST, _LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


@lru_cache(maxsize=1024)
def _moment(data: bytes) -> datetime:
    text = data.decode()
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        return _nearest(text)


class _Moment(Loader):
    """Remembered: a claim writes the same moment into all of its records, twice."""

    def load(self, data: Buffer) -> datetime:
        return _moment(bytes(data))


class _LocalMoment(Loader):
    def load(self, data: Buffer) -> datetime:
        text = bytes(data).decode()
        try:
            return datetime.fromisoformat(text)
        except ValueError:
            return _nearest(text).replace(tzinfo=None)


class _Day(Loader):
    def load(self, data: Buffer) -> date:
        text = bytes(data).decode()
        try:
            return date.fromisoformat(text)
        except ValueError:
            return _nearest(text).date()


def read_plainly(cursor: psycopg.AsyncCursor[Any]) -> None:
    """Register the loaders on one cursor."""
    cursor.adapters.register_loader("timestamptz", _Moment)
    cursor.adapters.register_loader("timestamp", _LocalMoment)
    cursor.adapters.register_loader("date", _Day)


def _nearest(text: str) -> datetime:
    return _FIRST if text.startswith("-") or text.endswith("BC") else _LAST
