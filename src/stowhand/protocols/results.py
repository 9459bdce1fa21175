"""What a store says of how jobs ended, for callers that wait for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Protocol

import msgspec

from stowhand.jobs.job import DROPPED, Job, State


class Standing(msgspec.Struct, frozen=True):
    """How a job stands that has ended, that has made place for another one under its key, or that is nowhere."""

    job_id: int
    state: State | None = None
    """``None``: there is no trace of it."""
    is_known: bool = True
    """A job once had this id."""
    attempts: int = 0
    resets: int = 0
    last_error: str | None = None
    result_text: str | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    revision: int = 0
    replaced: int | None = None
    """The revision at which another job last took its place; ``None``: none did."""

    def ends(self, revision: int) -> bool:
        """Nothing more comes of the job as it was at this revision."""
        return self.state is None or self.state.terminal or self.is_replaced(revision)

    def is_replaced(self, revision: int) -> bool:
        """Another job has its place, and its id."""
        return self.replaced is not None and self.replaced > revision

    @property
    def is_dropped(self) -> bool:
        """It returned something that could not be kept."""
        return self.result_text == DROPPED

    def applied(self, job: Job) -> Job:
        """The job as it stands now."""
        if self.state is None:
            return job
        return msgspec.structs.replace(
            job,
            state=self.state,
            attempts=self.attempts,
            resets=self.resets,
            last_error=self.last_error,
            result_text=self.result_text,
            started_at=self.started_at,
            finished_at=self.finished_at,
            revision=self.revision,
            worker=None,
        )


class Results(Protocol):
    """How jobs ended. ``stores.kernel.results.ResultPoll`` asks, once for all callers of a loop."""

    @property
    def min_pause(self) -> float:
        """Seconds between two questions about the same job, at least."""

    @property
    def hear(self) -> Callable[[], Awaitable[object]] | None:
        """Returns after a commit that came since its last call; ``None``: the store does not hear of commits."""

    async def retention(self) -> float | None:
        """Seconds for which completed and canceled jobs are kept; ``None``: not at all."""

    async def ask(self, job_ids: Sequence[int]) -> Sequence[Standing]:
        """Those of them that have ended, have made place for another job, or are nowhere; in any order."""
