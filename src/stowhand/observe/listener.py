"""Events as log lines, in the words of the README.

    [core] INFO: Worker connected and looking for jobs... (task names: 'hello')
    [worker(worker-7327)] INFO: Completed task 1 (hello) with success (0.16ms)

A listener is registered only for what the level lets through: an event nobody wants is never made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stowhand.events import (
    ChildDied,
    CronClockMoved,
    CronConflict,
    CronReloaded,
    CronScheduled,
    CronStarted,
    CronTrouble,
    Event,
    Events,
    JobEnded,
    JobLost,
    JobsReset,
    JobsReturned,
    JobStarted,
    JobUnknown,
    LeaseEnding,
    LoopBlocked,
    ResultDropped,
    StoreRecovered,
    StoreTrouble,
    TasksReloaded,
    ThreadAbandoned,
    WorkerStarted,
    WorkerStopped,
    WorkerStopping,
)
from stowhand.job import State
from stowhand.lifecycle import Ended
from stowhand.observe.job_logger import LineLogger, ScopedLogger
from stowhand.observe.logs import Scope
from stowhand.observe.safe_text import escape, shorten, telling_line

NAMES_SHOWN = 50
"""Task names and job ids in one line, at most."""
ERROR_WIDTH = 500
FLAGS = "forbidden flags"
LATE = 60.0
"""Seconds after which a scheduled tick is said to be late."""


class LogListener:
    """Writes a line for whatever happens. Made once per worker process."""

    def __init__(self, events: Events, new_logger: Callable[[Scope], LineLogger] = ScopedLogger) -> None:
        self._new_logger = new_logger
        self._workers: dict[str, LineLogger] = {}
        self._core = new_logger(Scope("core"))
        for kind, (level, listener) in self._listeners().items():
            if self._core.enabled(level):
                events.on(kind, listener, success=self._core.enabled("info"))
        if events.on_listener_error is None:
            events.on_listener_error = self._listener_failed

    def _listeners(self) -> dict[type[Event], tuple[str, Callable[[Any], None]]]:
        """For each event the most severe level at which it may be written."""
        return {
            WorkerStarted: ("info", self._started),
            JobStarted: ("debug", self._job_started),
            JobEnded: ("error", self._job_ended),
            JobLost: ("warning", self._job_lost),
            JobUnknown: ("warning", self._job_unknown),
            JobsReturned: ("info", self._returned),
            JobsReset: ("warning", self._reset),
            ResultDropped: ("warning", self._result_dropped),
            StoreTrouble: ("error", self._trouble),
            StoreRecovered: ("info", self._recovered),
            LeaseEnding: ("error", self._lease_ending),
            LoopBlocked: ("warning", self._blocked),
            ThreadAbandoned: ("warning", self._thread_abandoned),
            ChildDied: ("error", self._child_died),
            TasksReloaded: ("error", self._reloaded),
            CronStarted: ("info", self._cron_started),
            CronScheduled: ("info", self._cron_scheduled),
            CronConflict: ("warning", self._cron_conflict),
            CronClockMoved: ("warning", self._cron_clock_moved),
            CronTrouble: ("error", self._cron_trouble),
            CronReloaded: ("error", self._cron_reloaded),
            WorkerStopping: ("info", self._stopping),
            WorkerStopped: ("warning", self._stopped),
        }

    def _started(self, event: WorkerStarted) -> None:
        names = "any" if event.tasks is None else _names(event.tasks)
        self._core.info(f"Worker connected and looking for jobs... (task names: {names})")

    def _job_started(self, event: JobStarted) -> None:
        self._worker(event.worker).debug(f"Started task {_job(event)}, attempt {event.attempt}")

    def _job_ended(self, event: JobEnded) -> None:
        logger, job, took = self._worker(event.worker), _job(event), f"{event.seconds * 1000:.2f}ms"
        match event.ended:
            case Ended.OK:
                logger.info(f"Completed task {job} with success ({took})")
            case Ended.SNOOZED:
                logger.info(f"Snoozed task {job} ({took})")
            case Ended.CANCELED:
                logger.info(f"Canceled task {job}{_because(event.error)} ({took})")
            case Ended.RETRY:
                logger.error(f"Failed task {job}, {_attempt(event)}, to be tried again{_because(event.error)} ({took})")
            case Ended.FAILED | Ended.POISON:
                word = " as poison" if event.ended is Ended.POISON else ""
                logger.error(f"Failed task {job} for good{word}, {_attempt(event)}{_because(event.error)} ({took})")

    def _job_lost(self, event: JobLost) -> None:
        self._worker(event.worker).warning(f"Lost the lease of task {_job(event)}, nothing was recorded: {event.why}")

    def _job_unknown(self, event: JobUnknown) -> None:
        self._worker(event.worker).warning(
            f"The connection was cut while task {_job(event)} was being recorded; whether it was is not known"
        )

    def _returned(self, event: JobsReturned) -> None:
        self._worker(event.worker).info(f"Handed back unspent: {_ids(event.job_ids)} ({event.why})")

    def _reset(self, event: JobsReset) -> None:
        for job in event.jobs:
            what = f"task {job.job_id} ({escape(job.task)})"
            whose = f" ({escape(job.worker)})" if job.worker else ""
            if job.state is State.FAILED:
                self._core.error(f"Failed {what} for good: its workers died too often while running it")
            else:
                self._core.warning(f"Took back {what}: its worker{whose} is gone; it is {job.state.value}")

    def _result_dropped(self, event: ResultDropped) -> None:
        self._core.warning(f"Completed task {_job(event)}, but its result could not be kept: {event.why}")

    def _trouble(self, event: StoreTrouble) -> None:
        error = shorten(telling_line(event.error), ERROR_WIDTH)
        what = "No answer about forbidden flags" if event.doing == FLAGS else f"Store trouble ({event.doing})"
        self._worker(event.worker).error(f"{what}, again in {event.retry_in:.1f}s: {error}")

    def _recovered(self, event: StoreRecovered) -> None:
        times = "1 failure" if event.failures == 1 else f"{event.failures} failures"
        who = "The answer about forbidden flags" if event.doing == FLAGS else "The store"
        self._worker(event.worker).info(f"{who} is back ({event.doing}, after {times})")

    def _lease_ending(self, event: LeaseEnding) -> None:
        self._worker(event.worker).error(
            f"No heartbeat has reached the store for so long that the lease of task {event.lease.job_id}"
            f" ({escape(event.task)}) ends; it is stopped here, and will be run again"
        )

    def _blocked(self, event: LoopBlocked) -> None:
        who = f"task {event.job_id} ({escape(event.task or '')})" if event.job_id is not None else "something"
        hung = "" if event.beating else "; it counts as hung, and its lease is renewed no more"
        self._worker(event.worker).warning(
            f"The event loop is blocked for {event.seconds:.1f}s by {who}{hung}. It is here:\n{event.stack.rstrip()}"
        )

    def _thread_abandoned(self, event: ThreadAbandoned) -> None:
        self._worker(event.worker).warning(
            f"Task {_job(event)} was told to stop, but its thread cannot be ended; its result will be ignored"
        )

    def _child_died(self, event: ChildDied) -> None:
        back = "1 job" if event.jobs == 1 else f"{event.jobs} jobs"
        self._worker(event.worker).error(f"Worker process {event.pid} ended unasked ({event.how}); {back} came back")

    def _reloaded(self, event: TasksReloaded) -> None:
        if event.problem is None:
            self._core.info(f"Loaded the tasks again (task names: {_names(event.tasks)})")
        else:
            self._core.error(f"The tasks have changed and cannot be loaded, so the old ones stay: {event.problem}")

    def _cron_started(self, event: CronStarted) -> None:
        filled = f"; made up for {_count(event.backfilled, 'missed tick')}" if event.backfilled else ""
        self._core.info(f"Scheduling {_count(len(event.items), 'recurring task')}: {_names(event.items)}{filled}")

    def _cron_scheduled(self, event: CronScheduled) -> None:
        name = "" if event.identifier == event.task else f", {escape(event.identifier)}"
        late = f", {event.late:.0f}s late" if event.late >= LATE else ""
        # Months may be backfilled at once; at the end they are counted (CronStarted).
        say = self._core.debug if event.backfilled else self._core.info
        say(f"Scheduled task {event.job_id} ({escape(event.task)}{name}) for {event.at:%Y-%m-%d %H:%M}Z{late}")

    def _cron_conflict(self, event: CronConflict) -> None:
        self._core.warning(
            f"Another worker has a different recurring task under the identifier {escape(event.identifier)}; for"
            f" {event.at:%Y-%m-%d %H:%M}Z its job was made and ours was not; give one of them another id."
            f" Ours: {_short(event.ours)}; theirs: {_short(event.theirs)}"
        )

    def _cron_clock_moved(self, event: CronClockMoved) -> None:
        if event.seconds < 0:
            words = f"went back by {-event.seconds:.0f}s; nothing is scheduled twice"
        else:
            words = f"went forward by {event.seconds:.0f}s, or this process slept; what was missed is scheduled now"
        self._core.warning(f"The store's clock {words}")

    def _cron_trouble(self, event: CronTrouble) -> None:
        again = f", again in {event.retry_in:.1f}s" if event.retry_in else ""
        self._core.error(f"Trouble with recurring tasks{again}: {_short(telling_line(event.error))}")

    def _cron_reloaded(self, event: CronReloaded) -> None:
        if event.problem is None:
            self._core.info(f"Read the crontab again: {_names(event.items)}")
        else:
            self._core.error(f"The crontab is wrong, so the old one stays ({_names(event.items)}):")
            for line in event.problem.splitlines():
                self._core.error(f"  {_short(line)}")

    def _stopping(self, event: WorkerStopping) -> None:
        if event.now:
            words = f"Stopping now; {_running(event.running)} handed back"
        else:
            words = f"Stopping; waiting for {event.running} running job{'s' if event.running != 1 else ''}"
        self._worker(event.worker).info(words)

    def _stopped(self, event: WorkerStopped) -> None:
        logger = self._worker(event.worker)
        if event.unfinished:
            logger.warning(f"Stopped; {event.unfinished} handlers could not be ended, their jobs went back unspent")
        else:
            logger.info("Stopped")

    def _listener_failed(self, listener: object, event: Event, error: BaseException) -> None:
        name = getattr(listener, "__qualname__", type(listener).__name__)
        self._core.error(f"A listener raised ({name}, for {type(event).__name__}): {type(error).__name__}: {error}")

    def _worker(self, name: str) -> LineLogger:
        logger = self._workers.get(name)
        if logger is None:
            logger = self._workers[name] = self._new_logger(Scope("worker", name))
        return logger


def _job(event: JobStarted | JobEnded | JobLost | JobUnknown | ResultDropped | ThreadAbandoned) -> str:
    return f"{event.job_id} ({escape(event.task)})"


def _attempt(event: JobEnded) -> str:
    return f"attempt {event.attempt}/{event.max_attempts}"


def _because(error: str | None) -> str:
    return f": {escape(shorten(telling_line(error), ERROR_WIDTH))}" if error else ""


def _names(names: tuple[str, ...]) -> str:
    shown = ", ".join(f"'{escape(name)}'" for name in names[:NAMES_SHOWN]) or "none"
    return shown + (f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else "")


def _short(text: str) -> str:
    return escape(shorten(text, ERROR_WIDTH))


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _ids(job_ids: tuple[int, ...]) -> str:
    shown = ", ".join(str(job_id) for job_id in job_ids[:NAMES_SHOWN])
    more = f" and {len(job_ids) - NAMES_SHOWN} more" if len(job_ids) > NAMES_SHOWN else ""
    return f"{'task' if len(job_ids) == 1 else 'tasks'} {shown}{more}"


def _running(count: int) -> str:
    return "1 running job is" if count == 1 else f"{count} running jobs are"
