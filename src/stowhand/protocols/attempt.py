"""Attempts: the ``ctx`` of a handler, with its logger and its progress."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Sequence
from contextvars import Context
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, runtime_checkable

import msgspec

from stowhand.errors import ConfigurationError, LeaseLost, a_type
from stowhand.events import Event, JobLogged
from stowhand.jobs import limits
from stowhand.jobs.execution_log import ExecutionLogEntry
from stowhand.jobs.job import NewJob
from stowhand.jobs.lease import JobId, Lease
from stowhand.jobs.lifecycle import Outcome, Settlement
from stowhand.jobs.text import clean
from stowhand.protocols.store import Claim, Reply

if TYPE_CHECKING:
    # Type checkers know this module even if it is not installed. The default serves a plain ``Attempt``.
    from typing_extensions import TypeVar as TypeVarWithDefault

    R = TypeVarWithDefault("R", covariant=True, default=Any)
else:
    R = TypeVar("R", covariant=True)


MAX_PROGRESS_TEXT_LENGTH = 200
"""Maximum characters of a progress text."""


class Progress(msgspec.Struct, frozen=True):
    """The progress of one attempt."""

    lease: Lease
    done: float
    """0 to 1."""
    text: str | None = None


Report = Callable[[Progress], None]
"""Called by handlers, from any thread."""


@runtime_checkable
class ProgressKeeper(Protocol):
    """Heartbeats that keep the progress of running jobs. Raises StoreUnreachable."""

    async def keep_progress(self, notes: Sequence[Progress], timeout: float) -> None:
        """Write the progress of attempts with a valid lease, except for rows that another transaction locks.

        Stop after ``timeout`` seconds. Progress that is not written by then is dropped.
        """


def read_progress(lease: Lease, done: object, text: object) -> Progress:
    """Return the progress. Raises ConfigurationError unless 0 <= done <= 1."""
    if isinstance(done, bool) or not isinstance(done, int | float) or not 0 <= done <= 1 or math.isnan(done):
        rendered = repr(done) if isinstance(done, int | float) else a_type(done)
        raise ConfigurationError(f"progress: got {rendered}; use a number from 0 to 1, such as done / total")
    return Progress(lease, float(done), None if text is None else clean(str(text))[:MAX_PROGRESS_TEXT_LENGTH])


class AttemptLogger:
    """Logger of one job. Each line is a ``JobLogged`` event, which ``observe/`` prints."""

    __slots__ = ("_emit", "_job_id", "_task", "_worker")

    def __init__(self, emit: Callable[[Event], None] | None, worker: str, task: str, job_id: JobId | None) -> None:
        self._emit = emit
        self._worker = worker
        self._task = task
        self._job_id = job_id

    @classmethod
    def mute(cls) -> AttemptLogger:
        """Return a logger that writes nothing."""
        return cls(None, "", "", None)

    def debug(self, message: object, /, **fields: Any) -> None:
        """Write a line at level debug, with further fields by name."""
        self._log("debug", message, fields)

    def info(self, message: object, /, **fields: Any) -> None:
        """Write a line at level info."""
        self._log("info", message, fields)

    def warning(self, message: object, /, **fields: Any) -> None:
        """Write a line at level warning."""
        self._log("warning", message, fields)

    def error(self, message: object, /, **fields: Any) -> None:
        """Write a line at level error."""
        self._log("error", message, fields)

    def _log(self, level: str, message: object, fields: dict[str, Any]) -> None:
        if self._emit is not None:
            self._emit(JobLogged(self._worker, self._job_id, self._task, level, str(message), fields))


class Transaction(Protocol):
    """An open transaction that locks the record of an attempt. The attempt is settled in it, and nowhere else."""

    async def settle(self, settlement: Settlement) -> Reply:
        """Write the settlement and commit.

        The handler's changes are kept if the record is completed or returns to queued, and are rolled back otherwise.
        After the reply ``RefusedSettlement`` it is called again with another settlement. It raises only StoreError;
        then it is unknown whether the settlement was written.
        """

    async def rollback(self) -> None:
        """Undo everything, so that the record is as it was after its claim."""


class AttemptControl(msgspec.Struct, eq=False):
    """The part of an attempt for its worker and its store, not for its handler (``control_of``)."""

    lease: Lease
    store: Any = None
    """``ctx.store``."""
    offer: Callable[[Attempt[Any]], Any] | None = None
    """Creates ``ctx.store`` when the handler first reads it. Most handlers never do."""
    connection: Any = None
    """``ctx.connection``."""
    transaction: Transaction | None = None
    """The transaction in which the attempt is settled, if it has its own."""
    decided: Outcome | None = None
    """The outcome that the handler requested from its store (``requeue``), unless the handler raises."""
    on_enqueue: Callable[[NewJob], NewJob] | None = None
    """Converts each job passed to ``enqueue_after``."""
    workflow: Any = None
    """The steps of the attempt, once the handler has used one (tasks/workflow.py)."""
    hooked: Context | None = None
    """The context for ``post_handle``, set once the hooks have started. Log lines and spans belong to it."""
    ended: bool = False
    """The handler has finished: the outcome is fixed."""
    lost: bool = False
    """The lease is lost: nothing of this attempt will be recorded."""
    in_thread: bool = False
    """The handler runs in a thread, which cannot be stopped."""
    abandoned_thread: threading.Event | None = None
    """Set if a thread still runs for this attempt. The event is set when the thread ends."""

    def bind(self, store: Any, connection: Any = None) -> None:
        """Set ``ctx.store`` and ``ctx.connection``. The store calls this before the handler runs."""
        self.store = store
        self.connection = connection

    def decide(self, outcome: Outcome) -> None:
        """Set the outcome for the handler. Raises LeaseLost once the handler has finished."""
        if self.ended:
            raise LeaseLost(f"record {self.lease.job_id}: its handler has finished, so its outcome is fixed")
        self.decided = outcome


@runtime_checkable
class ExecutionLog(Protocol):
    """The execution log of one running attempt, such as ``ctx.store``. The lease guards every call.

    Both methods raise LogRefused if the lease is lost or the entry does not exist, and StoreUnreachable.
    """

    async def add_execution_log_entry(self, entry: ExecutionLogEntry) -> int:
        """Append an entry. Return its number: 1, 2, …"""

    async def update_execution_log_entry(self, number: int, entry: ExecutionLogEntry) -> None:
        """Replace the entry with this number."""


class Stop(StrEnum):
    """The reason to stop a running handler: ``Attempt.cancel_reason``."""

    TIMEOUT = "timeout"
    CANCELED = "canceled"
    """The job's cancellation was requested."""
    LOST = "lost"
    """The lease is lost, or may expire at any time."""
    RETURNED = "returned"
    """The worker stops: the job is returned without using an attempt."""
    CRASHED = "crashed"
    """The child process that ran the handler was lost."""
    UNABLE = "unable"
    """The child process could not start the handler."""


