"""Search piece by piece: find the end of a piece in the order of an index, then read the matching jobs in it."""

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
from stowhand.stores.kernel.columns import JOB_SUMMARY_COLUMNS
from stowhand.stores.kernel.lists import STATES_BY_TABLE, conditions, values_of
from stowhand.stores.kernel.question import Engine, Query, Question, Row, count_some
from stowhand.stores.kernel.search_progress import Part, SearchProgress

MAX_PIECE_ROWS = 50_000
REMAINING_TIME_DIVISOR = 6
"""A piece takes about the remaining time divided by this number."""
_PIECE_BOUNDS = (
    "SELECT count(*), min(id) FROM (SELECT id FROM {%s} WHERE id < :below ORDER BY id DESC LIMIT :rows) AS piece"
)
# Waiting jobs of a serial key, and all suspects, running and failed jobs.
_SERIAL_CANDIDATES = " UNION ALL ".join(
    f"SELECT * FROM (SELECT id, serial FROM {{{index}}}{condition} LIMIT :max_rows) AS {index}"
    for index, condition in {"serial": " AND serial = :serial", "suspects": "", "running": "", "failed": ""}.items()
)


class Piece(msgspec.Struct):
    """Matching jobs among some rows, the number of these rows, and their end position (``None``: no row follows)."""

    jobs: Sequence[Job]
    rows: int
    end: SearchPosition | None


def search(engine: Engine, query: Search) -> Question[SearchResult]:
    """Search until time is up or the answer is full."""
    searcher = _Searcher(engine, query)
    progress, max_rows = SearchProgress(query), FIRST_PAGE_ROWS
    while (part := progress.next_part()) is not None:
        started = stopwatch()
        piece = yield from searcher.look(part, max_rows)
        progress.add(piece.jobs, piece.rows, piece.end)
        affordable_rows = max_rows * part.remaining_seconds / REMAINING_TIME_DIVISOR / max(stopwatch() - started, 1e-6)
        max_rows = int(min(max(affordable_rows, FIRST_PAGE_ROWS), 2 * max_rows, MAX_PIECE_ROWS))
    if progress.is_complete:
        return progress.result(BoundedCount())
    return progress.result((yield from searcher.count_all()))


def read_summary(engine: Engine, row: Row) -> Job:
    """Convert a row of ``JOB_SUMMARY_COLUMNS``, with the title of the last error."""
    job = engine.read_job(row)
    return job if job.last_error is None else msgspec.structs.replace(job, last_error=first_line(job.last_error))


