"""Searching for jobs: piece by piece for a limited time, so that no question reads a table of millions at one go.

    Search    what is wanted, and where to go on
    Found     what was found so far, of how many rows, and where the next search goes on

All live jobs come first, then the history; each with descending ids. If only failed jobs are wanted, the order is the
time at which they failed, the latest first.
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
"""Seconds for which a search looks, by default."""
MAX_SEARCH_RESULTS = 1000
"""Jobs of one answer."""
TITLE_LIMIT = 200
"""Characters of an error in an answer: of its first line."""
FIRST_PAGE_ROWS = 1000
"""Rows of the first piece."""
MAX_INT64 = 2**63 - 1
"""Greater than every id, and than every moment."""
MAX_MICROSECONDS = 253402300799999999
"""The last microsecond of the year 9999."""
LIVE_STATES = (State.QUEUED, State.PROCESSING, State.ERRORED, State.FAILED)
HISTORY_STATES = (State.COMPLETED, State.CANCELED)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Search(msgspec.Struct, frozen=True, kw_only=True, metaclass=SuggestingMeta):
    """Which jobs are searched for."""

    states: tuple[State, ...] = ()
    """Empty: all, those of the history too."""
    task: str | None = None
    queue: str | None = None
    serial: str | None = None
    key: str | None = None
    """The live job that has it comes first."""
    flag: str | None = None
    """Only those with this flag, beside others."""
    worker: str | None = None
    """Only those that this worker holds, or held last."""
    error: str | None = None
    """Only those whose last error contains this text, in upper or lower case."""
    since: datetime | None = None
    """Aware. Only those that ended at this moment or later; jobs that have not ended: that were enqueued then."""
    until: datetime | None = None
    """Only those before this moment, likewise."""
    go_on: str = ""
    """``Found.go_on`` of the search before this one; empty: begin with the newest."""
    limit: int = 100
    """1 to 1000."""
    budget: float = DEFAULT_BUDGET_SECONDS
    """Seconds after which no further piece is looked at."""

    @property
    def by_failure(self) -> bool:
        """In the order in which they failed."""
        return set(self.states) == {State.FAILED}

    @property
    def is_indexed(self) -> bool:
        """Jobs of the one state that is wanted are found without looking at others."""
        return self.by_failure or set(self.states) == {State.PROCESSING}

    @property
    def wanted(self) -> frozenset[State]:
        """All of the states."""
        return frozenset(self.states or State)


ALL_JOBS = Search()
"""The newest hundred."""


class SearchResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a search has found."""

    jobs: Sequence[Job]
    """Without payload and result, and of the last error its first line."""
    looked_at: int
    """Rows examined, including those of the searches that this one continues."""
    matches: int
    """Jobs found, including those of the searches that this one continues."""
    of: BoundedCount
    """How many rows there are to look at, in all."""
    go_on: str | None
    """Where to go on; ``None``: there is no more."""


EMPTY_RESULT = SearchResult(jobs=(), looked_at=0, matches=0, of=BoundedCount(), go_on=None)
"""For a search that cannot find anything."""


class SearchPosition(msgspec.Struct, frozen=True, kw_only=True):
    """Position of a search in its order."""

    in_history: bool = False
    """All live jobs have been examined."""
    id: int = MAX_INT64
    """Rows below this id are left."""
    at: int | None = None
    """In the order of failures: the time in microseconds since 1970. Rows that failed then, or before, are left."""
    looked_at: int = 0
    """Rows examined so far."""
    matches: int = 0
    """Jobs found so far."""

    def text(self) -> str:
        """Return the position as a text for ``Search.go_on``."""
        numbers = (int(self.in_history), self.id, self.looked_at, self.matches)
        return ".".join(map(str, numbers if self.at is None else (*numbers, self.at)))


def parse_position(wanted: Search) -> SearchPosition:
    """Return where the search starts. Raise InvalidJob for a text that is no position in its order."""
    if not wanted.go_on:
        in_history = not wanted.wanted & set(LIVE_STATES)
        return SearchPosition(in_history=in_history, at=MAX_INT64 if wanted.by_failure else None)
    parts = wanted.go_on.split(".")
    if len(parts) != 4 + wanted.by_failure or not all(part.isascii() and part.isdigit() for part in parts):
        raise _invalid_position(wanted.go_on)
    table, job_id, looked_at, matches, *at = (int(part[:20]) for part in parts)
    if max(job_id, looked_at, matches) > MAX_INT64 or max(at, default=0) > MAX_MICROSECONDS or table > 1:
        raise _invalid_position(wanted.go_on)
    return SearchPosition(
        in_history=table == 1,
        id=job_id,
        at=at[0] if at else None,
        looked_at=looked_at,
        matches=matches,
    )


def to_microseconds(time: datetime) -> int:
    """Since 1970."""
    return (time - _EPOCH) // _MICROSECOND


def from_microseconds(micros: int) -> datetime:
    """The other way."""
    return _EPOCH + timedelta(microseconds=micros)


def first_line(error: str | None) -> str | None:
    """The first line of an error."""
    return None if error is None else error.partition("\n")[0][:TITLE_LIMIT]


def _invalid_position(text: str) -> InvalidJob:
    return InvalidJob(f"go_on: {text[:100]!r} is not where a search like this goes on; leave it out")