class Attempt(Generic[R]):
    """One run of a handler: the record, its lease, and its cancellation. Handlers receive it as ``ctx``.

    ``then`` collects jobs to enqueue together with the settlement of this attempt.
    """

    __slots__ = ("_canceled", "_control", "_logger", "_report", "cancel_reason", "claim", "started", "then")

    def __init__(
        self,
        claim: Claim[R],
        started: float,
        logger: Callable[[Claim[Any]], AttemptLogger] | None = None,
        report: Report | None = None,
    ) -> None:
        self.claim = claim
        self.started = started
        """Start time by the worker's monotonic clock."""
        self.cancel_reason: str | None = None
        """Set when cancellation was requested, the timeout expired, or the worker stops."""
        self.then: list[NewJob] = []
        self._logger = logger
        self._report = report
        self._control: AttemptControl | None = None
        self._canceled: asyncio.Event | None = None

    @property
    def lease(self) -> Lease:
        """The proof of the claim. Pass (epoch, token) to systems that must refuse stale claims."""
        return self.claim.lease

    @property
    def record(self) -> R:
        """The claimed record: a ``Job``, or a row of a user's table."""
        return self.claim.record

    @property
    def attempt(self) -> int:
        """The number of this attempt: 1, 2, …"""
        return self.claim.attempts

    @property
    def max_attempts(self) -> int:
        """The number of attempts after which the record is failed."""
        return self.claim.max_attempts

    @property
    def logger(self) -> AttemptLogger:
        """A logger whose lines carry the task's name and the record's id."""
        return self._logger(self.claim) if self._logger is not None else AttemptLogger.mute()

    def log(self, message: object, **fields: Any) -> None:
        """Write a line about this record at level info."""
        self.logger.info(message, **fields)

    def progress(self, done: float, text: str | None = None) -> None:
        """Report the progress of this attempt: ``ctx.progress(done / total, "page 40 of 100")``. Thread-safe.

        The worker writes it within about a second, and drops it if the store does not answer at once. Raises
        ConfigurationError for an invalid number, and if the store keeps no progress: a table of yours, lent or not,
        and flows in Redis.

        Args:
            done: the finished part, 0 to 1.
            text: a description, cut to 200 characters.

        """
        note = read_progress(self.lease, done, text)
        if self._report is None:
            raise ConfigurationError(
                "progress: this store keeps no progress (memory, SQLite and PostgreSQL do, lent too; a table of yours"
                " and a flow in Redis do not); remove the call, and write a line with ctx.log(…), or in a table's"
                " execution log: await ctx.store.add_execution_log_entry(…)"
            )
        self._report(note)

    def enqueue_after(self, job: NewJob) -> None:
        """Enqueue a job in the transaction that settles this attempt.

        The job exists if and only if the settlement is recorded, whatever the outcome. Raises InvalidJob. A user's
        table cannot enqueue: the attempt fails there.
        """
        if self._control is not None and self._control.on_enqueue is not None:
            job = self._control.on_enqueue(job)
        self.then.append(limits.check(job))

    @property
    def store(self) -> Any:
        """The store's interface for this attempt, guarded by its lease, and in its transaction if it has one.

        A table's is ``stowhand.table.AttemptStore``. Raises ConfigurationError if the store offers none.
        """
        control = self._control
        if control is None or (control.store is None and control.offer is None):
            raise ConfigurationError("ctx.store: this store has no operations for running handlers")
        if control.store is None:
            assert control.offer is not None
            control.store = control.offer(self)
        return control.store

    @property
    def connection(self) -> Any:
        """The connection of the attempt's own transaction (psycopg's). Raises ConfigurationError without one."""
        if self._control is None or self._control.connection is None:
            raise ConfigurationError("this attempt has no transaction of its own (TableOptions: transactional=True)")
        return self._control.connection

    @property
    def canceled(self) -> bool:
        """True once the handler should stop. A synchronous handler checks this regularly."""
        return self.cancel_reason is not None

    async def until_canceled(self) -> str:
        """Wait until the handler should stop. Return the reason."""
        if self._canceled is None:
            self._canceled = asyncio.Event()
            if self.cancel_reason is not None:
                self._canceled.set()
        await self._canceled.wait()
        return self.cancel_reason or ""

    def cancel(self, reason: str) -> None:
        """Request the handler to stop. The first reason is kept. The worker calls this on its loop."""
        if self.cancel_reason is None:
            self.cancel_reason = reason
        if self._canceled is not None:
            self._canceled.set()


def control_of(attempt: Attempt[Any]) -> AttemptControl:
    """Return the part of an attempt for its worker and its store, created at the first call."""
    control = attempt._control  # noqa: SLF001 - the only access: handlers do not see it in their ``ctx``
    if control is None:
        control = attempt._control = AttemptControl(attempt.claim.lease)  # noqa: SLF001 - as above
    return control


def known_control_of(attempt: Attempt[Any]) -> AttemptControl | None:
    """Return the control if it was created; ``None`` means that it has only default values."""
    return attempt._control  # noqa: SLF001 - as above


def report_of(attempt: Attempt[Any]) -> Report | None:
    """Return the function that receives the progress; ``None`` if the store keeps none."""
    return attempt._report  # noqa: SLF001 - as above