class _Searcher:
    """Reader of the pieces of one search."""

    def __init__(self, engine: Engine, query: Search) -> None:
        self._engine = engine
        self._query = query
        self._values = {**values_of(query), "states": sorted(state.value for state in query.requested_states)}

    def look(self, part: Part, max_rows: int) -> Question[Piece]:
        """Search about this number of rows."""
        if self._query.is_indexed:
            return (yield from self._search_by_index(part, max_rows))
        if part.position.in_history:
            return (yield from self._search_by_id(part, max_rows))
        ids = yield from self._candidate_ids()
        if ids is None:
            return (yield from self._search_by_id(part, max_rows))
        ids = sorted((job_id for job_id in ids if job_id < part.position.id), reverse=True)
        return (yield from self._search_candidates(part, [(job_id, None) for job_id in ids], is_last=True))

    def count_all(self) -> Question[BoundedCount]:
        """Count the rows that the whole search examines, up to a limit."""
        if self._query.is_indexed:
            names = ["failed" if self._query.by_failure else "running"]
        else:
            names = [name for name, states in STATES_BY_TABLE.items() if self._query.requested_states & set(states)]
        number = 0
        for name in names:
            number += yield from count_some(f"{{{name}}}", MAX_EXACT_COUNT)
        return BoundedCount.up_to(MAX_EXACT_COUNT, number)

    def _candidate_ids(self) -> Question[list[int] | None]:
        """Return the ids of the live jobs of a key, or of a serial key with few jobs; ``None`` for any other search.

        A search by id might read millions of other rows before them.
        """
        if self._query.key is not None:
            rows = yield Query("SELECT id FROM {live} WHERE key = :key", self._values)
            return [job_id for (job_id,) in rows]
        if self._query.serial is None:
            return None
        text = f"SELECT * FROM ({_SERIAL_CANDIDATES}) AS candidates LIMIT :max_rows"
        rows = yield Query(text, {**self._values, "max_rows": MAX_EXACT_COUNT + 1})
        if len(rows) > MAX_EXACT_COUNT:
            return None
        return [job_id for job_id, serial in rows if serial == self._query.serial]

    def _search_by_id(self, part: Part, max_rows: int) -> Question[Piece]:
        """Search one table by descending ids."""
        position = part.position
        table = "past" if position.in_history else "live"
        values = {**self._values, "below": position.id, "rows": max_rows, "limit": part.limit}
        ((count, first_id),) = yield Query(_PIECE_BOUNDS % table, values)
        values["first"] = first_id = first_id if count == max_rows else 0
        rows = yield Query(
            f"SELECT {JOB_SUMMARY_COLUMNS} FROM {{{table}_jobs}} WHERE id >= :first AND id < :below"
            f"{conditions(self._query, table, 'last_worker')} ORDER BY id DESC LIMIT :limit",
            values,
        )
        jobs = [read_summary(self._engine, row) for row in rows]
        if len(jobs) == part.limit:
            values["first"] = first_id = jobs[-1].id  # rows below it belong to the next answer
            ((count,),) = yield Query(f"SELECT count(*) FROM {{{table}}} WHERE id >= :first AND id < :below", values)
        return Piece(jobs, count, SearchPosition(in_history=position.in_history, id=first_id) if first_id else None)

    def _search_by_index(self, part: Part, max_rows: int) -> Question[Piece]:
        """Search only the jobs in the one requested state."""
        values = {"below": part.position.id, "rows": max_rows}
        if self._query.by_failure:
            rows = (yield from self._read_failed(part.position, values))[:max_rows]
        else:
            rows = yield Query("SELECT id, NULL FROM {running} AND id < :below ORDER BY id DESC LIMIT :rows", values)
        candidates = [
            (job_id, None if at is None else to_microseconds(self._engine.read_moment(at))) for job_id, at in rows
        ]
        return (yield from self._search_candidates(part, candidates, is_last=len(rows) < max_rows))

    def _read_failed(self, position: SearchPosition, values: Mapping[str, object]) -> Question[list[Row]]:
        """Return failed jobs by the time of their failure. Among jobs of the same time, the id decides."""
        text = "SELECT id, finished_at FROM {failed}%s ORDER BY finished_at DESC, id DESC LIMIT :rows"
        if position.failed_at is None or position.failed_at == MAX_INT64:
            return (yield Query(text % "", values))
        values = {**values, "at": from_microseconds(position.failed_at)}
        same = yield Query(text % " AND finished_at = :at AND id < :below", values)
        return same + (yield Query(text % " AND finished_at < :at", values))

    def _search_candidates(
        self, part: Part, candidates: Sequence[tuple[int, int | None]], *, is_last: bool
    ) -> Question[Piece]:
        """Search live jobs that were read from an index. ``is_last``: no others follow them."""
        matching = conditions(self._query, "live", "last_worker")
        text = f"SELECT {JOB_SUMMARY_COLUMNS} FROM {{live_jobs}} WHERE id IN :ids{matching}"
        order = {job_id: number for number, (job_id, _) in enumerate(candidates, 1)}
        rows = yield Query(text, {**self._values, "ids": list(order)})
        rows = sorted(rows, key=lambda row: order[row[0]])[: part.limit]
        end = order[rows[-1][0]] if len(rows) == part.limit else len(candidates)
        jobs = [read_summary(self._engine, row) for row in rows]
        if is_last and end == len(candidates):
            return Piece(jobs, end, None)
        job_id, failed_at = candidates[end - 1]
        return Piece(jobs, end, SearchPosition(id=job_id, failed_at=failed_at))
