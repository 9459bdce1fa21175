"""The jobs of an App in one test: enqueued by the application's own code, run when the test says so, on a clock that
the test moves.

    send.enqueue(…)  by the application, on whatever loop or thread: it is kept, and nothing runs
    drain            what is due is run, and what that enqueues
    advance          time passes: retries, delayed jobs and what recurs happen, in the order of time
    assert_enqueued  a job waits that has these arguments
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
from stowhand.testing.matching import SHOWN, Expected, called, each
from stowhand.testing.places import MemoryPlace, Place, Server, in_file

T = TypeVar("T")


PACKAGE = Path(__file__).parent.parent
FAILURES = (AttemptOutcome.RETRY, AttemptOutcome.FAILED, AttemptOutcome.POISON)


class Drained(msgspec.Struct, frozen=True):
    """What ``drain`` and ``advance`` have run."""

    ran: Sequence[RecordedAttempt]
    """Every attempt, in the order in which they ended."""

    def __len__(self) -> int:
        return len(self.ran)

    def __repr__(self) -> str:
        told = [f"\n    {called(one.job)} {one.ended}{_of_error(one.error)}" for one in self.ran[:SHOWN]]
        more = f"\n    … and {len(self) - SHOWN} more" if len(self) > SHOWN else ""
        return f"<Drained: {len(self)} attempts{''.join(told)}{more}>"

    @property
    def counts(self) -> dict[str, int]:
        """Attempts by what was recorded of them: ``ok``, ``retry``, ``failed``, …"""
        return dict(Counter(str(one.ended) for one in self.ran))

    @property
    def failures(self) -> Sequence[RecordedAttempt]:
        """Those that raised something, and are tried again or have failed for good."""
        return [one for one in self.ran if one.error is not None and one.ended in FAILURES]

    @property
    def results(self) -> list[Any]:
        """What those returned that completed."""
        return [one.outcome.result for one in self.ran if isinstance(one.outcome, Complete)]


class Jobs:
    """Of one App, in one test. ``place``: where they are kept; ``clock``: their time."""

    def __init__(self, app: App, place: Place, clock: ManualClock) -> None:
        self.app = app
        self._place, self._clock = place, clock
        self._stack = ExitStack()
        self._runner: asyncio.Runner | None = None
        self._recurring = RecurringItems(app, clock)

    @property
    def now(self) -> datetime:
        """The time by which jobs are due: the test's begin, and what ``advance`` was told. It stands still between."""
        return self._clock.now()

    def override(self, factory: Callable[[], AnyContextManager[object]], value: object) -> None:
        """Until the test ends, give tasks this value for ``resource(factory)``; nothing is opened. As App.override."""
        self._stack.enter_context(self.app.override(factory, value))

    # -- run -------------------------------------------------------------------------------------

    def drain(self, *, raises: bool = True, most: int = MAX_JOBS_PER_DRAIN) -> Drained:
        """Run the jobs that are due, one after another, and those that they enqueue, until none is.

        When all have run, what the first failing task raised is raised here; ``raises=False``: it is told in what this
        returns. Raises RuntimeError after ``most`` jobs: one of them enqueues itself for ever. In an event loop:
        ``await jobs.adrain()``.
        """
        __tracebackhide__ = True
        return judged(self._wait(lambda: self._drained(most), "await jobs.adrain(…)"), raises=raises)

    async def adrain(self, *, raises: bool = True, most: int = MAX_JOBS_PER_DRAIN) -> Drained:
        """As ``drain``, on this event loop."""
        __tracebackhide__ = True
        return judged(await self._drained(most), raises=raises)

    def advance(self, span: Duration, *, raises: bool = True, most: int = MAX_JOBS_PER_DRAIN) -> Drained:
        """Let so much time pass ("1h", seconds, a timedelta), and run what falls due meanwhile, in the order of time.

        Retries, delayed jobs and the App's ``cron`` items happen at their own moments; nothing waits. Raises as
        ``drain``; ``most``: at one moment. In an event loop: ``await jobs.aadvance(…)``.
        """
        __tracebackhide__ = True
        return judged(self._wait(lambda: self._advanced(span, most), "await jobs.aadvance(…)"), raises=raises)

    async def aadvance(self, span: Duration, *, raises: bool = True, most: int = MAX_JOBS_PER_DRAIN) -> Drained:
        """As ``advance``, on this event loop."""
        __tracebackhide__ = True
        return judged(await self._advanced(span, most), raises=raises)

    async def _drained(self, most: int) -> Drained:
        async with aclosing(_Course(self.app, self._clock, most)) as course:
            await course.drain()
        return Drained(course.ran)

    async def _advanced(self, span: Duration, most: int) -> Drained:
        if (given := seconds(span)) < 0:
            raise ValueError(f"time does not go back: advance({span!r})")
        target = self.now + timedelta(seconds=given)
        self._recurring.follow(self.now)
        async with aclosing(_Course(self.app, self._clock, most)) as course:
            await course.drain()
            while moments := [one for one in (self._recurring.next(target), await course.due()) if one is not None]:
                if (moment := min(moments)) > target:
                    break
                self._clock.move(moment, on_purpose=True)
                await self._recurring.enqueue(moment)
                await course.run()
        self._clock.move(target, on_purpose=True)
        return Drained(course.ran)

    # -- look ------------------------------------------------------------------------------------

    @property
    def enqueued(self) -> Sequence[Job]:
        """The jobs that wait, due or not, the first enqueued first."""
        return [job for job in self._place.jobs() if job.state in WAITING_STATES]

    def assert_enqueued(self, task: ConfiguredTask[..., object] | str, /, **arguments: object) -> Job:
        """A job of this task waits that has these arguments; others, which are not named, may be any. Gives the first.

        A default counts as given. Raises AssertionError that shows the nearest job and what differs.
        """
        __tracebackhide__ = True
        expected, waiting = self._expected(task, arguments), self.enqueued
        for job in waiting:
            if job.task == expected.task and not expected.differences(job):
                return job
        over = [job for job in self._place.jobs() if job.state not in WAITING_STATES]
        raise AssertionError(expected.absence(waiting, over))

    def assert_not_enqueued(self, task: ConfiguredTask[..., object] | str, /, **arguments: object) -> None:
        """No job of this task waits that has these arguments."""
        __tracebackhide__ = True
        expected = self._expected(task, arguments)
        if expected.is_mistyped:
            raise AssertionError(expected.unknown)
        found = [job for job in self.enqueued if job.task == expected.task and not expected.differences(job)]
        if found:
            raise AssertionError(f"a job waits that was enqueued as {expected}\n{each(found)}")

    def _expected(self, task: ConfiguredTask[..., object] | str, arguments: dict[str, object]) -> Expected:
        __tracebackhide__ = True
        self.app.discover()
        given: object = task
        if not isinstance(given, str | ConfiguredTask):
            raise InvalidJob(f"assert_enqueued: {a_type(given)} is no task; give what @app.task made, or its name")
        if isinstance(task, ConfiguredTask):
            refuse_foreign(task, self.app, "assert_enqueued")
        name = task if isinstance(task, str) else task.name
        return Expected(name, self.app.registry, arguments)

    # -- the test's own loop ---------------------------------------------------------------------

    def _wait(self, start: Callable[[], Coroutine[Any, Any, T]], instead: str) -> T:
        __tracebackhide__ = True
        if _is_in_a_loop():
            raise RuntimeError(f"called inside a running event loop, which would stand still: write {instead}")
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(start())

    def close(self) -> None:
        """The end of the test."""
        self._stack.close()
        if self._runner is not None:
            self._runner.close()


