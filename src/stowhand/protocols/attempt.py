"""One run of a handler: the attempt that it receives as ``ctx``, with its logger and its progress."""

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
    # Type checkers know this module without its being installed. The default serves a plain ``Attempt``.
    from typing_extensions import TypeVar as TypeVarWithDefault

    R = TypeVarWithDefault("R", covariant=True, default=Any)
else:
    R = TypeVar("R", covariant=True)


MAX_PROGRESS_TEXT_LENGTH = 200
"""Characters."""


class Progress(msgspec.Struct, frozen=True):
    """Of one attempt."""

    lease: Lease
    done: float
    """0 to 1."""
    text: str | None = None


Report = Callable[[Progress], None]
"""Called by handlers, from any thread."""


@runtime_checkable
class ProgressKeeper(Protocol):
    """Heartbeats that keep the progress of running jobs. Raises StoreUnreachable."""

    async def keep_progress(self, notes: Sequence[Progress], within: float) -> None:
        """Those whose lease is valid; a row that another transaction has locked is left out. Given up after ``within``
        seconds: what was not written is not written later."""


def read_progress(lease: Lease, done: object, text: object) -> Progress:
    """Raises ConfigurationError for what is no part of 1."""
    if isinstance(done, bool) or not isinstance(done, int | float) or not 0 <= done <= 1 or math.isnan(done):
        rendered = repr(done) if isinstance(done, int | float) else a_type(done)
        raise ConfigurationError(f"progress: {rendered} given; give a number from 0 to 1, as done / total")
    return Progress(lease, float(done), None if text is None else clean(str(text))[:MAX_PROGRESS_TEXT_LENGTH])


class AttemptLogger:
    """A logger of one job: each line is a ``JobLogged`` event, which ``observe/`` prints."""

    __slots__ = ("_emit", "_job_id", "_task", "_worker")

    def __init__(self, emit: Callable[[Event], None] | None, worker: str, task: str, job_id: JobId | None) -> None:
        self._emit = emit
        self._worker = worker
        self._task = task
        self._job_id = job_id

    @classmethod
    def mute(cls) -> AttemptLogger:
        """A logger that writes nothing."""
        return cls(None, "", "", None)

    def debug(self, message: object, /, **fields: Any) -> None:
        """Write a line at level debug, with further facts by name."""
        self._log("debug", message, fields)

    def info(self, message: object, /, **fields: Any) -> None:
        """At level info: what happens."""
        self._log("info", message, fields)

    def warning(self, message: object, /, **fields: Any) -> None:
        """At level warning: a person may want to look."""
        self._log("warning", message, fields)

    def error(self, message: object, /, **fields: Any) -> None:
        """At level error: a person must look."""
        self._log("error", message, fields)

    def _log(self, level: str, message: object, fields: dict[str, Any]) -> None:
        if self._emit is not None:
            self._emit(JobLogged(self._worker, self._job_id, self._task, level, str(message), fields))


class Transaction(Protocol):
    """An open transaction that locks an attempt's record: the end of the attempt is written there, and nowhere else."""

    async def settle(self, settlement: Settlement) -> Reply:
        """Write how the attempt ended, and commit.

        What the handler did is kept if the record is completed or goes back to queued, and rolled back otherwise.
        After the reply ``RefusedSettlement`` it is called again, with another settlement. It raises only StoreError;
        then it is not known whether the settlement was written.
        """

    async def rollback(self) -> None:
        """Undo everything: the record is as it was after its claim, to be handed back, or lost."""


class AttemptControl(msgspec.Struct, eq=False):
    """The side of an attempt that its worker and its store use, and its handler does not: ``control_of``."""

    lease: Lease
    store: Any = None
    """``ctx.store``."""
    offer: Callable[[Attempt[Any]], Any] | None = None
    """Makes it, where that waits until the handler asks: most never do, and the two would refer to each other."""
    connection: Any = None
    """``ctx.connection``."""
    transaction: Transaction | None = None
    """Where the end of the attempt is written, if it has a transaction of its own."""
    decided: Outcome | None = None
    """What the handler asked its store for (``requeue``): the outcome, unless the handler raises."""
    on_enqueue: Callable[[NewJob], NewJob] | None = None
    """What ``enqueue_after`` is given goes through it."""
    hooked: Context | None = None
    """Its hooks have begun: post_handle is to come, in this context, to which its log lines and spans belong."""
    ended: bool = False
    """The handler has ended: nothing can be decided any more."""
    lost: bool = False
    """The lease is gone: nothing that this attempt does will be recorded."""
    in_thread: bool = False
    """The handler runs in a thread, which ends by itself or not at all."""
    abandoned_thread: threading.Event | None = None
    """A thread, which cannot be stopped, still runs for this attempt. The event is set when it ends."""

    def bind(self, store: Any, connection: Any = None) -> None:
        """Called by the store before the handler runs: what ``ctx.store`` and ``ctx.connection`` are."""
        self.store = store
        self.connection = connection

    def decide(self, outcome: Outcome) -> None:
        """Called by the store, on the handler's behalf. Raises LeaseLost once the handler has ended."""
        if self.ended:
            raise LeaseLost(f"record {self.lease.job_id}: its handler has ended, and how is decided")
        self.decided = outcome


@runtime_checkable
class ExecutionLog(Protocol):
    """The execution log of one running attempt, as ``ctx.store`` is one; every call is guarded by the lease.

    Both raise LogRefused when the lease is gone or the entry is not there; StoreUnreachable.
    """

    async def add_execution_log_entry(self, entry: ExecutionLogEntry) -> int:
        """Append an entry; returns its number: 1, 2, …"""

    async def update_execution_log_entry(self, number: int, entry: ExecutionLogEntry) -> None:
        """Replace the entry with this number."""


