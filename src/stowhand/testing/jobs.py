"""The jobs of an App in one test. The application enqueues them, and the test runs them and moves their clock.

send.enqueue(…)  called by the application on any loop or thread: stores the job, and runs nothing
drain            runs the due jobs and the jobs that they enqueue
advance          moves time: retries, delayed jobs and recurring jobs run in the order of time
assert_enqueued  asserts that a job with these arguments is waiting
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, aclosing, contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from traceback import format_exception_only
from types import TracebackType
from typing import Any, TypeVar

import msgspec

from stowhand.app.app import App, kept_in
from stowhand.app.drain import MAX_JOBS_PER_DRAIN, Drain, RecordedAttempt, RecurringItems
from stowhand.app.presets import PRESETS
from stowhand.errors import InvalidJob, a_type
from stowhand.jobs.durations import Duration, seconds
from stowhand.jobs.job import Job
from stowhand.jobs.lifecycle import WAITING_STATES, AttemptOutcome, Complete
from stowhand.protocols.store import StoreOptions
from stowhand.tasks.resource import AnyContextManager
from stowhand.tasks.task import ConfiguredTask, refuse_foreign
from stowhand.testing.clock import ManualClock
from stowhand.testing.expectation import MAX_JOBS_LISTED, ExpectedJob, format_job, format_jobs
from stowhand.testing.stores import JobStorage, MemoryStorage, ServerSchema, in_file

T = TypeVar("T")


PACKAGE_FOLDER = Path(__file__).parent.parent
FAILURE_OUTCOMES = (AttemptOutcome.RETRY, AttemptOutcome.FAILED, AttemptOutcome.POISON)


class DrainResult(msgspec.Struct, frozen=True):
    """The attempts that ``drain`` or ``advance`` has run."""

    ran: Sequence[RecordedAttempt]
    """All attempts, in the order in which they finished."""

    def __len__(self) -> int:
        return len(self.ran)

    def __repr__(self) -> str:
        lines = [
            f"\n    {format_job(attempt.job)} {attempt.ended}{_error_suffix(attempt.error)}"
            for attempt in self.ran[:MAX_JOBS_LISTED]
        ]
        more = f"\n    … and {len(self) - MAX_JOBS_LISTED} more" if len(self) > MAX_JOBS_LISTED else ""
        return f"<DrainResult: {len(self)} attempts{''.join(lines)}{more}>"

    @property
    def counts(self) -> dict[str, int]:
        """Number of attempts by recorded outcome: ``ok``, ``retry``, ``failed``, …"""
        return dict(Counter(str(attempt.ended) for attempt in self.ran))

    @property
    def failures(self) -> Sequence[RecordedAttempt]:
        """Attempts that raised an error, and are retried or have permanently failed."""
        return [attempt for attempt in self.ran if attempt.error is not None and attempt.ended in FAILURE_OUTCOMES]

    @property
    def results(self) -> list[Any]:
        """Results of the completed attempts."""
        return [attempt.outcome.result for attempt in self.ran if isinstance(attempt.outcome, Complete)]


class Jobs:
    """The jobs of an App in one test: the value of the pytest fixture ``jobs``.

    def test_a_mail_is_sent(jobs):
        sign_up("someone@example.com")
        jobs.assert_enqueued(send, to="someone@example.com")
        jobs.drain()
    """

    def __init__(self, app: App, storage: JobStorage, clock: ManualClock) -> None:
        self.app = app
        self._storage, self._clock = storage, clock
        self._stack = ExitStack()
        self._runner: asyncio.Runner | None = None
        self._recurring = RecurringItems(app, clock)

    @property
    def now(self) -> datetime:
        """Current time of the jobs: the start of the test plus all ``advance`` calls. It does not move by itself."""
        return self._clock.now()

    def override(self, factory: Callable[[], AnyContextManager[object]], value: object) -> None:
        """Replace ``resource(factory)`` by a value until the end of the test, like ``App.override``."""
        self._stack.enter_context(self.app.override(factory, value))

    # -- run -------------------------------------------------------------------------------------

    def drain(self, *, raises: bool = True, limit: int = MAX_JOBS_PER_DRAIN) -> DrainResult:
        """Run the due jobs one after another, and the jobs that they enqueue, until none is due.

        In an event loop use ``await jobs.adrain()``.

        Args:
            raises: Whether to raise the error of the first failed attempt after all jobs have run.
            limit: Maximum number of jobs.

        Returns:
            The attempts, with their results and errors.

        Raises:
            RuntimeError: More than ``limit`` jobs were due; one of them may enqueue itself forever.

        """
        __tracebackhide__ = True
        return raise_first_failure(self._wait(lambda: self._drained(limit), "await jobs.adrain(…)"), raises=raises)

    async def adrain(self, *, raises: bool = True, limit: int = MAX_JOBS_PER_DRAIN) -> DrainResult:
        """Run the due jobs like ``drain``, on this event loop."""
        __tracebackhide__ = True
        return raise_first_failure(await self._drained(limit), raises=raises)

    def advance(self, span: Duration, *, raises: bool = True, limit: int = MAX_JOBS_PER_DRAIN) -> DrainResult:
        """Move time forward, and run the jobs that become due, in the order of time, without waiting.

        Retries, delayed jobs and the App's ``cron`` items run at their own times. In an event loop use
        ``await jobs.aadvance(…)``.

        Args:
            span: Seconds, a timedelta or a phrase ("1h").
            raises: As of ``drain``.
            limit: Maximum number of jobs at one time.

        Returns:
            The attempts, with their results and errors.

        Raises:
            ValueError: ``span`` is negative.
            RuntimeError: More than ``limit`` jobs were due at one time.

        """
        __tracebackhide__ = True
        return raise_first_failure(
            self._wait(lambda: self._advanced(span, limit), "await jobs.aadvance(…)"), raises=raises
        )

    async def aadvance(self, span: Duration, *, raises: bool = True, limit: int = MAX_JOBS_PER_DRAIN) -> DrainResult:
        """Move time forward like ``advance``, on this event loop."""
        __tracebackhide__ = True
        return raise_first_failure(await self._advanced(span, limit), raises=raises)

    async def _drained(self, limit: int) -> DrainResult:
        async with aclosing(_DrainCall(self.app, self._clock, limit)) as call:
            await call.drain()
        return DrainResult(call.ran)

    async def _advanced(self, span: Duration, limit: int) -> DrainResult:
        if (span_seconds := seconds(span)) < 0:
            raise ValueError(f"advance({span!r}): time does not go back; use 0 or more")
        target = self.now + timedelta(seconds=span_seconds)
        self._recurring.follow(self.now)
        async with aclosing(_DrainCall(self.app, self._clock, limit)) as call:
            await call.drain()
            while due_times := [
                moment for moment in (self._recurring.next(target), await call.due()) if moment is not None
            ]:
                if (time := min(due_times)) > target:
                    break
                self._clock.move(time, is_advance=True)
                await self._recurring.enqueue(time)
                await call.run()
        self._clock.move(target, is_advance=True)
        return DrainResult(call.ran)

    # -- look ------------------------------------------------------------------------------------

    @property
    def enqueued(self) -> Sequence[Job]:
        """Waiting jobs, due or not, in the order in which they were enqueued."""
        return [job for job in self._storage.jobs() if job.state in WAITING_STATES]

    def assert_enqueued(self, task: ConfiguredTask[..., object] | str, /, **arguments: object) -> Job:
        """Assert that a job of this task with these arguments is waiting.

        Args:
            task: A task, or its name.
            arguments: Expected arguments; others may have any value. Defaults count.

        Returns:
            The first such job.

        Raises:
            AssertionError: There is none. The message shows the nearest job and the differences.
            InvalidJob: The task has no such parameter.

        """
        __tracebackhide__ = True
        expected, waiting = self._expected(task, arguments), self.enqueued
        for job in waiting:
            if job.task == expected.task and not expected.differences(job):
                return job
        finished = [job for job in self._storage.jobs() if job.state not in WAITING_STATES]
        raise AssertionError(expected.absence(waiting, finished))

    def assert_not_enqueued(self, task: ConfiguredTask[..., object] | str, /, **arguments: object) -> None:
        """Assert that no job of this task with these arguments is waiting."""
        __tracebackhide__ = True
        expected = self._expected(task, arguments)
        if expected.is_mistyped:
            raise AssertionError(expected.unknown)
        matching = [job for job in self.enqueued if job.task == expected.task and not expected.differences(job)]
        if matching:
            raise AssertionError(f"a waiting job matches {expected}\n{format_jobs(matching)}")

    def _expected(self, task: ConfiguredTask[..., object] | str, arguments: dict[str, object]) -> ExpectedJob:
        __tracebackhide__ = True
        self.app.discover()
        value: object = task
        if not isinstance(value, str | ConfiguredTask):
            raise InvalidJob(
                f"assert_enqueued: {a_type(value)} is not a task; use a task declared with @app.task, or its name"
            )
        if isinstance(task, ConfiguredTask):
            refuse_foreign(task, self.app, "assert_enqueued")
        name = task if isinstance(task, str) else task.name
        return ExpectedJob(name, self.app.registry, arguments)

    # -- the test's own loop ---------------------------------------------------------------------

    def _wait(self, start: Callable[[], Coroutine[Any, Any, T]], replacement: str) -> T:
        __tracebackhide__ = True
        if _is_in_a_loop():
            raise RuntimeError(f"called inside a running event loop, which it would block; write {replacement}")
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(start())

    def close(self) -> None:
        """Restore resources and close the event loop at the end of the test."""
        self._stack.close()
        if self._runner is not None:
            self._runner.close()


class _DrainCall:
    """One call of ``drain`` or ``advance``."""

    def __init__(self, app: App, clock: ManualClock, limit: int) -> None:
        self._app, self._clock, self._most = app, clock, limit
        self._drain = Drain(app, clock)
        self.ran: list[RecordedAttempt] = []

    async def drain(self) -> None:
        """Run the due jobs, including those due by now in real time, whose time the application may have computed."""
        limit = self._clock.real()
        await self.run()
        while (time := await self.due()) is not None and time <= limit:
            self._clock.move(time, is_advance=False)
            await self.run()

    async def run(self) -> None:
        """Run the due jobs. Raises RuntimeError if that does not end."""
        if await self._wait() != 0:
            return
        ran = await self._drain.run(self._most)
        self.ran += ran
        if len(ran) >= self._most and await self._wait() == 0:
            raise endless_error(ran, self._most)

    async def due(self) -> datetime | None:
        """Return when the next job is due that cannot run yet, rounded up to a microsecond."""
        wait = await self._wait()
        return self._clock.now() + timedelta(microseconds=max(round(wait * 1e6), 1)) if wait else None

    async def aclose(self) -> None:
        await self._drain.aclose()

    async def _wait(self) -> float | None:
        """Return the seconds until the next job of the App's tasks is due; 0 if one is due."""
        return await (await self._app.open()).next_due(self._drain.tasks)


