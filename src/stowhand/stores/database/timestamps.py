"""Loaders of timestamps: in UTC whatever the server's time zone is, and limited to Python's range.

PostgreSQL has ``infinity`` and years beyond those of Python. One job with such a run time must not make its whole batch
unreadable, so these values become the last (or first) time that Python can represent.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
from psycopg.abc import AdaptContext
from psycopg.adapt import Buffer, Loader
from psycopg.pq import Format
from psycopg.types.numeric import Int8BinaryLoader

_POSTGRES_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_FIRST_TIMESTAMP = datetime.min.replace(tzinfo=UTC)
_LAST_TIMESTAMP = datetime.max.replace(tzinfo=UTC)
_MAX_CACHED_TIMESTAMPS = 64


class UtcLoader(Loader):
    """Loader of ``timestamptz`` in its binary form: microseconds since 2000-01-01 UTC."""

    format = Format.BINARY

    def __init__(self, oid: int, context: AdaptContext | None = None) -> None:
        super().__init__(oid, context)
        # The rows of one batch share most of their times (one claim, one enqueueing transaction).
        self._timestamps: dict[bytes, datetime] = {}

    def load(self, data: Buffer) -> datetime:
        raw = bytes(data)
        timestamp = self._timestamps.get(raw)
        if timestamp is None:
            if len(self._timestamps) >= _MAX_CACHED_TIMESTAMPS:
                self._timestamps.clear()
            timestamp = self._timestamps[raw] = _timestamp(int.from_bytes(raw, "big", signed=True))
        return timestamp


class TimestampCache(dict["int | datetime", datetime]):
    """Times by their numbers, each created once, for rows that are read as numbers. Datetimes pass unchanged."""

    def __missing__(self, microseconds: int | datetime) -> datetime:
        timestamp = self[microseconds] = (
            microseconds if isinstance(microseconds, datetime) else _timestamp(microseconds)
        )
        return timestamp


def _timestamp(microseconds: int) -> datetime:
    try:
        return _POSTGRES_EPOCH + timedelta(0, 0, microseconds)
    except OverflowError:
        return _LAST_TIMESTAMP if microseconds > 0 else _FIRST_TIMESTAMP


def read_timestamps_as_utc(target: psycopg.Connection[Any] | psycopg.AsyncConnection[Any] | psycopg.Cursor[Any]
                           | psycopg.AsyncCursor[Any]) -> None:  # fmt: skip
    """Register the loader on a connection, or on one cursor of a caller's connection."""
    target.adapters.register_loader("timestamptz", UtcLoader)


def read_timestamps_as_numbers(target: psycopg.AsyncCursor[Any]) -> None:
    """Register a loader that is ten times as fast, for rows that share most of their times (``TimestampCache``)."""
    target.adapters.register_loader("timestamptz", Int8BinaryLoader)