class _Course:
    """What one call runs."""

    def __init__(self, app: App, clock: ManualClock, most: int) -> None:
        self._app, self._clock, self._most = app, clock, most
        self._drain = Drain(app, clock)
        self.ran: list[RecordedAttempt] = []

    async def drain(self) -> None:
        """Also what is due by now in real time: the application may have said so itself."""
        limit = self._clock.real()
        await self.run()
        while (moment := await self.due()) is not None and moment <= limit:
            self._clock.move(moment, on_purpose=False)
            await self.run()

    async def run(self) -> None:
        """What is due. Raises RuntimeError where that does not end."""
        if await self._wait() != 0:
            return
        ran = await self._drain.run(self._most)
        self.ran += ran
        if len(ran) >= self._most and await self._wait() == 0:
            raise endless(ran, self._most)

    async def due(self) -> datetime | None:
        """When the next job is due that cannot run yet. To the microsecond: ``advance`` would miss one later."""
        wait = await self._wait()
        return self._clock.now() + timedelta(microseconds=max(round(wait * 1e6), 1)) if wait else None

    async def aclose(self) -> None:
        await self._drain.aclose()

    async def _wait(self) -> float | None:
        """Seconds until the next job of the App's tasks is due; 0: one is."""
        return await (await self._app.open()).next_due(self._drain.tasks)