@contextmanager
def jobs_of(app: App, kind: str, clock: ManualClock, server: ServerSchema | None, folder: Path) -> Iterator[Jobs]:
    """Keep the App's jobs in a separate store within the block.

    ``kind``: memory, sqlite (a file in ``folder``), postgres.
    """
    options = store_options_of(app, clock)
    with ExitStack() as stack:
        storage: JobStorage
        match kind, server:
            case "memory", _:
                storage = MemoryStorage(options)
            case "postgres", ServerSchema():
                storage = stack.enter_context(server.emptied(options))
            case _:
                storage = stack.enter_context(in_file(folder / "stowhand.db", options))
        stack.enter_context(kept_in(app, storage.make))
        jobs = Jobs(app, storage, clock)
        stack.callback(jobs.close)
        yield jobs


def endless_error(ran: Sequence[RecordedAttempt], limit: int) -> RuntimeError:
    """Return the error for more jobs than ``limit``."""
    ((task, times),) = Counter(attempt.job.task for attempt in ran).most_common(1)
    return RuntimeError(
        f"{len(ran)} jobs have run, and more are due; {times} of them were {task!r}, which may enqueue itself forever."
        f" If so many are intended, write limit={10 * limit}"
    )


def _task_frames(frames: TracebackType | None) -> TracebackType | None:
    """Drop the frames of this package, which precede those of the task. Keep all if there are no others."""
    frame = frames
    while frame is not None and Path(frame.tb_frame.f_code.co_filename).is_relative_to(PACKAGE_FOLDER):
        frame = frame.tb_next
    return frame or frames


