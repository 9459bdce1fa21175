"""Moments as columns hold them."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime

import pytest

from stowhand.stores.sqlite.table import timestamps
from stowhand.stores.sqlite.table.timestamps import TimeFormat

AT = 1_714_564_800_123_456


@pytest.mark.parametrize(
    ("stored", "micros"),
    [
        ("2024-05-01 12:00:00.123456", AT),
        ("2024-05-01T12:00:00.123456Z", AT),
        ("2024-05-01 17:30:00.123456+05:30", AT),
        (" 2024-05-01 12:00 ", 1_714_564_800_000_000),
        ("2024-05-01", 1_714_521_600_000_000),
        (1714564800, 1_714_564_800_000_000),
        (1714564800.123456, AT),
        (1714564800123, 1_714_564_800_123_000),
        (100_000_000_000, 100_000_000_000_000),
        (AT, AT),
        ("1714564800.5", 1_714_564_800_500_000),
        ("1712011200000", 1_712_011_200_000_000),
        ("20240501", 1_714_521_600_000_000),
        (None, None),
        ("soon", None),
        ("", None),
        ("nan", None),
        (float("inf"), None),
        ("0001-01-01T00:00:00+14:00", -62_135_647_200_000_000),
        (b"2024-05-01", None),
        (2**62, None),
    ],
)
def test_whatever_is_stored_is_understood_or_left_alone(stored: object, micros: int | None) -> None:
    assert timestamps.stored_micros(stored) == micros


@pytest.mark.parametrize(
    ("declared", "kind"),
    [
        ("", TimeFormat.TEXT),
        ("datetime", TimeFormat.TEXT),
        ("TIMESTAMP", TimeFormat.TEXT),
        ("varchar(30)", TimeFormat.TEXT),
        ("BigInt", TimeFormat.INTEGER),
        ("INTEGER", TimeFormat.INTEGER),
        ("real", TimeFormat.REAL),
        ("DOUBLE PRECISION", TimeFormat.REAL),
    ],
)
def test_the_declared_type_says_how_to_write(declared: str, kind: TimeFormat) -> None:
    assert timestamps.kind_of(declared) is kind


def test_what_is_written_sorts_with_what_sqlite_itself_writes() -> None:
    connection = sqlite3.connect(":memory:")
    (now,) = connection.execute("SELECT CURRENT_TIMESTAMP").fetchone()
    connection.close()
    second = timestamps.to_micros(datetime.fromisoformat(now).replace(tzinfo=UTC))
    assert timestamps.as_text(second - 1) < now <= timestamps.as_text(second)
    assert timestamps.stored_micros(now) == second


def test_the_ends_of_time_are_written_as_the_last_moment_there_is() -> None:
    assert timestamps.as_text(timestamps.after(0, 1e300)) == "9999-12-31 23:59:59.999999"
    assert timestamps.as_text(timestamps.after(0, -1e300)) == "0001-01-01 00:00:00.000000"
