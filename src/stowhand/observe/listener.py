"""Events as log lines, in the words of the README.

    [core] INFO: Worker connected and looking for jobs... (task names: 'hello')
    [worker(worker-7327)] INFO: Completed task 1 (hello) with success (0.16ms)

A listener is registered only for what the level lets through: an event without a listener is never made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from stowhand.events import (
    ChangeRefused,
    ChildDied,
    ChildRenewed,
    CronClockMoved,
    CronConflict,
    CronReloaded,
    CronScheduled,
    CronStarted,
    Event,
    Events,
    HookFailed,
    JobEnded,
    JobLogged,
    JobLost,
    JobsReset,
    JobsReturned,
    JobStarted,
    JobUnknown,
    LeaseExpiring,
    LoopBlocked,
    ResultDropped,
    SchedulingFailed,
    StoreCallFailed,
    StoreRecovered,
    StoreWarning,
    TasksReloaded,
    ThreadAbandoned,
    ThreadEnded,
    ThreadsExhausted,
    WorkerQuietChanged,
    WorkerRenewed,
    WorkerStarted,
    WorkerStopped,
    WorkerStopping,
)
from stowhand.jobs.durations import format_short_duration
from stowhand.jobs.job import State
from stowhand.jobs.lease import JobId
from stowhand.jobs.lifecycle import AttemptOutcome
from stowhand.jobs.outcomes import describe
from stowhand.observe.about import about_job_of
from stowhand.observe.job_logger import LineLogger, ScopedLogger, core_logger
from stowhand.observe.logs import Scope
from stowhand.observe.safe_text import escape, shorten, telling_line
from stowhand.protocols.operator import BUILT_IN

FLAGS = "forbidden flags"
OF_A_JOB = (
    JobStarted,
    JobEnded,
    JobLost,
    JobUnknown,
    ThreadAbandoned,
    ThreadEnded,
    HookFailed,
    ResultDropped,
    LoopBlocked,
)
"""Events whose lines are about the job that they name."""
DONE = {"beat": "renew the lease of", "release": "return", "reset": "reset"}
EACH = 3
"""Jobs of one event that have a line each; more share one line, with their number."""
WORKERS_SHOWN = 5
NAMES_SHOWN = 50
"""Task names and job ids in one line, at most."""
ERROR_WIDTH = 500
"""Characters."""
LATE = 60.0
"""Seconds after which a scheduled tick counts as late."""


class LogListener:
    """Writes a line for each event. Made once per worker process."""

    def __init__(self, events: Events, new_logger: Callable[[Scope], LineLogger] = ScopedLogger) -> None:
        self._new_logger = new_logger
        self._workers: dict[str, LineLogger] = {}
        self._core = new_logger(Scope("core"))
        for kind, (level, listener) in self._listeners().items():
            if self._core.enabled(level):
                events.on(
                    kind, _about_its_job(listener) if kind in OF_A_JOB else listener, success=self._core.enabled("info")
                )
        if events.on_listener_error is None:
            events.on_listener_error = partial(report_to_log, logger=self._core)

    def _listeners(self) -> dict[type[Event], tuple[str, Callable[[Any], None]]]:
        """For each event the most severe level at which it may be written."""
        return {
            WorkerStarted: ("info", self._started),
            JobStarted: ("debug", self._job_started),
            JobEnded: ("error", self._job_ended),
            JobLost: ("warning", self._job_lost),
            JobUnknown: ("error", self._job_unknown),
            JobsReturned: ("info", self._returned),
            JobsReset: ("warning", self._reset),
            JobLogged: ("error", self._said),
            HookFailed: ("error", self._hook_failed),
            ResultDropped: ("warning", self._result_dropped),
            ChangeRefused: ("warning", self._change_refused),
            StoreCallFailed: ("error", self._trouble),
            StoreRecovered: ("info", self._recovered),
            StoreWarning: ("warning", self._warned),
            LeaseExpiring: ("error", self._lease_ending),
            LoopBlocked: ("warning", self._blocked),
            ThreadAbandoned: ("warning", self._thread_abandoned),
            ThreadEnded: ("info", self._thread_ended),
            ThreadsExhausted: ("error", self._threads_exhausted),
            ChildDied: ("error", self._child_died),
            ChildRenewed: ("info", self._child_renewed),
            TasksReloaded: ("error", self._reloaded),
            CronStarted: ("info", self._cron_started),
            CronScheduled: ("info", self._cron_scheduled),
            CronConflict: ("warning", self._cron_conflict),
            CronClockMoved: ("warning", self._cron_clock_moved),
            SchedulingFailed: ("error", self._cron_trouble),
            CronReloaded: ("error", self._cron_reloaded),
            WorkerStopping: ("info", self._stopping),
            WorkerRenewed: ("info", self._renewed),
            WorkerQuietChanged: ("info", self._quieted),
            WorkerStopped: ("warning", self._stopped),
        }

    def _started(self, event: WorkerStarted) -> None:
        known = "any" if event.tasks is None else names(own(event.tasks))
        text = f"task names: {known}"
        if event.queues.only is not None:
            text += f"; queues: {names(event.queues.only)}"
        if event.queues.excluded:
            text += f"; excluded queues: {names(event.queues.excluded)}"
        self._core.info(f"Worker connected and looking for jobs... ({text})")

    def _job_started(self, event: JobStarted) -> None:
        self._worker(event.worker).debug(f"Started task {job(event)}, attempt {event.attempt}")

    def _job_ended(self, event: JobEnded) -> None:
        task = f"%s ({escape(event.task).replace('%', '%%')})"
        match event.ended:
            case AttemptOutcome.OK:
                self._log_end("info", event, f"Completed task {task} with success")
            case AttemptOutcome.SNOOZED:
                self._log_end("info", event, f"Snoozed task {task}")
            case AttemptOutcome.CANCELED:
                self._log_end("info", event, f"Canceled task {task}", because=event.error)
            case AttemptOutcome.RETRY:
                words = f"Failed task {task}, attempt %d/%d, retrying %s"
                again = f"in {format_short_duration(event.retry_in)}" if event.retry_in else "at once"
                self._log_end("warning", event, words, event.attempt, event.max_attempts, again, because=event.error)
            case AttemptOutcome.FAILED | AttemptOutcome.POISON:
                poison = ": poison" if event.ended is AttemptOutcome.POISON else ""
                words = f"Permanently failed task {task}{poison}, attempt %d/%d"
                self._log_end("error", event, words, event.attempt, event.max_attempts, because=event.error)

    def _log_end(self, level: str, event: JobEnded, words: str, *numbers: object, because: str | None = None) -> None:
        """Write the end of an attempt. Its message is constant for each task, so that Sentry and others group them."""
        facts: dict[str, Any] = {"outcome": event.ended.value, "duration": round(event.seconds, 6)}
        if numbers:
            facts["max_attempts"] = event.max_attempts
        values: tuple[object, ...] = (escape(str(event.job_id)), *numbers)
        if because:
            words, values = f"{words}: %s", (*values, escape(shorten(telling_line(because), ERROR_WIDTH)))
        trace = traceback_of(event.error) if numbers else None
        values = (*values, event.seconds * 1000)
        self._worker(event.worker).log_event(level, f"{words} (%.2fms)", facts, trace, values)

    def _job_lost(self, event: JobLost) -> None:
        self._worker(event.worker).warning(f"Lost the lease of task {job(event)}, nothing was recorded: {event.why}")

    def _job_unknown(self, event: JobUnknown) -> None:
        if event.ended is not None:
            how = "ended well" if event.ended is AttemptOutcome.OK else f"ended ({event.ended})"
            words = "the worker stopped before its end was recorded; it is reset when its lease expires"
            self._worker(event.worker).error(f"Not recorded: task {job(event)} {how}, but {words}")
            return
        self._worker(event.worker).warning(
            f"The connection broke while the end of task {job(event)} was recorded; the result is not known"
        )

    def _returned(self, event: JobsReturned) -> None:
        self._worker(event.worker).info(f"Returned {ids(event.job_ids)} to the queue, attempt not counted: {event.why}")

    def _reset(self, event: JobsReset) -> None:
        if len(event.jobs) > EACH:
            self._reset_many(event)
            return
        for one in event.jobs:
            what = f"task {escape(str(one.job_id))} ({escape(one.task)})"
            whose = f" {escape(one.worker)}" if one.worker else ""
            if one.state is State.FAILED:
                self._core.error(f"Permanently failed {what}: its workers died too often while running it")
            else:
                age = f", last heartbeat {one.heartbeat_age:.1f}s ago" if one.heartbeat_age is not None else ""
                self._core.warning(f"Reset {what}: worker{whose} lost{age}, state {one.state.value}")

    def _reset_many(self, event: JobsReset) -> None:
        """One line, however many workers died and whatever they held."""
        failed = [one for one in event.jobs if one.state is State.FAILED]
        became = ", ".join(
            f"{number} {state}" for state, number in Counter(one.state.value for one in event.jobs).items()
        )
        workers = sorted({escape(one.worker) for one in event.jobs if one.worker})
        whose = ", ".join(workers[:WORKERS_SHOWN])
        if len(workers) > WORKERS_SHOWN:
            whose += " …"
        which = ids(tuple(one.job_id for one in event.jobs))
        words = f"Reset {len(event.jobs)} tasks: workers lost ({whose or 'unnamed'}); {became}: {which}"
        facts = {"outcome": "reset", "jobs": len(event.jobs), "failed": len(failed)}
        self._core.log_event("error" if failed else "warning", words, facts)

    def _said(self, event: JobLogged) -> None:
        if event.job_id is None:
            logger = self._worker(event.worker)
        else:
            logger = self._new_logger(Scope("job", event.worker, event.task, event.job_id))
        getattr(logger, event.level)(event.message, event.facts)

    def _hook_failed(self, event: HookFailed) -> None:
        whose = f" of task {escape(str(event.job_id))}" if event.job_id is not None else ""
        self._worker(event.worker).error(f"{event.hook}{whose} raised: {short(telling_line(event.error))}")

    def _result_dropped(self, event: ResultDropped) -> None:
        self._core.warning(f"Completed task {job(event)}, but its result could not be kept: {event.why}")

    def _change_refused(self, event: ChangeRefused) -> None:
        what = f"{DONE.get(event.doing, event.doing)} task {escape(str(event.job_id))}"
        why = short(telling_line(event.why))
        self._core.warning(f"The database refuses to {what}; its lease will expire, and other jobs go on: {why}")

    def _trouble(self, event: StoreCallFailed) -> None:
        error = shorten(telling_line(event.error), ERROR_WIDTH)
        what = "No answer about forbidden flags" if event.doing == FLAGS else f"Store trouble ({event.doing})"
        facts = {"doing": event.doing, "retry_in": round(event.retry_in, 3), "error": event.error}
        self._worker(event.worker).log_event("error", f"{what}, again in {event.retry_in:.1f}s: {error}", facts)

    def _recovered(self, event: StoreRecovered) -> None:
        who = "The answer about forbidden flags" if event.doing == FLAGS else "The store"
        times = count(event.failures, "failure")
        facts = {"doing": event.doing, "failures": event.failures}
        self._worker(event.worker).log_event("info", f"{who} is back ({event.doing}, after {times})", facts)

    def _warned(self, event: StoreWarning) -> None:
        fix = f"; fix it with:\n{event.mend.rstrip()}" if event.mend else ""
        self._core.warning(f"{escape(event.store)}: {event.warning}{fix}")

    def _lease_ending(self, event: LeaseExpiring) -> None:
        self._worker(event.worker).error(
            f"The lease of task {escape(str(event.lease.job_id))} ({escape(event.task)}) expires, because no heartbeat"
            " reached the store; the attempt is stopped here, and the job will run again"
        )

    def _blocked(self, event: LoopBlocked) -> None:
        who = (
            f"task {escape(str(event.job_id))} ({escape(event.task or '')})"
            if event.job_id is not None
            else "something"
        )
        hung = "" if event.beating else "; it counts as hung, and leases are no longer renewed"
        self._worker(event.worker).warning(
            f"The event loop is blocked for {event.seconds:.1f}s by {who}{hung}. Stack:\n{event.stack.rstrip()}"
        )

    def _thread_abandoned(self, event: ThreadAbandoned) -> None:
        self._worker(event.worker).warning(
            f"Task {job(event)} was stopped, but its thread cannot be ended; its result will be ignored"
        )

    def _thread_ended(self, event: ThreadEnded) -> None:
        self._worker(event.worker).info(
            f"The abandoned thread of task {job(event)} has ended; still running: {event.left}"
        )

    def _threads_exhausted(self, event: ThreadsExhausted) -> None:
        self._worker(event.worker).error(
            f"{count(event.threads, 'thread')} outlived their attempts and cannot be stopped, as many as jobs may run"
            " at once; claiming nothing until one of them ends"
        )

    def _child_died(self, event: ChildDied) -> None:
        jobs = count(event.jobs, "job")
        self._worker(event.worker).error(f"Worker process {event.pid} exited unexpectedly ({event.how}); {jobs} reset")

    def _child_renewed(self, event: ChildRenewed) -> None:
        self._worker(event.worker).info(f"Worker process {event.pid} reached a limit and exited; starting another")

    def _reloaded(self, event: TasksReloaded) -> None:
        if event.problem is None:
            self._core.info(f"Loaded the tasks again (task names: {names(event.tasks)})")
        else:
            self._core.error(f"Cannot reload tasks; keeping the loaded ones: {event.problem}")

    def _cron_started(self, event: CronStarted) -> None:
        filled = f"; made up for {count(event.backfilled, 'missed tick')}" if event.backfilled else ""
        self._core.info(f"Scheduling {count(len(event.items), 'recurring task')}: {names(event.items)}{filled}")

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
            f" Ours: {short(event.ours)}; theirs: {short(event.theirs)}"
        )

    def _cron_clock_moved(self, event: CronClockMoved) -> None:
        if event.seconds < 0:
            words = f"went back by {-event.seconds:.0f}s; nothing is scheduled twice"
        else:
            words = f"went forward by {event.seconds:.0f}s, or this process slept; what was missed is scheduled now"
        self._core.warning(f"The store's clock {words}")

    def _cron_trouble(self, event: SchedulingFailed) -> None:
        again = f", again in {event.retry_in:.1f}s" if event.retry_in else ""
        self._core.error(f"Trouble with recurring tasks{again}: {short(telling_line(event.error))}")

    def _cron_reloaded(self, event: CronReloaded) -> None:
        if event.problem is None:
            self._core.info(f"Read the crontab again: {names(event.items)}")
        else:
            self._core.error(f"Cannot reload the crontab; keeping the loaded one ({names(event.items)}):")
            for line in event.problem.splitlines():
                self._core.error(f"  {short(line)}")

    def _quieted(self, event: WorkerQuietChanged) -> None:
        words = f"Quiet: claiming nothing new; running: {event.running}" if event.quiet else "Claiming jobs again"
        self._worker(event.worker).info(words)

    def _renewed(self, event: WorkerRenewed) -> None:
        self._worker(event.worker).info(
            f"Claiming nothing new: {event.reason}; ends when {count(event.running, 'running job')} ended"
        )

    def _stopping(self, event: WorkerStopping) -> None:
        jobs = count(event.running, "running job")
        words = f"Stopping now; returning {jobs} to the queue" if event.now else f"Stopping; waiting for {jobs}"
        self._worker(event.worker).info(words)

    def _stopped(self, event: WorkerStopped) -> None:
        logger = self._worker(event.worker)
        if event.unfinished:
            left = f"{event.unfinished} handlers could not be ended"
            logger.warning(f"Stopped; {left}; their jobs return to the queue when their leases expire, at the latest")
        else:
            logger.info("Stopped")

    def _worker(self, name: str) -> LineLogger:
        logger = self._workers.get(name)
        if logger is None:
            logger = self._workers[name] = self._new_logger(Scope("worker", name))
        return logger


def report_to_log(listener: object, event: Event, error: BaseException, logger: LineLogger | None = None) -> None:
    """A listener raised."""
    name = getattr(listener, "__qualname__", type(listener).__name__)
    words = f"A listener raised ({name}, for {type(event).__name__}): {type(error).__name__}: {error}"
    (logger or core_logger()).log_event("error", words, {"event": type(event).__name__}, traceback_of(describe(error)))


def _about_its_job(report: Callable[[Any], None]) -> Callable[[Any], None]:
    @wraps(report)
    def listener(event: Any) -> None:
        with about_job_of(event):
            report(event)

    return listener


AboutAJob = JobStarted | JobEnded | JobLost | JobUnknown | ResultDropped | ThreadAbandoned | ThreadEnded


def job(event: AboutAJob) -> str:
    """Which job: its id and its task."""
    return f"{escape(str(event.job_id))} ({escape(event.task)})"


def traceback_of(error: str | None) -> str | None:
    """What an error's text says beyond its first line: where it was raised."""
    _, _, rest = (error or "").partition("\n")
    return rest.strip() or None


def names(given: tuple[str, ...]) -> str:
    """Names in quotes; of many, the first."""
    shown = ", ".join(f"'{escape(name)}'" for name in given[:NAMES_SHOWN]) or "none"
    return shown + (f" and {len(given) - NAMES_SHOWN} more" if len(given) > NAMES_SHOWN else "")


def own(tasks: tuple[str, ...]) -> tuple[str, ...]:
    """Without those that every worker has; unless it has no others."""
    return tuple(task for task in tasks if task not in BUILT_IN) or tasks


def short(text: str) -> str:
    """One line of it, safe to print."""
    return escape(shorten(text, ERROR_WIDTH))


def count(number: int, what: str) -> str:
    """A number with its noun."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def ids(job_ids: tuple[JobId, ...]) -> str:
    """Which jobs; of many, the first."""
    shown = ", ".join(escape(str(job_id)) for job_id in job_ids[:NAMES_SHOWN])
    more = f" and {len(job_ids) - NAMES_SHOWN} more" if len(job_ids) > NAMES_SHOWN else ""
    return f"{'task' if len(job_ids) == 1 else 'tasks'} {shown}{more}"
