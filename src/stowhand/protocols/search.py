"""Searching for jobs page by page for a limited time, so that no query reads a table of millions at once.

    Search          the criteria, and the position to continue from
    SearchResult    the jobs found so far, and the next position

All live jobs come first, then the history, each with descending ids. A search for failed jobs only is ordered by the
time of the failure, the latest first.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import msgspec

from stowhand.errors import InvalidJob
from stowhand.jobs.job import Job, State
from stowhand.jobs.option_struct import SuggestingMeta
from stowhand.protocols.counts import BoundedCount

DEFAULT_BUDGET_SECONDS = 0.06
"""Default duration of a search."""
MAX_SEARCH_RESULTS = 1000
"""Maximum number of jobs in one answer."""
TITLE_LIMIT = 200
"""Maximum characters of an error's first line in an answer."""
FIRST_PAGE_ROWS = 1000
"""Number of rows in the first page."""
MAX_INT64 = 2**63 - 1
"""An upper bound of ids and times."""
MAX_MICROSECONDS = 253402300799999999
"""The last microsecond of the year 9999."""
LIVE_STATES = (State.QUEUED, State.PROCESSING, State.ERRORED, State.FAILED)
HISTORY_STATES = (State.COMPLETED, State.CANCELED)
_UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ONE_MICROSECOND = timedelta(microseconds=1)


class Search(msgspec.Struct, frozen=True, kw_only=True, metaclass=SuggestingMeta):
    """The criteria of a search."""

    states: tuple[State, ...] = ()
    """Empty: all states, including the history."""
    task: str | None = None
    queue: str | None = None
    serial: str | None = None
    key: str | None = None
    """The live job with this key comes first."""
    flag: str | None = None
    """Only jobs with this flag among their flags."""
    worker: str | None = None
    """Only jobs that this worker holds or last held."""
    error: str | None = None
    """Only jobs whose last error contains this text, in upper or lower case."""
    since: datetime | None = None
    """Aware. Only jobs that ended at this time or later; unfinished jobs that were enqueued then."""
    until: datetime | None = None
    """Only jobs that ended, or were enqueued, before this time."""
    position: str = ""
    """``SearchResult.next_position`` of the previous search; empty: start with the newest."""
    limit: int = 100
    """1 to 1000."""
    budget: float = DEFAULT_BUDGET_SECONDS
    """Seconds after which no further page is read."""

    @property
    def by_failure(self) -> bool:
        """True if the order is the time of failure."""
        return set(self.states) == {State.FAILED}

    @property
    def is_indexed(self) -> bool:
        """True if an index finds the jobs of the requested state."""
        return self.by_failure or set(self.states) == {State.PROCESSING}

    @property
    def requested_states(self) -> frozenset[State]:
        """The requested states."""
        return frozenset(self.states or State)


ALL_JOBS = Search()
"""The newest hundred jobs."""


class SearchResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a search."""

    jobs: Sequence[Job]
    """Jobs without payload and result, and with the first line of the last error."""
    examined_rows: int
    """Rows examined, including those of the searches that this one continues."""
    matches: int
    """Jobs found, including those of the searches that this one continues."""
    total_rows: BoundedCount
    """Number of rows that the whole search examines."""
    next_position: str | None
    """The position to continue from; ``None`` at the end."""


EMPTY_RESULT = SearchResult(jobs=(), examined_rows=0, matches=0, total_rows=BoundedCount(), next_position=None)
"""The result of a search that cannot match anything."""


class SearchPosition(msgspec.Struct, frozen=True, kw_only=True):
    """Position of a search in its order."""

    in_history: bool = False
    """True once all live jobs have been examined."""
    id: int = MAX_INT64
    """Rows below this id remain."""
    failed_at: int | None = None
    """In the order of failures: microseconds since 1970. Rows that failed at this time or before remain."""
    examined_rows: int = 0
    """Rows examined so far."""
    matches: int = 0
    """Jobs found so far."""

    def text(self) -> str:
        """Return the position as a text for ``Search.position``."""
        numbers = (int(self.in_history), self.id, self.examined_rows, self.matches)
        return ".".join(map(str, numbers if self.failed_at is None else (*numbers, self.failed_at)))


def parse_position(query: Search) -> SearchPosition:
    """Return the start of a search. Raises InvalidJob for a text that is not a position in its order."""
    if not query.position:
        in_history = not query.requested_states & set(LIVE_STATES)
        return SearchPosition(in_history=in_history, failed_at=MAX_INT64 if query.by_failure else None)
    parts = query.position.split(".")
    if len(parts) != (5 if query.by_failure else 4) or not all(part.isascii() and part.isdigit() for part in parts):
        raise _invalid_position(query.position)
    table, job_id, examined_rows, matches, *failed_at = (int(part[:20]) for part in parts)
    if max(job_id, examined_rows, matches) > MAX_INT64 or max(failed_at, default=0) > MAX_MICROSECONDS or table > 1:
        raise _invalid_position(query.position)
    return SearchPosition(
        in_history=table == 1,
        id=job_id,
        failed_at=failed_at[0] if failed_at else None,
        examined_rows=examined_rows,
        matches=matches,
    )


def to_microseconds(time: datetime) -> int:
    """Return the microseconds since 1970."""
    return (time - _UNIX_EPOCH) // _ONE_MICROSECOND


def from_microseconds(micros: int) -> datetime:
    """Return the time of microseconds since 1970."""
    return _UNIX_EPOCH + timedelta(microseconds=micros)


def first_line(error: str | None) -> str | None:
    """Return the first line of an error."""
    return None if error is None else error.partition("\n")[0][:TITLE_LIMIT]


def _invalid_position(text: str) -> InvalidJob:
    return InvalidJob(f"position: {text[:100]!r} is not a position of this search; leave it out")
