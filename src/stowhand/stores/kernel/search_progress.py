"""The parts of a search: all live jobs, then the history, until time is up or the answer is full."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stowhand.clock import stopwatch
from stowhand.jobs.job import Job, State
from stowhand.protocols.counts import BoundedCount
from stowhand.protocols.search import (
    FIRST_PAGE_ROWS,
    HISTORY_STATES,
    LIVE_STATES,
    Search,
    SearchPosition,
    SearchResult,
    parse_position,
)


class Part(msgspec.Struct, frozen=True):
    """Rows that a store examines next: of the live jobs, or of the history."""

    states: tuple[State, ...]
    position: SearchPosition
    limit: int
    """Maximum number of jobs."""
    remaining_seconds: float


class SearchProgress:
    """Progress of one search: the parts that it has examined, and the jobs that it has found."""

    def __init__(self, query: Search) -> None:
        self._query = query
        self._ends = stopwatch() + query.budget
        self._jobs: list[Job] = []
        self._next: SearchPosition | None = parse_position(query)
        self._examined_before = self._next.examined_rows
        self._examined, self._matches = self._next.examined_rows, self._next.matches

    def next_part(self) -> Part | None:
        """Return the next part; ``None`` when the answer is full, time is up or no part is left."""
        if self._next is None:
            return None
        seconds = self._ends - stopwatch()
        is_over = seconds <= 0 and self._examined - self._examined_before >= FIRST_PAGE_ROWS
        if is_over or len(self._jobs) == self._query.limit:
            return None
        table = HISTORY_STATES if self._next.in_history else LIVE_STATES
        states = tuple(state for state in table if state in self._query.requested_states)
        return Part(states, self._next, self._query.limit - len(self._jobs), max(seconds, 0.0))

    def add(self, jobs: Sequence[Job], examined: int, end: SearchPosition | None) -> None:
        """Add the result of a part: jobs, number of examined rows, and end position (``None``: no row is left)."""
        in_history = self._next is not None and self._next.in_history
        if end is None and not in_history and self._query.requested_states & set(HISTORY_STATES):
            end = SearchPosition(in_history=True)
        self._jobs += jobs
        self._examined += examined
        self._matches += len(jobs)
        self._next = end

    @property
    def is_complete(self) -> bool:
        """Whether no row is left to examine."""
        return self._next is None

    def result(self, all_rows: BoundedCount) -> SearchResult:
        """Return the answer. ``all_rows``: the number of rows that the whole search examines; unused when complete."""
        if self._next is None:
            all_rows, next_position = BoundedCount(self._examined), None
        else:
            counts = {"examined_rows": self._examined, "matches": self._matches}
            next_position = msgspec.structs.replace(self._next, **counts).text()
        return SearchResult(
            jobs=self._jobs,
            examined_rows=self._examined,
            matches=self._matches,
            total_rows=all_rows,
            next_position=next_position,
        )
