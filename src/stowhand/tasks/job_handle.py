"""Handle of a job: its fields as last read, and methods that wait for its result."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, overload

import msgspec

from stowhand.clock import stopwatch
from stowhand.errors import (
    JobCanceled,
    JobFailed,
    JobNotVisible,
    JobRemoved,
    JobReplaced,
    Misuse,
    ResultNotKept,
    UnknownJob,
    explain_foreign_attributes,
)
from stowhand.jobs.durations import Duration, seconds
from stowhand.jobs.failed_attempts import FailedAttempt
from stowhand.jobs.job import EXPIRED_ERROR, Job, State
from stowhand.protocols.producer import JobStatus
from stowhand.protocols.queue_store import Answer
from stowhand.tasks.needs_loop import needs_loop
from stowhand.worker.host import refuse_inside

if TYPE_CHECKING:
    from stowhand.tasks.handled_jobs import HandledJobs

T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)
WATCH_INTERVAL_SECONDS = 0.5
"""Delay between two reads of ``watch``. The end of the job is noticed as soon as ``wait`` notices it."""


class Field(Generic[T]):
    """Attribute of a handle that returns the field of its job with the same name."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, handle: None, kind: type) -> Self: ...
    @overload
    def __get__(self, handle: JobFields, kind: type) -> T: ...
    def __get__(self, handle: JobFields | None, kind: type) -> Any:
        return self if handle is None else getattr(handle.job, self._name)


class EnqueuedJob(msgspec.Struct, frozen=True):
    """Id and task of a job that was enqueued in a batch and not read since."""

    id: int
    task: str


class JobFields:
    """The fields of a ``Job``, except ``result``."""

    __slots__ = ("last_read",)

    def __init__(self, last_read: Job | EnqueuedJob) -> None:
        self.last_read = last_read

    @property
    def job(self) -> Job:
        """The job as last read. Raises Misuse if it was enqueued in a batch and not read since."""
        if isinstance(self.last_read, EnqueuedJob):
            raise Misuse(f"{self!r} was enqueued in a batch and not read since; call job.refresh() first")
        return self.last_read

    @property
    def id(self) -> int:
        return self.last_read.id

    @property
    def task(self) -> str:
        return self.last_read.task

    payload = Field[Any]()
    payload_text = Field[str]()
    state = Field[State]()
    serial = Field["str | None"]()
    queue = Field[str]()
    priority = Field[int]()
    run_at = Field[datetime]()
    attempts = Field[int]()
    max_attempts = Field[int]()
    created_at = Field[datetime]()
    resets = Field[int]()
    max_resets = Field["int | None"]()
    key = Field["str | None"]()
    flags = Field[tuple[str, ...]]()
    last_error = Field["str | None"]()
    revision = Field[int]()
    updated_at = Field["datetime | None"]()
    started_at = Field["datetime | None"]()
    finished_at = Field["datetime | None"]()
    worker = Field["str | None"]()
    cancel_requested = Field[bool]()
    last_worker = Field["str | None"]()
    progress = Field["float | None"]()
    progress_text = Field["str | None"]()
    parent_id = Field["int | None"]()
    waits_for = Field["str | None"]()
    result_text = Field["str | None"]()

    def __eq__(self, other: object) -> bool:
        """Two handles of the same job are equal."""
        return self.id == other.id if isinstance(other, JobFields) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        is_unread = isinstance(self.last_read, EnqueuedJob)
        state = "not read yet" if is_unread else f"{self.state.value} when last read"
        return f"<job {self.id} of {self.task!r}, {state}>"


