"""What a running task can ask about its job, and say: ``Context`` (typed style) and ``helpers`` (folder style)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol, Unpack

from stowhand import limits
from stowhand.handler import Attempt
from stowhand.job import Job, NewJob
from stowhand.store import Lease, Producer
from stowhand.tasks.options import EnqueueOptions


class JobLogger(Protocol):
    """A logger that knows its job. Messages are taken as they are; further facts by name."""

    def debug(self, message: object, **facts: Any) -> None:
        """For the one who looks for a mistake."""

    def info(self, message: object, **facts: Any) -> None:
        """What happens."""

    def warning(self, message: object, **facts: Any) -> None:
        """Somebody may want to look."""

    def error(self, message: object, **facts: Any) -> None:
        """Somebody must look."""


LoggerFactory = Callable[[Job], JobLogger]
NewJobMaker = Callable[[str, object, EnqueueOptions], NewJob]


class Context:
    """The running attempt, handed to a task that has a parameter annotated ``Context``."""

    __slots__ = ("_attempt", "_logger", "_new_logger")

    def __init__(self, attempt: Attempt[Job], new_logger: LoggerFactory) -> None:
        self._attempt = attempt
        self._new_logger = new_logger
        self._logger: JobLogger | None = None

    @property
    def job(self) -> Job:
        """The job as it was claimed."""
        return self._attempt.record

    @property
    def attempt(self) -> int:
        """Which attempt this is: 1, 2, …"""
        return self._attempt.claim.attempts

    @property
    def max_attempts(self) -> int:
        """After this many the job is failed."""
        return self._attempt.claim.max_attempts

    @property
    def lease(self) -> Lease:
        """The proof that this attempt holds the job: hand (epoch, token) to systems that must refuse a stale one."""
        return self._attempt.lease

    @property
    def canceled(self) -> bool:
        """True once the task should stop. A synchronous task looks at this now and then."""
        return self._attempt.canceled

    async def until_canceled(self) -> str:
        """Wait until the task should stop; gives the reason. For asynchronous tasks."""
        return await self._attempt.until_canceled()

    @property
    def logger(self) -> JobLogger:
        """A logger whose lines bear the task's name and the job's id."""
        if self._logger is None:
            self._logger = self._new_logger(self.job)
        return self._logger

    def log(self, message: object, **facts: Any) -> None:
        """Write a line about this job, at level info, through ``logger``."""
        self.logger.info(message, **facts)

    def enqueue_after(self, job: NewJob) -> None:
        """Enqueue a job together with this attempt's end, in one transaction.

        It is there if and only if the end of this attempt is recorded, whatever that end is. Raises InvalidJob.

            ctx.enqueue_after(send.new_job("someone@example.com"))
        """
        self._attempt.then.append(limits.check(job))


class Helpers:
    """What a folder task ``async def task(payload, helpers)`` gets."""

    def __init__(self, context: Context, producer: Producer, new_job: NewJobMaker) -> None:
        self.job = context.job
        """The job as it was claimed."""
        self._context = context
        self._producer = producer
        self._new_job = new_job

    @property
    def logger(self) -> JobLogger:
        """A logger whose lines bear the task's name and the job's id."""
        return self._context.logger

    async def add_job(self, task: str, payload: object = None, **options: Unpack[EnqueueOptions]) -> Job:
        """Enqueue a job at once, outside of this one's transaction. Raises InvalidJob."""
        return await self._producer.enqueue(limits.check(self._new_job(task, payload, options)))


class BlockingHelpers:
    """What a folder task ``def task(payload, helpers)`` gets, in its thread: a portal to the loop's ``Helpers``."""

    def __init__(self, helpers: Helpers) -> None:
        self.job = helpers.job
        """The job as it was claimed."""
        self._helpers = helpers
        self._loop = asyncio.get_running_loop()

    @property
    def logger(self) -> JobLogger:
        """A logger whose lines bear the task's name and the job's id."""
        return self._helpers.logger

    def add_job(self, task: str, payload: object = None, **options: Unpack[EnqueueOptions]) -> Job:
        """Enqueue a job at once and wait until it is committed. Raises InvalidJob."""
        adding = self._helpers.add_job(task, payload, **options)
        return asyncio.run_coroutine_threadsafe(adding, self._loop).result()