def _error_suffix(error: BaseException | None) -> str:
    return "" if error is None else f", {''.join(format_exception_only(error)).partition(chr(10))[0]}"


def _is_in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def store_options_of(app: App, clock: ManualClock) -> StoreOptions:
    """Return the store options of the App's own arguments on this clock. Ignores environment and settings file."""
    own = app.own_store.options
    options = {"max_attempts": PRESETS[own.get("preset", "default")].get("max_attempts"), **own}
    store_options = {
        name: value for name, value in options.items() if name in ("max_attempts", "history", "failed_retention")
    }
    return StoreOptions(**store_options, pinned=clock.now)


def raise_first_failure(result: DrainResult, *, raises: bool) -> DrainResult:
    """Raise the error of the first attempt that failed, unless ``raises`` is false."""
    __tracebackhide__ = True
    for attempt in result.failures if raises else ():
        assert attempt.error is not None
        retry_note = ", to be retried" if attempt.ended is AttemptOutcome.RETRY else ""
        other_failures = len(result.failures) - 1
        job = attempt.job
        note = f"raised by {format_job(job)}, attempt {job.attempts} of {job.max_attempts}{retry_note}"
        if other_failures:
            note += f"; {other_failures} other attempts failed"
        attempt.error.add_note(f"{note}; with raises=False it is returned in failures instead")
        raise attempt.error.with_traceback(_task_frames(attempt.error.__traceback__))
    return result
