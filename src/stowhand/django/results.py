"""A job as Django's ``TaskResult``, with its states, errors and workers."""

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
"""Worker of an attempt without a stored name."""
TIMEOUT_KEY = "_timeout"
"""Key of the payload for the timeout of one call, beside ``args`` and ``kwargs``. Older workers ignore it."""


class JobCanceled(Exception):
    """Error of a FAILED result: the job was canceled, or it expired."""


class WorkerDied(Exception):
    """Error of an attempt whose worker died while running it."""


class AttemptTimedOut(Exception):
    """Error of an attempt that took longer than its task's ``timeout``."""


class FailedByHand(Exception):
    """Error of a FAILED result: a user failed the job."""


class JobFailed(Exception):
    """Error of an attempt without an exception: it returned ``Fail`` or ``Retry``, or its arguments did not fit."""


_ERRORS_BY_CLASS = {WORKER_DIED: WorkerDied, TIMED_OUT: AttemptTimedOut, BY_HAND: FailedByHand}


def result_of(job: Job, tries: Sequence[FailedAttempt], task: base.Task, backend: str) -> base.TaskResult:
    """Return a job's ``TaskResult``. ``task``: as declared. It has the errors since the last manual retry."""
    args, kwargs = arguments_of(job)
    last_round = max((attempt.round for attempt in tries), default=0)
    current = [attempt for attempt in tries if attempt.round == last_round]
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
    """Return the arguments in a job's payload. Raises UndecodablePayload for another program's payload."""
    payload = job.payload
    if not isinstance(payload, dict) or payload.keys() - {"args", "kwargs"} - _extra(payload):
        raise UndecodablePayload(f"job {job.id}: its payload is not Django's {{args, kwargs}}")
    args, kwargs = payload.get("args", []), payload.get("kwargs", {})
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        raise UndecodablePayload(f"job {job.id}: args must be a list, and kwargs an object")
    return args, kwargs


def _extra(payload: dict[str, Any]) -> set[str]:
    """Return the names that start with ``_``, which other producers may add, such as ``_cron``."""
    return {name for name in payload if name.startswith("_")}


def timeout_of(job: Job) -> float | None:
    """Return the call's timeout in seconds; ``None`` for the task's own. An invalid duration is ignored."""
    with suppress(UndecodablePayload, ValueError):
        if TIMEOUT_KEY in job.payload_text and isinstance(job.payload, dict) and TIMEOUT_KEY in job.payload:
            requested = seconds(job.payload[TIMEOUT_KEY])
            return requested if 0 < requested <= MAX_DURATION_SECONDS else None
    return None


def written_timeout(timeout: Duration) -> float | str:
    """Return a timeout as a value for a payload."""
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
    """Return the task with the changes that Django's rules allow.

    A job may break them: SQL may set any priority, and QUEUES may have lost a queue. Such a value stays as declared.
    """
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
    """Return the errors. Only the job has the complete text of the newest one."""
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
    """Return Django's error of an exception."""
    return base.TaskError(exception_class_path=_class_path(type(error)), traceback=_traceback(describe(error)))


def _error(kind: type[BaseException], text: str) -> base.TaskError:
    return base.TaskError(exception_class_path=_class_path(kind), traceback=_traceback(text))


def _traceback(text: str) -> str:
    """Return the traceback without the error's first line, with which our texts start."""
    _, mark, rest = text.partition("\nTraceback (most recent call last):")
    return f"{(mark + rest).strip() or text.rstrip()}\n"


def _path(attempt: FailedAttempt) -> str:
    """Return the path of an error's class. Built-in classes are stored by name alone."""
    if attempt.error_class is None:
        return _class_path(JobFailed)
    if attempt.error_class in _ERRORS_BY_CLASS:
        return _class_path(_ERRORS_BY_CLASS[attempt.error_class])
    return attempt.error_class if "." in attempt.error_class else f"builtins.{attempt.error_class}"


def _class_path(kind: type[BaseException]) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _workers(job: Job, tries: Sequence[FailedAttempt]) -> list[str]:
    """Return one worker for each attempt, in order. Missing names are filled in: Django counts attempts by them."""
    names = {attempt.number: attempt.worker for attempt in tries if attempt.worker}
    if job.attempts and (last := job.worker or job.last_worker):
        names[job.attempts] = last  # An attempt that died with its worker is not counted.
    return [names.get(number) or UNKNOWN_WORKER for number in range(1, job.attempts + 1)]
