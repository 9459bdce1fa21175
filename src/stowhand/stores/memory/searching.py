"""Searches the memory store's jobs in the order of the other stores."""

from __future__ import annotations

import msgspec

from stowhand.jobs.job import Job
from stowhand.protocols.figures import Amount
from stowhand.protocols.searching import FIRST_PIECE, HISTORY, LIVE, Found, Place, Search, micros_of, title
from stowhand.stores.memory.rows import Row, Rows
from stowhand.stores.searching import Part, SearchProgress


def search(rows: Rows, wanted: Search) -> Found:
    """Search piece by piece, until time is up or the answer is full."""
    progress = SearchProgress(wanted)
    searched = sorted(
        (row for row in rows.every() if _is_searched(row, wanted)),
        key=lambda row: _position(row, wanted),
        reverse=True,
    )
    while (part := progress.next_part()) is not None:
        found, examined, end = _piece(searched, part, wanted)
        progress.add([head(row) for row in found], examined, end)
    return progress.found(Amount(len(searched)))


def _piece(searched: list[Row], part: Part, wanted: Search) -> tuple[list[Row], int, Place | None]:
    table = HISTORY if part.place.in_history else LIVE
    start = (part.place.at, part.place.id) if wanted.by_failure else (part.place.id,)
    left = [row for row in searched if row.state in table and _position(row, wanted) < start]
    found: list[Row] = []
    for examined, row in enumerate(left[:FIRST_PIECE], 1):
        if matches(row, wanted):
            found.append(row)
        if examined < len(left) and (len(found) == part.limit or examined == FIRST_PIECE):
            at = _position(row, wanted)[0] if wanted.by_failure else None
            return found, examined, Place(in_history=part.place.in_history, id=row.id, at=at)
    return found, len(left), None


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


def _is_searched(row: Row, wanted: Search) -> bool:
    """The row is in a table, or an index, in which the search looks."""
    if wanted.is_indexed:
        return row.state in wanted.wanted
    return any(row.state in states and wanted.wanted & set(states) for states in (LIVE, HISTORY))


def _position(row: Row, wanted: Search) -> tuple[int, ...]:
    return (micros_of(row.finished_at), row.id) if wanted.by_failure and row.finished_at else (row.id,)
