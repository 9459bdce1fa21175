"""Searches the memory store's jobs, in the order and the pieces of the stores on a disk."""

from __future__ import annotations

import msgspec

from stowhand.clock import stopwatch
from stowhand.jobs.job import Job
from stowhand.protocols.figures import Amount
from stowhand.protocols.searching import FIRST_PIECE, HISTORY, LIVE, Found, Place, Search, micros_of, place_of, title
from stowhand.stores.memory.rows import Row, Rows


def search(rows: Rows, wanted: Search) -> Found:
    """Piece by piece, until time is up or the answer is full."""
    place, until = place_of(wanted), stopwatch() + wanted.budget
    looked_at = (row for row in rows.every() if _is_looked_at(row, wanted))
    in_order = sorted(looked_at, key=lambda row: _place(row, wanted), reverse=True)
    left = [row for row in in_order if _place(row, wanted) < (place.at or 0, place.id)]
    found: list[Job] = []
    for number, row in enumerate(left, 1):
        if matches(row, wanted):
            found.append(head(row))
        is_full = len(found) == wanted.limit or (number % FIRST_PIECE == 0 and stopwatch() >= until)
        if is_full and number < len(left):
            behind = Place(row.id, _place(row, wanted)[0] if wanted.by_failure else None, place.looked_at + number)
            return Found(jobs=found, looked_at=behind.looked_at, of=Amount(len(in_order)), go_on=behind.text())
    return Found(jobs=found, looked_at=place.looked_at + len(left), of=Amount(len(in_order)), go_on=None)


def head(row: Row) -> Job:
    """As lists show it."""
    return msgspec.structs.replace(row.job(), payload_text="", result_text=None, last_error=title(row.last_error))


def matches(row: Row, wanted: Search) -> bool:
    """Whether it is one of the jobs that are searched for."""
    at = row.finished_at or row.created_at
    return (
        row.state in wanted.wanted
        and wanted.task in (None, row.task)
        and wanted.queue in (None, row.queue)
        and wanted.key in (None, row.key)
        and (wanted.flag is None or wanted.flag in row.flags)
        and wanted.worker in (None, row.worker or row.last_worker)
        and (wanted.error is None or wanted.error.lower() in (row.last_error or "").lower())
        and (wanted.since is None or at >= wanted.since)
        and (wanted.until is None or at < wanted.until)
    )


def _is_looked_at(row: Row, wanted: Search) -> bool:
    """It lies where something is looked for: in the table, or the index, of what is wanted."""
    if wanted.is_indexed:
        return row.state in wanted.wanted
    return any(row.state in states and wanted.wanted & set(states) for states in (LIVE, HISTORY))


def _place(row: Row, wanted: Search) -> tuple[int, int]:
    return (micros_of(row.finished_at) if wanted.by_failure and row.finished_at is not None else 0, row.id)
