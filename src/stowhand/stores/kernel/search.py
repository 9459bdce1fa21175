"""Searches piece by piece: find the end of a piece by the order of an index, then read the matching jobs in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from stowhand.clock import stopwatch
from stowhand.jobs.job import Job
from stowhand.protocols.counts import MAX_EXACT_COUNT, BoundedCount
from stowhand.protocols.search import (
    FIRST_PAGE_ROWS,
    MAX_INT64,
    Search,
    SearchPosition,
    SearchResult,
    first_line,
    from_microseconds,
    to_microseconds,
)
from stowhand.stores.kernel.columns import HEAD
from stowhand.stores.kernel.lists import TABLES, conditions, values_of
from stowhand.stores.kernel.question import Engine, Query, Question, Row, count_some
from stowhand.stores.kernel.search_progress import Part, SearchProgress

MAX_PIECE_ROWS = 50_000
REMAINING_TIME_DIVISOR = 6
"""A piece takes about the remaining time divided by this number."""
_PIECE = "SELECT count(*), min(id) FROM (SELECT id FROM {%s} WHERE id < :below ORDER BY id DESC LIMIT :rows) AS piece"
# Waiting jobs of a serial key, and all suspects, running and failed jobs.
_OF_QUEUE = " UNION ALL ".join(
    f"SELECT * FROM (SELECT id, serial FROM {{{index}}}{condition} LIMIT :most) AS {index}"
    for index, condition in {"serial": " AND serial = :serial", "suspects": "", "running": "", "failed": ""}.items()
)


class Piece(msgspec.Struct):
    """Matching jobs among some rows, the number of these rows, and their end position (``None``: no row follows)."""

    jobs: Sequence[Job]
    rows: int
    end: SearchPosition | None


def search(engine: Engine, wanted: Search) -> Question[SearchResult]:
    """Search until time is up or the answer is full."""
    searcher = _Searcher(engine, wanted)
    progress, rows = SearchProgress(wanted), FIRST_PAGE_ROWS
    while (part := progress.next_part()) is not None:
        started = stopwatch()
        piece = yield from searcher.look(part, rows)
        progress.add(piece.jobs, piece.rows, piece.end)
        fitting = rows * part.budget / REMAINING_TIME_DIVISOR / max(stopwatch() - started, 1e-6)
        rows = int(min(max(fitting, FIRST_PAGE_ROWS), 2 * rows, MAX_PIECE_ROWS))
    if progress.is_complete:
        return progress.found(BoundedCount())
    return progress.found((yield from searcher.count_all()))


def read_head(engine: Engine, row: Row) -> Job:
    """Convert a row of ``HEAD``, with the title of the last error."""
    job = engine.read_job(row)
    return job if job.last_error is None else msgspec.structs.replace(job, last_error=first_line(job.last_error))


class _Searcher:
    """Reader of the pieces of one search."""

    def __init__(self, engine: Engine, wanted: Search) -> None:
        self._engine = engine
        self._wanted = wanted
        self._values = {**values_of(wanted), "states": sorted(state.value for state in wanted.requested_states)}

    def look(self, part: Part, rows: int) -> Question[Piece]:
        """Search about this number of rows."""
        if self._wanted.is_indexed:
            return (yield from self._by_index(part, rows))
        if part.place.in_history:
            return (yield from self._by_id(part, rows))
        ids = yield from self._few_ids()
        if ids is None:
            return (yield from self._by_id(part, rows))
        ids = sorted((job_id for job_id in ids if job_id < part.place.id), reverse=True)
        return (yield from self._among(part, [(job_id, None) for job_id in ids], is_last=True))

    def count_all(self) -> Question[BoundedCount]:
        """Count the rows that the whole search examines, up to a limit."""
        if self._wanted.is_indexed:
            names = ["failed" if self._wanted.by_failure else "running"]
        else:
            names = [name for name, states in TABLES.items() if self._wanted.requested_states & set(states)]
        number = 0
        for name in names:
            number += yield from count_some(f"{{{name}}}", MAX_EXACT_COUNT)
        return BoundedCount.up_to(MAX_EXACT_COUNT, number)

    def _few_ids(self) -> Question[list[int] | None]:
        """Return the ids of the live jobs of a key, or of a serial key with few jobs.

        A search by ids could find them only after millions of others.
        """
        if self._wanted.key is not None:
            rows = yield Query("SELECT id FROM {live} WHERE key = :key", self._values)
            return [job_id for (job_id,) in rows]
        if self._wanted.serial is None:
            return None
        rows = yield Query(
            f"SELECT * FROM ({_OF_QUEUE}) AS few LIMIT :most", {**self._values, "most": MAX_EXACT_COUNT + 1}
        )
        return (
            None
            if len(rows) > MAX_EXACT_COUNT
            else [job_id for job_id, serial in rows if serial == self._wanted.serial]
        )

    def _by_id(self, part: Part, rows: int) -> Question[Piece]:
        """Search one table by descending ids."""
        place, table = part.place, "past" if part.place.in_history else "live"
        values = {**self._values, "below": place.id, "rows": rows, "limit": part.limit}
        ((count, first),) = yield Query(_PIECE % table, values)
        values["first"] = first = first if count == rows else 0
        found = yield Query(
            f"SELECT {HEAD} FROM {{{table}_jobs}} WHERE id >= :first AND id < :below"
            f"{conditions(self._wanted, table, 'last_worker')} ORDER BY id DESC LIMIT :limit",
            values,
        )
        jobs = [read_head(self._engine, row) for row in found]
        if len(jobs) == part.limit:
            values["first"] = first = jobs[-1].id  # what is below it belongs to the next answer
            ((count,),) = yield Query(f"SELECT count(*) FROM {{{table}}} WHERE id >= :first AND id < :below", values)
        return Piece(jobs, count, SearchPosition(in_history=place.in_history, id=first) if first else None)

    def _by_index(self, part: Part, rows: int) -> Question[Piece]:
        """Search only the jobs in the one requested state."""
        values = {"below": part.place.id, "rows": rows}
        if self._wanted.by_failure:
            found = (yield from self._failed(part.place, values))[:rows]
        else:
            found = yield Query("SELECT id, NULL FROM {running} AND id < :below ORDER BY id DESC LIMIT :rows", values)
        places = [(one, None if at is None else to_microseconds(self._engine.read_moment(at))) for one, at in found]
        return (yield from self._among(part, places, is_last=len(found) < rows))

    def _failed(self, place: SearchPosition, values: Mapping[str, object]) -> Question[list[Row]]:
        """Return failed jobs by the time of their failure. Among jobs of the same time, the id decides."""
        text = "SELECT id, finished_at FROM {failed}%s ORDER BY finished_at DESC, id DESC LIMIT :rows"
        if place.failed_at is None or place.failed_at == MAX_INT64:
            return (yield Query(text % "", values))
        values = {**values, "at": from_microseconds(place.failed_at)}
        same = yield Query(text % " AND finished_at = :at AND id < :below", values)
        return same + (yield Query(text % " AND finished_at < :at", values))

    def _among(self, part: Part, places: Sequence[tuple[int, int | None]], *, is_last: bool) -> Question[Piece]:
        """Search live jobs that were read from an index. ``is_last``: no others follow them."""
        text = f"SELECT {HEAD} FROM {{live_jobs}} WHERE id IN :ids{conditions(self._wanted, 'live', 'last_worker')}"
        order = {job_id: number for number, (job_id, _) in enumerate(places, 1)}
        rows = yield Query(text, {**self._values, "ids": list(order)})
        rows = sorted(rows, key=lambda row: order[row[0]])[: part.limit]
        end = order[rows[-1][0]] if len(rows) == part.limit else len(places)
        jobs = [read_head(self._engine, row) for row in rows]
        if is_last and end == len(places):
            return Piece(jobs, end, None)
        job_id, at = places[end - 1]
        return Piece(jobs, end, SearchPosition(id=job_id, failed_at=at))
