"""Searches a file piece by piece, each a read transaction: one over all of them would hold back the log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from stowhand.clock import stopwatch
from stowhand.jobs.job import Job
from stowhand.protocols.figures import COUNTED, Amount
from stowhand.protocols.searching import ABOVE_ALL, FIRST_PIECE, HISTORY, LIVE, Found, Place, Search, title
from stowhand.stores.searching import Part, SearchProgress
from stowhand.stores.sqlite.queue.moment import to_micros
from stowhand.stores.sqlite.queue.rows import as_json, to_job
from stowhand.stores.sqlite.queue.transaction import Transaction

LONGEST_PIECE = 50_000
"""Rows."""
SHARE = 6
"""A piece takes as much of the time that is left, about."""


class Piece(msgspec.Struct):
    """Jobs found among some rows, the number of these rows, and where they end; ``None``: no row follows."""

    jobs: list[Job]
    rows: int
    end: Place | None


def search(tx: Transaction, wanted: Search) -> Found:
    """Search until time is up or the answer is full."""
    look = _by_index if wanted.is_indexed else _by_id
    values = msgspec.structs.asdict(wanted) | {
        "states": as_json(sorted(wanted.wanted)),
        "since": None if wanted.since is None else to_micros(wanted.since),
        "until": None if wanted.until is None else to_micros(wanted.until),
    }
    progress, rows = SearchProgress(wanted), FIRST_PIECE
    while (part := progress.next_part()) is not None:
        started = stopwatch()
        tx.raw.execute("BEGIN")  # a job that moves to the history meanwhile is seen once
        try:
            piece = look(tx, wanted, values, part, rows)
        finally:
            tx.raw.execute("ROLLBACK")
        progress.add(piece.jobs, piece.rows, piece.end)
        fitting = rows * part.budget / SHARE / max(stopwatch() - started, 1e-6)
        rows = int(min(max(fitting, FIRST_PIECE), 2 * rows, LONGEST_PIECE))
    return progress.found(Amount() if progress.is_complete else _all(tx, wanted))


def head(row: Sequence[Any]) -> Job:
    """As lists show it."""
    job = to_job(tuple(row))
    return job if job.last_error is None else msgspec.structs.replace(job, last_error=title(job.last_error))


def _by_id(tx: Transaction, wanted: Search, values: dict[str, Any], part: Part, rows: int) -> Piece:
    """Search one table by descending ids; the live jobs of a key, or of a queue with few, by index."""
    place, table = part.place, "past" if part.place.in_history else "live"
    if table == "live" and wanted.key is not None:
        return _among(tx, values, part, [one for one in tx.column("id_of_key", key=wanted.key) if one < place.id])
    if table == "live" and wanted.queue is not None:
        ids = tx.rows("ids_of_queue", queue=wanted.queue, most=COUNTED + 1)
        if len(ids) <= COUNTED:
            return _among(
                tx, values, part, [job_id for job_id, is_in_queue in ids if is_in_queue and job_id < place.id]
            )
    count, first = tx.row(f"{table}_piece", below=place.id, rows=rows)
    first = first if count == rows else 0
    values = values | {"first": first, "below": place.id, "limit": part.limit}
    jobs = [head(row) for row in tx.rows(f"search_{table}", **values)]
    if len(jobs) == part.limit:
        first = jobs[-1].id  # what is below it belongs to the next answer
        (count,) = tx.row(f"{table}_rows", first=first, below=place.id)
    return Piece(jobs, count, Place(in_history=place.in_history, id=first) if first else None)


def _among(tx: Transaction, values: dict[str, Any], part: Part, ids: Sequence[int]) -> Piece:
    """Search live jobs that an index has given."""
    ids = sorted(ids, reverse=True)
    found = {job.id: job for job in map(head, tx.rows("search_ids", **values, ids=as_json(ids)))}
    jobs = [found[job_id] for job_id in ids if job_id in found][: part.limit]
    if len(jobs) < part.limit:
        return Piece(jobs, len(ids), None)
    return Piece(jobs, ids.index(jobs[-1].id) + 1, Place(id=jobs[-1].id))


def _by_index(tx: Transaction, wanted: Search, values: dict[str, Any], part: Part, rows: int) -> Piece:
    """Search only the jobs in the one state that is wanted."""
    name = "failed_piece" if wanted.by_failure else "running_piece"
    found = tx.rows(name, at=part.place.at, below=part.place.id, rows=rows)
    order = {job_id: number for number, (job_id, _) in enumerate(found, 1)}
    jobs = [head(row) for row in tx.rows("search_ids", **values, ids=as_json(list(order)))]
    jobs = sorted(jobs, key=lambda job: order[job.id])[: part.limit]
    end = order[jobs[-1].id] if len(jobs) == part.limit else len(found)
    if len(found) < rows and end == len(found):
        return Piece(jobs, end, None)
    job_id, at = found[end - 1]
    return Piece(jobs, end, Place(id=job_id, at=at))


def _all(tx: Transaction, wanted: Search) -> Amount:
    """Count the rows that a whole search examines, up to a limit."""
    if wanted.is_indexed:
        name = "some_failed" if wanted.by_failure else "some_running"
        (number,) = tx.row(name, most=COUNTED + 1)
    else:
        tables = [name for name, states in (("live", LIVE), ("past", HISTORY)) if wanted.wanted & set(states)]
        number = sum(tx.row(f"{name}_piece", below=ABOVE_ALL, rows=COUNTED + 1)[0] for name in tables)
    return Amount.up_to(COUNTED, number)
