"""Searches a file piece by piece, each a read transaction: one over all of them would hold back the log."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import merge
from itertools import islice
from typing import Any

import msgspec

from stowhand.clock import stopwatch
from stowhand.jobs.job import Job
from stowhand.protocols.figures import COUNTED, Amount
from stowhand.protocols.searching import ABOVE_ALL, FIRST_PIECE, HISTORY, LIVE, Found, Place, Search, place_of, title
from stowhand.stores.sqlite.queue.moment import to_micros
from stowhand.stores.sqlite.queue.rows import as_json, to_job
from stowhand.stores.sqlite.queue.transaction import Transaction

LONGEST_PIECE = 50_000
"""Rows."""
SHARE = 6
"""A piece takes as much of the time that is left, about."""


class Piece(msgspec.Struct):
    """What was found of some rows, and where they end; ``None``: no more follow."""

    jobs: list[Job]
    rows: int
    place: Place | None


def search(tx: Transaction, wanted: Search) -> Found:
    """Until time is up or the answer is full."""
    look = _by_index if wanted.is_indexed else _by_id
    given = msgspec.structs.asdict(wanted) | {
        "states": as_json(sorted(wanted.wanted)),
        "since": None if wanted.since is None else to_micros(wanted.since),
        "until": None if wanted.until is None else to_micros(wanted.until),
    }
    jobs: list[Job] = []
    place, rows, began = place_of(wanted), FIRST_PIECE, stopwatch()
    while True:
        before, left = stopwatch(), wanted.limit - len(jobs)
        tx.raw.execute("BEGIN")  # a job that moves to the history meanwhile is seen once
        try:
            piece = look(tx, wanted, given | {"limit": left}, place, rows)
        finally:
            tx.raw.execute("ROLLBACK")
        jobs += piece.jobs
        looked_at = place.looked_at + piece.rows
        if piece.place is None:
            return Found(jobs=jobs, looked_at=looked_at, of=Amount(looked_at), go_on=None)
        place = Place(piece.place.id, piece.place.at, looked_at)
        now = stopwatch()
        remains = began + wanted.budget - now
        if len(jobs) == wanted.limit or remains <= 0:
            return Found(jobs=jobs, looked_at=looked_at, of=_all(tx, wanted, place), go_on=place.text())
        fits = rows * remains / SHARE / max(now - before, 1e-6)
        rows = int(min(max(fits, FIRST_PIECE), 2 * rows, LONGEST_PIECE))


def head(row: Sequence[Any]) -> Job:
    """As lists show it."""
    job = to_job(tuple(row))
    return job if job.last_error is None else msgspec.structs.replace(job, last_error=title(job.last_error))


def _by_id(tx: Transaction, wanted: Search, given: dict[str, Any], place: Place, rows: int) -> Piece:
    """Of both tables as far down as the rows of both reach. Of a key the live job is found at once."""
    tables = [name for name, states in (("live", LIVE), ("past", HISTORY)) if wanted.wanted & set(states)]
    if wanted.key is not None and "live" in tables:
        tables.remove("live")
        if place.id == ABOVE_ALL:
            ids = tx.column("id_of_key", key=wanted.key)
            jobs = [head(row) for row in tx.rows("search_ids", **given, ids=as_json(ids))]
            return Piece(jobs, len(jobs), Place(ABOVE_ALL - 1) if tables else None)
    ends = {name: tx.row(f"{name}_piece", below=place.id, rows=rows) for name in tables}
    first = max((end for count, end in ends.values() if count == rows), default=0)
    given |= {"first": first, "below": place.id}
    parts = [tx.rows(f"search_{name}", **given) for name in tables]
    jobs = [head(row) for row in islice(merge(*parts, key=lambda row: row[0], reverse=True), given["limit"])]
    if len(jobs) == given["limit"]:
        first = jobs[-1].id  # what lies behind it is for the next answer
    looked_at = sum(tx.row(f"{name}_rows", first=first, below=place.id)[0] for name in tables)
    return Piece(jobs, looked_at, Place(first) if first else None)


def _by_index(tx: Transaction, wanted: Search, given: dict[str, Any], place: Place, rows: int) -> Piece:
    """Of those alone that have the state."""
    name = "failed_piece" if wanted.by_failure else "running_piece"
    found = tx.rows(name, at=place.at, below=place.id, rows=rows)
    order = {job_id: number for number, (job_id, _) in enumerate(found, 1)}
    jobs = [head(row) for row in tx.rows("search_ids", **given, ids=as_json(list(order)))]
    jobs = sorted(jobs, key=lambda job: order[job.id])[: given["limit"]]
    ends = order[jobs[-1].id] if len(jobs) == given["limit"] else len(found)
    is_last = len(found) < rows and ends == len(found)
    return Piece(jobs, ends, None if is_last else Place(*found[ends - 1]))


def _all(tx: Transaction, wanted: Search, place: Place) -> Amount:
    """How many rows a whole search looks at; by ids as far as they are as dense as those that were looked at."""
    if wanted.is_indexed:
        name = "some_failed" if wanted.by_failure else "some_running"
        (number,) = tx.row(name, most=COUNTED + 1)
        return _limited(max(number, place.looked_at))
    spans = [tx.row(f"{name}_span") for name in ("live", "past")]
    first = min((low for low, _ in spans if low is not None), default=1)
    last = max((high for _, high in spans if high is not None), default=1)
    share = (last - first + 1) / max(last - place.id + 1, 1)
    return Amount(max(round(place.looked_at * share), place.looked_at), exact=False)


def _limited(number: int) -> Amount:
    return Amount(number) if number <= COUNTED else Amount(max(number - 1, COUNTED), exact=False, least=True)
