"""What a store offers to who waits for the end of jobs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol
from uuid import UUID

import msgspec

from stowhand.jobs.job import DROPPED, Job, NewJob, State


class Standing(msgspec.Struct, frozen=True):
    """How a job stands that has ended, that has made place for another one under its key, or that is nowhere."""

    job_id: int
    state: State | None = None
    """``None``: there is no trace of it."""
    is_known: bool = True
    """A job once had this id."""
    is_marked: bool = True
    """Whoever asked will hear of its end. False: another transaction holds its row, so it is to be marked again."""
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
        if not self.is_marked:
            return False
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
    """Hearing of the end of jobs, and how they ended. For ``waits.Waits``, of which a store has one on a loop."""

    @property
    def waiter(self) -> UUID | None:
        """The mark of this process, for jobs that are yet to be enqueued; ``None``: none is needed."""

    def marked(self, job: NewJob) -> bool:
        """Whether a job that was enqueued with ``waiter`` bears it; else it is to be marked."""

    async def retention(self) -> float | None:
        """Seconds for which completed and canceled jobs are kept; ``None``: not at all."""

    async def mark(self, job_ids: Sequence[int]) -> Sequence[Standing]:
        """From now on hear of the end of these; those that have ended before, in any order."""

    async def ask(self, job_ids: Sequence[int]) -> Sequence[Standing]:
        """Those of them that have ended, in any order."""

    async def hear(self, job_ids: Sequence[int]) -> None:
        """Until one of them may have ended since this was called, or it is time to ask without a reason."""

    async def rest(self) -> None:
        """Nobody waits: let go of what ``hear`` holds. It may be called again."""
