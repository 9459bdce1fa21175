"""Counts of ended jobs by minute and task, in the file. Each function runs inside a transaction."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stowhand.protocols.throughput import HOUR_SECONDS, MINUTE_SECONDS, TaskMinute
from stowhand.stores.periods import is_open, newest_closed, newest_old_hour, regrouped
from stowhand.stores.sqlite.queue.moment import micros
from stowhand.stores.sqlite.queue.rows import as_json
from stowhand.stores.sqlite.queue.transaction import Transaction

MAX_MINUTES_PER_TRANSACTION = 60
_numbers = msgspec.json.Decoder(dict[str, int])


def write(tx: Transaction, writer: str, minutes: Sequence[TaskMinute]) -> list[tuple[int, str]]:
    """Write the counts. Return the (minute, task) pairs that were not written."""
    now = tx.now.wall / 1_000_000
    unwritten = []
    for counts in minutes:
        row = {"begins": micros(counts.minute * MINUTE_SECONDS), "task": counts.task, "writer": writer}
        tally = as_json(counts.tally.numbers())
        if not is_open(counts.minute, now) or not tx.run("write_throughput", **row, tally=tally).rowcount:
            unwritten.append((counts.minute, counts.task))
    return unwritten


def is_foldable(tx: Transaction) -> bool:
    """Return whether there are rows to add up."""
    return bool(_closed(tx, 1) or _old_hours(tx, 1))


def fold(tx: Transaction) -> None:
    """Add up some closed minutes, and some old minutes into hours."""
    for begins in _closed(tx, MAX_MINUTES_PER_TRANSACTION):
        _regroup(tx, begins, MINUTE_SECONDS)
    for begins in _old_hours(tx, MAX_MINUTES_PER_TRANSACTION * MINUTE_SECONDS // HOUR_SECONDS):
        _regroup(tx, begins, HOUR_SECONDS)


def _closed(tx: Transaction, limit: int) -> list[int]:
    return tx.column("closed_minutes", newest=micros(newest_closed(tx.now.wall / 1_000_000)), limit=limit)


def _old_hours(tx: Transaction, limit: int) -> list[int]:
    return tx.column("old_hours", newest=micros(newest_old_hour(tx.now.wall / 1_000_000)), limit=limit)


def _regroup(tx: Transaction, begins: int, seconds: int) -> None:
    rows = tx.rows("take_throughput", begins=begins, seconds=seconds)
    for task, tally in regrouped((task, _numbers.decode(tally)) for task, tally in rows).items():
        tx.run("add_throughput", begins=begins, seconds=seconds, task=task, tally=as_json(tally.numbers()))