@explain_foreign_attributes
class JobHandle(JobFields, Generic[R_co]):
    """Handle of an enqueued job. It has the fields of a ``Job``, as last read.

    ``Task.enqueue`` and ``App.job`` return handles. Two handles of the same job are equal.

        handle = await send.enqueue("someone@example.com")
        result = await handle.result(timeout="30s")
    """

    __slots__ = ("_is_open", "_jobs", "_read", "_read_at", "_revision", "_status")

    def __init__(
        self,
        job: Job | EnqueuedJob,
        jobs: HandledJobs,
        read: Callable[[str | None], Any],
        *,
        is_open: bool = False,
    ) -> None:
        """Make a handle.

        Args:
            job: The job, or its id and task.
            jobs: Access to the jobs of the App.
            read: Reads a result from its text.
            is_open: Whether the job was enqueued in a caller's transaction, and not read since.

        """
        super().__init__(job)
        self._jobs, self._read, self._is_open = jobs, read, is_open
        self._revision = 0 if isinstance(job, EnqueuedJob) else job.revision
        self._read_at = stopwatch()
        self._status: JobStatus | None = None
        """``None`` until the outcome is known."""

    @needs_loop("app.sync.job({0.id}).result(…)")
    async def result(self, timeout: Duration | None = None) -> R_co:
        """Wait until the job has finished, through all its retries, and return its result in the annotated type.

        Args:
            timeout: Seconds, a timedelta or a phrase ("30s"); ``None`` waits without limit.

        Raises:
            TimeoutError: The job did not finish in time; it continues.
            JobFailed: The job failed permanently.
            JobCanceled: The job was canceled.
            JobRemoved: The job was deleted.
            JobReplaced: Another job replaced it under the same key.
            ResultNotKept: The job finished, and the store does not keep its outcome.
            PayloadMismatch: The result has another type than the task is annotated to return.
            Misuse: Called inside a running attempt, whose worker it could block.

        """
        status = await self._wait_for_end(timeout, "result")
        match status.state:
            case State.FAILED:
                raise self._failure(await self._jobs.tries(self.id))
            case State.CANCELED:
                reason = f": {EXPIRED_ERROR}" if self.job.last_error == EXPIRED_ERROR else ""
                raise JobCanceled(f"{self._label} was canceled{reason}", self.id)
        if status.is_dropped:
            raise ResultNotKept(
                f"{self._label} has completed, but its result could not be kept; see the log of its worker",
                self.id,
            )
        result: R_co = self._read(self.job.result_text)
        return result

    @needs_loop("app.sync.job({0.id}).wait(…)")
    async def wait(self, timeout: Duration | None = None) -> Self:
        """Wait until the job has finished, with any outcome, and return this handle. ``state`` holds the outcome.

        Args:
            timeout: As of ``result``.

        Raises:
            TimeoutError: The job did not finish in time; it continues.
            JobRemoved, JobReplaced, ResultNotKept, Misuse: As ``result``.

        """
        await self._wait_for_end(timeout, "wait")
        return self

    @needs_loop("app.sync.job({0.id}).refresh(…)")
    async def refresh(self) -> Self:
        """Read the current fields of the job, and return this handle.

        Raises:
            JobRemoved, JobReplaced, ResultNotKept: The job no longer exists.
            JobNotVisible: The transaction that enqueued it is open or was rolled back.

        """
        job = await self._jobs.get(self.id)
        # On SQLite the next job gets an id that was rolled back.
        if self._is_open and (job is None or job.created_at != self.job.created_at):
            raise self._not_visible(await (await self._jobs.poll()).results.retention())
        while job is None:
            results = (await self._jobs.poll()).results
            for status in await results.ask([self.id]):  # empty if the job has appeared meanwhile
                self._refuse_absent(status, await results.retention())
            job = await self._jobs.get(self.id)
        if isinstance(self.last_read, EnqueuedJob):
            self._revision = job.revision
        self.last_read, self._read_at, self._status, self._is_open = job, stopwatch(), None, False
        return self

    @needs_loop("app.sync.job({0.id}).cancel(…)")
    async def cancel(self) -> Answer:
        """Cancel the job: a waiting one at once, a running one through its worker. Return the answer of the store."""
        return await self._jobs.cancel(self.id)

    @needs_loop("app.sync.job({0.id}).send(…)")
    async def send(self, event: str, payload: object = None) -> bool:
        """Emit an event for this job alone: ``await ctx.event("approved")`` in its task returns the payload.

        Args:
            event: Name of the event.
            payload: JSON value.

        Returns:
            Whether this is the first event with this name for the job.

        Raises:
            InvalidJob: The payload cannot be written as JSON.

        """
        return await self._jobs.emit(event, payload, self.id)

    async def watch(self) -> AsyncIterator[Job]:
        """Yield the job now and after each change, until it has finished. Raises the errors of ``wait``."""
        refuse_inside("watch()")
        await self.refresh()
        end, last_job = asyncio.ensure_future(self._wait_for_end(None, "watch")), None
        try:
            while True:
                job = self.job  # it may change while the caller handles the yielded job
                if job != last_job:
                    last_job = job
                    yield job
                if job.state.terminal:
                    return
                await asyncio.wait((end,), timeout=WATCH_INTERVAL_SECONDS)
                if end.done():
                    end.result()
                await self.refresh()
        finally:
            end.cancel()
            await asyncio.gather(end, return_exceptions=True)

    async def _wait_for_end(self, timeout: Duration | None, method: str) -> JobStatus:
        refuse_inside(f"{method}()")
        if self._status is not None:
            return self._status
        limit = None if timeout is None else seconds(timeout)
        try:
            async with asyncio.timeout(limit):
                poll = await self._jobs.poll()
                if self._is_open or isinstance(self.last_read, EnqueuedJob):  # a job that was read is committed
                    await self.refresh()
                age = None if self.job.state.terminal else stopwatch() - self._read_at
                status = await poll.end(self.id, self._revision, age=age)
                retention = await poll.results.retention()
        except TimeoutError:
            if limit is None:
                raise
            raise TimeoutError(
                f"{self._label} has not finished within {limit:g} s; it continues. To see why:"
                f" stowhand jobs explain {self.id}"
            ) from None
        self._refuse_absent(status, retention)
        self.last_read, self._status = status.applied(self.job), status
        return status

    def _refuse_absent(self, status: JobStatus, retention: float | None) -> None:
        """Raise the error for a job that was replaced or removed, or whose outcome is not kept."""
        is_unread = isinstance(self.last_read, EnqueuedJob)
        if not is_unread and status.is_replaced(self._revision):
            raise JobReplaced(
                f"{self._label} was replaced by another job with the key {self.job.key!r} (revision {status.replaced})",
                self.id,
            )
        if status.state is not None:
            return
        if not status.is_known:
            raise UnknownJob(f"there never was a job {self.id}")
        if (is_unread or self.state is not State.COMPLETED) and self._would_be_kept(retention):
            raise JobRemoved(f"{self._label} was removed", self.id)
        raise ResultNotKept(f"{self._label} has finished; the store does not keep its outcome (history)", self.id)

    def _not_visible(self, retention: float | None) -> JobNotVisible:
        hint = "" if self._would_be_kept(retention) else ", or the job has finished and is not kept (history)"
        return JobNotVisible(
            f"{self._label} is not visible: the transaction that enqueued it is still open, or was rolled back"
            f"{hint}. Commit before you wait",
            self.id,
        )

    def _would_be_kept(self, retention: float | None) -> bool:
        """Return whether the store would still keep a job that finished after it was last read."""
        return retention is not None and stopwatch() - self._read_at < retention

    def _failure(self, tries: Sequence[FailedAttempt]) -> JobFailed:
        error = self.job.last_error or ""
        title = error.partition("\n")[0]
        return JobFailed(
            f"{self._label} has permanently failed after {self.attempts} of {self.max_attempts} attempts: {title}",
            self.id,
            error=error,
            error_class=tries[-1].error_class if tries else None,
            attempts=self.attempts,
        )

    @property
    def _label(self) -> str:
        return f"job {self.id} of {self.task!r}"
