"""A job of ours as Django's ``TaskResult``, and back: what Django calls its states, errors and workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from django.tasks import base
from django.tasks.exceptions import InvalidTask

from stowhand.django.task import Task
from stowhand.errors import UndecodablePayload
from stowhand.jobs.durations import MAX_DURATION_SECONDS, Duration, seconds
from stowhand.jobs.failed_attempts import BY_HAND, TIMED_OUT, WORKER_DIED, AttemptEnd, FailedAttempt
from stowhand.jobs.job import Job, State
from stowhand.jobs.outcomes import describe

Status = base.TaskResultStatus
_STATUS = {
    State.QUEUED: Status.READY,
    State.ERRORED: Status.READY,  # "or is ready to be executed again"
    State.PROCESSING: Status.RUNNING,
    State.COMPLETED: Status.SUCCESSFUL,
    State.FAILED: Status.FAILED,
    State.CANCELED: Status.FAILED,
}
UNKNOWN_WORKER = "unknown"
"""The worker of an attempt of which no name was kept."""
TIMEOUT_KEY = "_timeout"
"""In a payload, beside ``args`` and ``kwargs``: what one call has asked for. A worker that does not know it yet goes by
the task's own."""


class JobCanceled(Exception):
    """Of a result that is FAILED: the job was canceled, or it expired."""


class WorkerDied(Exception):
    """Of an attempt: its worker died while running it."""


class AttemptTimedOut(Exception):
    """Of an attempt: it took longer than its task's ``timeout``."""


class FailedByHand(Exception):
    """Of a result that is FAILED: somebody failed the job."""


class JobFailed(Exception):
    """Of an attempt that gave no exception: it returned ``Fail`` or ``Retry``, or its arguments did not fit."""


_ERRORS_BY_CLASS = {WORKER_DIED: WorkerDied, TIMED_OUT: AttemptTimedOut, BY_HAND: FailedByHand}


def result_of(job: Job, tries: Sequence[FailedAttempt], task: base.Task, backend: str) -> base.TaskResult:
    """``task``: as it is declared. Errors are those since the job was last retried by hand."""
    args, kwargs = arguments_of(job)
    current = [attempt for attempt in tries if attempt.round == max(attempt_of_job.round for attempt_of_job in tries)]
    result = base.TaskResult(
        task=_as_enqueued(job, task, backend),
        id=str(job.id),
        status=_STATUS[job.state],
        enqueued_at=job.created_at,
        started_at=_first_start(job, current),
        finished_at=job.finished_at,
        last_attempted_at=job.started_at if job.attempts else None,
        args=args,
        kwargs=kwargs,
        backend=backend,
        errors=_errors(job, current),
        worker_ids=_workers(job, current),
    )
    if job.state is State.COMPLETED:
        object.__setattr__(result, "_return_value", job.result)
    return result


def arguments_of(job: Job) -> tuple[list[Any], dict[str, Any]]:
    """What ``payload_of`` wrote. Raises UndecodablePayload for what another program wrote."""
    payload = job.payload
    if not isinstance(payload, dict) or payload.keys() - {"args", "kwargs"} - _extra(payload):
        raise UndecodablePayload(f"job {job.id}: its payload is no {{args, kwargs}} of Django's")
    args, kwargs = payload.get("args", []), payload.get("kwargs", {})
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        raise UndecodablePayload(f"job {job.id}: args is a list, and kwargs an object")
    return args, kwargs


def _extra(payload: dict[str, Any]) -> set[str]:
    """Names that begin with ``_`` belong to the enqueuer, as ``_cron``."""
    return {name for name in payload if name.startswith("_")}


def timeout_of(job: Job) -> float | None:
    """Seconds that this call has asked for; ``None``: those of its task. What is no duration counts for nothing."""
    with suppress(UndecodablePayload, ValueError):
        if TIMEOUT_KEY in job.payload_text and isinstance(job.payload, dict) and TIMEOUT_KEY in job.payload:
            requested = seconds(job.payload[TIMEOUT_KEY])
            return requested if 0 < requested <= MAX_DURATION_SECONDS else None
    return None