@contextmanager
def jobs_of(app: App, kind: str, clock: ManualClock, server: Server | None, folder: Path) -> Iterator[Jobs]:
    """The App on a place of its own for the block. ``kind``: memory, sqlite (a file in ``folder``), postgres."""
    options = store_options_of(app, clock)
    with ExitStack() as stack:
        place: Place
        match kind, server:
            case "memory", _:
                place = MemoryPlace(options)
            case "postgres", Server():
                place = stack.enter_context(server.emptied(options))
            case _:
                place = stack.enter_context(in_file(folder / "stowhand.db", options))
        stack.enter_context(kept_in(app, place.make))
        jobs = Jobs(app, place, clock)
        stack.callback(jobs.close)
        yield jobs


def endless(ran: Sequence[RecordedAttempt], most: int) -> RuntimeError:
    """The error for more jobs than ``most``."""
    ((task, times),) = Counter(one.job.task for one in ran).most_common(1)
    return RuntimeError(
        f"{len(ran)} jobs have run, and more are due: {times} of them were {task!r}, which may enqueue itself for ever;"
        f" where so many are meant, write most={10 * most}"
    )


def _of_the_task(frames: TracebackType | None) -> TracebackType | None:
    """Without our own, which come before the task's; all, where there are no others."""
    own = frames
    while own is not None and Path(own.tb_frame.f_code.co_filename).is_relative_to(PACKAGE):
        own = own.tb_next
    return own or frames


def _of_error(error: BaseException | None) -> str:
    return "" if error is None else f", {''.join(format_exception_only(error)).partition(chr(10))[0]}"


def _is_in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def store_options_of(app: App, clock: ManualClock) -> StoreOptions:
    """What the App's own arguments say, on this clock; neither the environment nor a settings file is asked."""
    own = app.own_store.options
    chosen = {"max_attempts": PRESETS[own.get("preset", "default")].get("max_attempts"), **own}
    known = {name: value for name, value in chosen.items() if name in ("max_attempts", "history", "failed_retention")}
    return StoreOptions(**known, pinned=clock.now)


def judged(drained: Drained, *, raises: bool) -> Drained:
    """Raise the error of the first attempt that failed, unless ``raises`` is false."""
    __tracebackhide__ = True
    for failed in drained.failures if raises else ():
        assert failed.error is not None
        again = "; it is tried again" if failed.ended is AttemptOutcome.RETRY else ""
        others = len(drained.failures) - 1
        failed.error.add_note(
            f"raised by {called(failed.job)}, attempt {failed.job.attempts} of {failed.job.max_attempts}{again}"
            + (f"; {others} other attempts failed" if others else "")
            + "; raises=False tells of it without raising"
        )
        raise failed.error.with_traceback(_of_the_task(failed.error.__traceback__))
    return drained