class Stop(StrEnum):
    """Why a running handler is stopped: ``Attempt.cancel_reason``."""

    TIMEOUT = "timeout"
    CANCELED = "canceled"
    """The job was asked to cancel."""
    LOST = "lost"
    """Its lease is lost, or may be given away any moment."""
    RETURNED = "returned"
    """The worker stops: the job is returned without using an attempt."""
    CRASHED = "crashed"
    """The child process that ran it died."""
    UNABLE = "unable"
    """The child process could not start it."""


class Attempt(Generic[R]):
    """One run of a handler: the record, its lease, and how it is asked to stop. Handlers receive it as ``ctx``.

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
        """By the worker's monotonic clock."""
        self.cancel_reason: str | None = None
        """Set when the job's cancellation was requested, its time ran out, or the worker stops."""
        self.then: list[NewJob] = []
        self._logger = logger
        self._report = report
        self._control: AttemptControl | None = None
        self._canceled: asyncio.Event | None = None

    @property
    def lease(self) -> Lease:
        """The proof of the claim: hand (epoch, token) to systems that must refuse a stale one."""
        return self.claim.lease

    @property
    def record(self) -> R:
        """The record as it was claimed: a ``Job``, or a row of a user's table."""
        return self.claim.record

    @property
    def attempt(self) -> int:
        """Which attempt this is: 1, 2, …"""
        return self.claim.attempts

    @property
    def max_attempts(self) -> int:
        """After this many the record is failed."""
        return self.claim.max_attempts

    @property
    def logger(self) -> AttemptLogger:
        """A logger whose lines carry the task's name and the record's id."""
        return self._logger(self.claim) if self._logger is not None else AttemptLogger.mute()

    def log(self, message: object, **fields: Any) -> None:
        """Write a line about this record, at level info, through ``logger``."""
        self.logger.info(message, **fields)

    def progress(self, done: float, text: str | None = None) -> None:
        """Say how far this attempt is: ``ctx.progress(done / total, "page 40 of 100")``. From any thread.

        ``done``: 0 to 1; ``text``: 200 characters. It is written within about a second, with what others say, and is
        dropped where the store does not answer at once. Raises ConfigurationError for what is no such number, and where
        the store keeps no progress: a table of yours, lent or not, and flows in Redis.
        """
        note = read_progress(self.lease, done, text)
        if self._report is None:
            raise ConfigurationError(
                "progress: this store keeps none (memory, SQLite and PostgreSQL do, lent too; a table of yours and"
                " a flow in Redis do not); take the call out, and write a line with ctx.log(…), or in a table's"
                " execution log: await ctx.store.add_execution_log_entry(…)"
            )
        self._report(note)

    def enqueue_after(self, job: NewJob) -> None:
        """Enqueue a job together with this attempt's end, in one transaction.

        It exists if and only if the end of this attempt is recorded, whatever that end is. Raises InvalidJob. A user's
        table cannot enqueue: the attempt fails there.
        """
        if self._control is not None and self._control.on_enqueue is not None:
            job = self._control.on_enqueue(job)
        self.then.append(limits.check(job))

    @property
    def store(self) -> Any:
        """The store as this attempt sees it: guarded by its lease, and inside its transaction where it has one.

        What it can do depends on the store; a table's is ``stowhand.table.AttemptStore``.
        Raises ConfigurationError where the store offers nothing.
        """
        control = self._control
        if control is None or (control.store is None and control.offer is None):
            raise ConfigurationError("this store has nothing to give to a running handler")
        if control.store is None:
            assert control.offer is not None
            control.store = control.offer(self)
        return control.store

    @property
    def connection(self) -> Any:
        """The connection of the attempt's own transaction (psycopg's). Raises ConfigurationError where it has none."""
        if self._control is None or self._control.connection is None:
            raise ConfigurationError("this attempt has no transaction of its own (TableOptions: transactional=True)")
        return self._control.connection

    @property
    def canceled(self) -> bool:
        """True once the handler should stop. A synchronous handler looks at this now and then."""
        return self.cancel_reason is not None

    async def until_canceled(self) -> str:
        """Wait until the handler should stop; returns the reason."""
        if self._canceled is None:
            self._canceled = asyncio.Event()
            if self.cancel_reason is not None:
                self._canceled.set()
        await self._canceled.wait()
        return self.cancel_reason or ""

    def cancel(self, reason: str) -> None:
        """Ask the handler to stop; the first reason stands. Called by the worker, on its loop."""
        if self.cancel_reason is None:
            self.cancel_reason = reason
        if self._canceled is not None:
            self._canceled.set()


def control_of(attempt: Attempt[Any]) -> AttemptControl:
    """The worker's and the store's side of an attempt. Made when it is first asked for: most attempts need none."""
    control = attempt._control  # noqa: SLF001 - the one door: handlers do not meet it in their ``ctx``
    if control is None:
        control = attempt._control = AttemptControl(attempt.claim.lease)  # noqa: SLF001 - as above
    return control


def known_control_of(attempt: Attempt[Any]) -> AttemptControl | None:
    """The same; ``None`` where nobody has asked for it, so all is as it was in the beginning."""
    return attempt._control  # noqa: SLF001 - as above


def report_of(attempt: Attempt[Any]) -> Report | None:
    """Where its progress goes; ``None``: the store keeps none."""
    return attempt._report  # noqa: SLF001 - as above