def written_timeout(timeout: Duration) -> float | str:
    """As a payload has it."""
    return timeout if isinstance(timeout, str) else seconds(timeout)


def _as_enqueued(job: Job, task: base.Task, backend: str) -> base.Task:
    changes: dict[str, Any] = {}
    if task.backend != backend:
        changes["backend"] = backend
    if -job.priority != task.priority:
        changes["priority"] = -job.priority
    if job.queue != task.queue_name:
        changes["queue_name"] = job.queue
    if isinstance(task, Task):
        if job.key != task.key:
            changes["key"] = job.key
        if timeout_of(job) is not None:
            changes["timeout"] = job.payload[TIMEOUT_KEY]
    if not job.attempts and job.run_at > (job.updated_at or job.created_at):
        changes["run_after"] = job.run_at
    return _changed(task, changes) if changes else task


def _changed(task: base.Task, changes: Mapping[str, Any]) -> base.Task:
    """Django has rules for tasks that a job need not keep: a priority may have been given by SQL, a queue may be taken
    out of QUEUES. Such a one stays as declared, and the job runs."""
    try:
        return replace(task, **changes)
    except InvalidTask:
        for name, value in changes.items():
            with suppress(InvalidTask):
                task = replace(task, **{name: value})
        return task


def _first_start(job: Job, tries: Sequence[FailedAttempt]) -> Any:
    starts = [attempt.started_at for attempt in tries if attempt.started_at is not None]
    return min(starts) if starts else job.started_at


def _errors(job: Job, tries: Sequence[FailedAttempt]) -> list[base.TaskError]:
    """The newest has its whole text in the job. An attempt that canceled the job is what canceled it."""
    tries = [attempt for attempt in tries if attempt.outcome is not AttemptEnd.CANCELED]
    errors = [
        base.TaskError(exception_class_path=_path(attempt), traceback=_traceback(_text(attempt))) for attempt in tries
    ]
    if job.state is State.CANCELED:
        errors.append(_error(JobCanceled, job.last_error or "canceled"))
    elif job.state in (State.ERRORED, State.FAILED) and job.last_error:
        last = errors.pop().exception_class_path if errors else _class_path(JobFailed)
        errors.append(base.TaskError(exception_class_path=last, traceback=_traceback(job.last_error)))
    return errors


def _text(attempt: FailedAttempt) -> str:
    if attempt.error is None and attempt.error_class == WORKER_DIED:
        return f"the worker {attempt.worker or UNKNOWN_WORKER} died while running it"
    return attempt.error or ""


def error_of(error: BaseException) -> base.TaskError:
    """As Django has it of an exception."""
    return base.TaskError(exception_class_path=_class_path(type(error)), traceback=_traceback(describe(error)))


def _error(kind: type[BaseException], text: str) -> base.TaskError:
    return base.TaskError(exception_class_path=_class_path(kind), traceback=_traceback(text))


def _traceback(text: str) -> str:
    """We keep the error's first line above its traceback, and Django has the traceback alone."""
    _, mark, rest = text.partition("\nTraceback (most recent call last):")
    return f"{(mark + rest).strip() or text.rstrip()}\n"


def _path(attempt: FailedAttempt) -> str:
    """Of a built-in class we keep the name alone."""
    if attempt.error_class is None:
        return _class_path(JobFailed)
    if attempt.error_class in _ERRORS_BY_CLASS:
        return _class_path(_ERRORS_BY_CLASS[attempt.error_class])
    return attempt.error_class if "." in attempt.error_class else f"builtins.{attempt.error_class}"


def _class_path(kind: type[BaseException]) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _workers(job: Job, tries: Sequence[FailedAttempt]) -> list[str]:
    """One for each attempt, the last one's last. What no name was kept of is filled up: their number is Django's count
    of attempts."""
    names = {attempt.number: attempt.worker for attempt in tries if attempt.worker}
    if job.attempts and (last := job.worker or job.last_worker):
        names[job.attempts] = last  # an attempt that died with its worker gave its number back
    return [names.get(number) or UNKNOWN_WORKER for number in range(1, job.attempts + 1)]
