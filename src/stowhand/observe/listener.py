"""Log lines for the events of a worker.

    [core] INFO: Worker connected and looking for jobs... (task names: 'hello')
    [worker(worker-7327)] INFO: Completed task 1 (hello) with success (0.16ms)

The listener receives only events whose lines the log level permits. An event without a listener is never created.
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
from stowhand.observe.attempt_context import bound_to_event
from stowhand.observe.job_logger import LineLogger, ScopedLogger, core_logger
from stowhand.observe.logs import Scope
from stowhand.observe.safe_text import escape, shorten, summary_line
from stowhand.protocols.operator import BUILT_IN_TASKS

FORBIDDEN_FLAGS_OPERATION = "forbidden flags"
"""Operation of a failed call of the application's own function, not of the store."""
JOB_EVENTS = (
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
"""Events whose lines belong to the job that they name."""
OPERATION_VERBS = {"beat": "renew the lease of", "release": "return", "reset": "reset"}
MAX_LINES_PER_EVENT = 3
"""Maximum number of jobs of an event with a line each; more jobs share a line."""
MAX_WORKERS_PER_LINE = 5
MAX_NAMES_PER_LINE = 50
"""Maximum number of task names and job ids in a line."""
MAX_ERROR_CHARS = 500
"""Maximum length of an error in a line."""
LATE_TICK_SECONDS = 60.0
"""Delay after which a scheduled tick counts as late."""


class LogListener:
    """Listener that writes a line for each event. Create one per worker process."""

    def __init__(self, events: Events, new_logger: Callable[[Scope], LineLogger] = ScopedLogger) -> None:
        self._new_logger = new_logger
        self._workers: dict[str, LineLogger] = {}
        self._core = new_logger(Scope("core"))
        for kind, (level, listener) in self._listeners().items():
            if self._core.enabled(level):
                events.on(
                    kind,
                    _bind_attempt(listener) if kind in JOB_EVENTS else listener,
                    success=self._core.enabled("info"),
                )
        if events.on_listener_error is None:
            events.on_listener_error = partial(report_to_log, logger=self._core)

    def _listeners(self) -> dict[type[Event], tuple[str, Callable[[Any], None]]]:
        """Return the listener of each event, with the most severe level that it writes."""
        return {
            WorkerStarted: ("info", self._started),
            JobStarted: ("debug", self._job_started),
            JobEnded: ("error", self._job_ended),
            JobLost: ("warning", self._job_lost),
            JobUnknown: ("error", self._job_unknown),
            JobsReturned: ("info", self._returned),
            JobsReset: ("warning", self._reset),
            JobLogged: ("error", self._task_logged),
            HookFailed: ("error", self._hook_failed),
            ResultDropped: ("warning", self._result_dropped),
            ChangeRefused: ("warning", self._change_refused),
            StoreCallFailed: ("error", self._store_call_failed),
            StoreRecovered: ("info", self._recovered),
            StoreWarning: ("warning", self._store_warning),
            LeaseExpiring: ("error", self._lease_ending),
            LoopBlocked: ("warning", self._loop_blocked),
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
            SchedulingFailed: ("error", self._scheduling_failed),
            CronReloaded: ("error", self._cron_reloaded),
            WorkerStopping: ("info", self._stopping),
            WorkerRenewed: ("info", self._renewed),
            WorkerQuietChanged: ("info", self._quiet_changed),
            WorkerStopped: ("warning", self._stopped),
        }

    def _started(self, event: WorkerStarted) -> None:
        task_names = "any" if event.tasks is None else names(without_built_in(event.tasks))
        text = f"task names: {task_names}"
        if event.queues.only is not None:
            text += f"; queues: {names(event.queues.only)}"
        if event.queues.excluded:
            text += f"; excluded queues: {names(event.queues.excluded)}"
        self._core.info(f"Worker connected and looking for jobs... ({text})")

    def _job_started(self, event: JobStarted) -> None:
        self._worker(event.worker).debug(f"Started task {job_label(event)}, attempt {event.attempt}")

    def _job_ended(self, event: JobEnded) -> None:
        task = f"%s ({escape(event.task).replace('%', '%%')})"
        match event.outcome:
            case AttemptOutcome.OK:
                self._log_end("info", event, f"Completed task {task} with success")
            case AttemptOutcome.SNOOZED:
                self._log_end("info", event, f"Snoozed task {task}")
            case AttemptOutcome.WAITING:
                self._log_end("info", event, f"Waiting task {task}")
            case AttemptOutcome.CANCELED:
                self._log_end("info", event, f"Canceled task {task}", error=event.error)
            case AttemptOutcome.RETRY:
                message = f"Failed task {task}, attempt %d/%d, retrying %s"
                delay = f"in {format_short_duration(event.retry_in)}" if event.retry_in else "at once"
                self._log_end("warning", event, message, event.attempt, event.max_attempts, delay, error=event.error)
            case AttemptOutcome.FAILED | AttemptOutcome.POISON:
                poison = ": poison" if event.outcome is AttemptOutcome.POISON else ""
                message = f"Permanently failed task {task}{poison}, attempt %d/%d"
                self._log_end("error", event, message, event.attempt, event.max_attempts, error=event.error)

    def _log_end(self, level: str, event: JobEnded, message: str, *numbers: object, error: str | None = None) -> None:
        """Write the end of an attempt. The message is constant per task, so that Sentry can group the lines."""
        facts: dict[str, Any] = {"outcome": event.outcome.value, "duration": round(event.seconds, 6)}
        if numbers:
            facts["max_attempts"] = event.max_attempts
        values: tuple[object, ...] = (escape(str(event.job_id)), *numbers)
        if error:
            message, values = f"{message}: %s", (*values, escape(shorten(summary_line(error), MAX_ERROR_CHARS)))
        trace = traceback_of(event.error) if numbers else None
        values = (*values, event.seconds * 1000)
        self._worker(event.worker).log_event(level, f"{message} (%.2fms)", facts, trace, values)

    def _job_lost(self, event: JobLost) -> None:
        self._worker(event.worker).warning(
            f"Lost the lease of task {job_label(event)}; nothing was recorded: {event.reason}"
        )

    def _job_unknown(self, event: JobUnknown) -> None:
        if event.outcome is not None:
            ending = "succeeded" if event.outcome is AttemptOutcome.OK else f"ended ({event.outcome})"
            message = "the worker stopped before the outcome was recorded; the job is reset when its lease expires"
            self._worker(event.worker).error(f"Not recorded: task {job_label(event)} {ending}, but {message}")
            return
        self._worker(event.worker).warning(
            f"The connection broke while the outcome of task {job_label(event)} was recorded; the result is not known"
        )

    def _returned(self, event: JobsReturned) -> None:
        self._worker(event.worker).info(
            f"Returned {ids(event.job_ids)} to the queue, attempt not counted: {event.reason}"
        )

    def _reset(self, event: JobsReset) -> None:
        if len(event.jobs) > MAX_LINES_PER_EVENT:
            self._reset_many(event)
            return
        for job in event.jobs:
            label = f"task {escape(str(job.job_id))} ({escape(job.task)})"
            worker = f" {escape(job.worker)}" if job.worker else ""
            if job.state is State.FAILED:
                self._core.error(f"Permanently failed {label}: its workers died too often while running it")
            else:
                age = f", last heartbeat {job.heartbeat_age:.1f}s ago" if job.heartbeat_age is not None else ""
                self._core.warning(f"Reset {label}: worker{worker} lost{age}, state {job.state.value}")

    def _reset_many(self, event: JobsReset) -> None:
        """Write one line for many reset jobs."""
        failed = [job for job in event.jobs if job.state is State.FAILED]
        counts_by_state = ", ".join(
            f"{number} {state}" for state, number in Counter(job.state.value for job in event.jobs).items()
        )
        workers = sorted({escape(job.worker) for job in event.jobs if job.worker})
        worker_names = ", ".join(workers[:MAX_WORKERS_PER_LINE])
        if len(workers) > MAX_WORKERS_PER_LINE:
            worker_names += " …"
        job_ids = ids(tuple(job.job_id for job in event.jobs))
        message = (
            f"Reset {len(event.jobs)} tasks: workers lost ({worker_names or 'unnamed'}); {counts_by_state}: {job_ids}"
        )
        facts = {"outcome": "reset", "jobs": len(event.jobs), "failed": len(failed)}
        self._core.log_event("error" if failed else "warning", message, facts)

    def _task_logged(self, event: JobLogged) -> None:
        if event.job_id is None:
            logger = self._worker(event.worker)
        else:
            logger = self._new_logger(Scope("job", event.worker, event.task, event.job_id))
        getattr(logger, event.level)(event.message, event.fields)

    def _hook_failed(self, event: HookFailed) -> None:
        of_task = f" of task {escape(str(event.job_id))}" if event.job_id is not None else ""
        self._worker(event.worker).error(f"{event.hook}{of_task} raised: {one_line(summary_line(event.error))}")

    def _result_dropped(self, event: ResultDropped) -> None:
        self._core.warning(f"Completed task {job_label(event)}, but its result could not be kept: {event.reason}")

    def _change_refused(self, event: ChangeRefused) -> None:
        operation = f"{OPERATION_VERBS.get(event.operation, event.operation)} task {escape(str(event.job_id))}"
        reason = one_line(summary_line(event.reason))
        self._core.warning(
            f"The database refuses to {operation}; its lease will expire, and other jobs continue: {reason}"
        )

    def _store_call_failed(self, event: StoreCallFailed) -> None:
        error = shorten(summary_line(event.error), MAX_ERROR_CHARS)
        failure = (
            "No answer about forbidden flags"
            if event.operation == FORBIDDEN_FLAGS_OPERATION
            else f"Store call failed ({event.operation})"
        )
        facts = {"doing": event.operation, "retry_in": round(event.retry_in, 3), "error": event.error}
        self._worker(event.worker).log_event("error", f"{failure}, retrying in {event.retry_in:.1f}s: {error}", facts)

    def _recovered(self, event: StoreRecovered) -> None:
        source = "The answer about forbidden flags" if event.operation == FORBIDDEN_FLAGS_OPERATION else "The store"
        times = count(event.failures, "failure")
        facts = {"doing": event.operation, "failures": event.failures}
        self._worker(event.worker).log_event("info", f"{source} is back ({event.operation}, after {times})", facts)

    def _store_warning(self, event: StoreWarning) -> None:
        fix = f"; fix it with:\n{event.fix.rstrip()}" if event.fix else ""
        self._core.warning(f"{escape(event.store)}: {event.warning}{fix}")

    def _lease_ending(self, event: LeaseExpiring) -> None:
        self._worker(event.worker).error(
            f"The lease of task {escape(str(event.lease.job_id))} ({escape(event.task)}) expires, because no heartbeat"
            " reached the store; the attempt is stopped here, and the job will run again"
        )

    def _loop_blocked(self, event: LoopBlocked) -> None:
        source = (
            f"task {escape(str(event.job_id))} ({escape(event.task or '')})"
            if event.job_id is not None
            else "a part of the worker"
        )
        hung = "" if event.is_lease_renewed else "; the worker counts as hung, and leases are no longer renewed"
        self._worker(event.worker).warning(
            f"The event loop has been blocked for {event.seconds:.1f}s by {source}{hung}. Stack:\n"
            f"{event.stack.rstrip()}"
        )

    def _thread_abandoned(self, event: ThreadAbandoned) -> None:
        self._worker(event.worker).warning(
            f"Task {job_label(event)} was stopped, but its thread cannot be stopped; its result will be ignored"
        )

    def _thread_ended(self, event: ThreadEnded) -> None:
        self._worker(event.worker).info(
            f"The abandoned thread of task {job_label(event)} has ended; still running: {event.remaining}"
        )

    def _threads_exhausted(self, event: ThreadsExhausted) -> None:
        self._worker(event.worker).error(
            f"{count(event.threads, 'abandoned thread')} cannot be stopped, as many as the worker has slots;"
            " claiming nothing until one of them ends"
        )

    def _child_died(self, event: ChildDied) -> None:
        jobs = count(event.jobs, "job")
        self._worker(event.worker).error(
            f"Worker process {event.pid} exited unexpectedly ({event.cause}); {jobs} reset"
        )

    def _child_renewed(self, event: ChildRenewed) -> None:
        self._worker(event.worker).info(f"Worker process {event.pid} reached a limit and exited; starting another")

    def _reloaded(self, event: TasksReloaded) -> None:
        if event.problem is None:
            self._core.info(f"Reloaded the tasks (task names: {names(event.tasks)})")
        else:
            self._core.error(f"Cannot reload tasks; keeping the loaded ones: {event.problem}")

    def _cron_started(self, event: CronStarted) -> None:
        backfill = f"; backfilled {count(event.backfilled, 'missed tick')}" if event.backfilled else ""
        self._core.info(f"Scheduling {count(len(event.items), 'recurring task')}: {names(event.items)}{backfill}")

    def _cron_scheduled(self, event: CronScheduled) -> None:
        name = "" if event.identifier == event.task else f", {escape(event.identifier)}"
        late = f", {event.late:.0f}s late" if event.late >= LATE_TICK_SECONDS else ""
        # Many ticks may be backfilled at once; CronStarted reports their number.
        log = self._core.debug if event.backfilled else self._core.info
        log(f"Scheduled task {event.job_id} ({escape(event.task)}{name}) for {event.tick:%Y-%m-%d %H:%M}Z{late}")

    def _cron_conflict(self, event: CronConflict) -> None:
        self._core.warning(
            f"Another worker has a different recurring task with the identifier {escape(event.identifier)}; for"
            f" {event.tick:%Y-%m-%d %H:%M}Z its job was created, not that of this worker; change one of the ids."
            f" This worker: {one_line(event.own_spec)}; the other: {one_line(event.other_spec)}"
        )

    def _cron_clock_moved(self, event: CronClockMoved) -> None:
        if event.seconds < 0:
            message = f"went back by {-event.seconds:.0f}s; nothing is scheduled twice"
        else:
            message = f"went forward by {event.seconds:.0f}s, or this process slept; missed ticks are scheduled now"
        self._core.warning(f"The store's clock {message}")

    def _scheduling_failed(self, event: SchedulingFailed) -> None:
        delay = f", retrying in {event.retry_in:.1f}s" if event.retry_in else ""
        self._core.error(f"Cannot schedule recurring tasks{delay}: {one_line(summary_line(event.error))}")

    def _cron_reloaded(self, event: CronReloaded) -> None:
        if event.problem is None:
            self._core.info(f"Reloaded the crontab: {names(event.items)}")
        else:
            self._core.error(f"Cannot reload the crontab; keeping the loaded one ({names(event.items)}):")
            for line in event.problem.splitlines():
                self._core.error(f"  {one_line(line)}")

    def _quiet_changed(self, event: WorkerQuietChanged) -> None:
        message = f"Quiet: claiming nothing new; running: {event.running}" if event.is_quiet else "Claiming jobs again"
        self._worker(event.worker).info(message)

    def _renewed(self, event: WorkerRenewed) -> None:
        self._worker(event.worker).info(
            f"Claiming nothing new: {event.reason}; stopping after {count(event.running, 'running job')}"
        )

    def _stopping(self, event: WorkerStopping) -> None:
        message = "Stopping now" if event.is_immediate else "Stopping"
        if event.running:
            jobs = count(event.running, "running job")
            message += f"; returning {jobs} to the queue" if event.is_immediate else f"; waiting for {jobs}"
        self._worker(event.worker).info(message)

    def _stopped(self, event: WorkerStopped) -> None:
        logger = self._worker(event.worker)
        if event.unfinished:
            handlers = count(event.unfinished, "handler")
            logger.warning(
                f"Stopped; {handlers} could not be stopped; the jobs return to the queue when their leases expire,"
                " at the latest"
            )
        else:
            logger.info("Stopped")

    def _worker(self, name: str) -> LineLogger:
        logger = self._workers.get(name)
        if logger is None:
            logger = self._workers[name] = self._new_logger(Scope("worker", name))
        return logger


def report_to_log(listener: object, event: Event, error: BaseException, logger: LineLogger | None = None) -> None:
    """Log that a listener raised."""
    name = getattr(listener, "__qualname__", type(listener).__name__)
    message = f"A listener raised ({name}, for {type(event).__name__}): {type(error).__name__}: {error}"
    (logger or core_logger()).log_event(
        "error", message, {"event": type(event).__name__}, traceback_of(describe(error))
    )


def _bind_attempt(report: Callable[[Any], None]) -> Callable[[Any], None]:
    @wraps(report)
    def listener(event: Any) -> None:
        with bound_to_event(event):
            report(event)

    return listener


JobEvent = JobStarted | JobEnded | JobLost | JobUnknown | ResultDropped | ThreadAbandoned | ThreadEnded


def job_label(event: JobEvent) -> str:
    """Return the id and the task of a job."""
    return f"{escape(str(event.job_id))} ({escape(event.task)})"


def traceback_of(error: str | None) -> str | None:
    """Return the error text after its first line: the traceback; ``None`` if there is none."""
    _, _, rest = (error or "").partition("\n")
    return rest.strip() or None


def names(all_names: tuple[str, ...]) -> str:
    """Return the first names in quotes."""
    text = ", ".join(f"'{escape(name)}'" for name in all_names[:MAX_NAMES_PER_LINE]) or "none"
    return text + (f" and {len(all_names) - MAX_NAMES_PER_LINE} more" if len(all_names) > MAX_NAMES_PER_LINE else "")


def without_built_in(tasks: tuple[str, ...]) -> tuple[str, ...]:
    """Return the tasks without the built-in ones, unless there are no others."""
    return tuple(task for task in tasks if task not in BUILT_IN_TASKS) or tasks


def one_line(text: str) -> str:
    """Return the text shortened to one safe line."""
    return escape(shorten(text, MAX_ERROR_CHARS))


def count(number: int, noun: str) -> str:
    """Return a number with its noun."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def ids(job_ids: tuple[JobId, ...]) -> str:
    """Return the first job ids."""
    text = ", ".join(escape(str(job_id)) for job_id in job_ids[:MAX_NAMES_PER_LINE])
    more = f" and {len(job_ids) - MAX_NAMES_PER_LINE} more" if len(job_ids) > MAX_NAMES_PER_LINE else ""
    return f"{'task' if len(job_ids) == 1 else 'tasks'} {text}{more}"
