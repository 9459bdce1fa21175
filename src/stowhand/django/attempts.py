"""Attempts of Django's tasks in a worker: in a thread, or an ``async def`` in its own thread-sensitive context.

At the end of an attempt, connections are checked or closed in the thread that opened them. That thread also sends
Django's signals, never the worker's loop. They are sent before the outcome is recorded, so a receiver may be called
twice if the worker dies in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any

from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.db import connections
from django.tasks import base
from django.tasks.signals import task_finished, task_started
from django.utils import timezone
from django.utils.json import normalize_json
from msgspec.structs import replace

from stowhand.django.application import around_thread
from stowhand.django.results import AttemptTimedOut, JobCanceled, JobFailed, Status, error_of, result_of, timeout_of
from stowhand.jobs.job import Job
from stowhand.jobs.lifecycle import Cancel, Complete, Fail, Outcome, RaisableOutcome, Retry
from stowhand.jobs.outcomes import OUTCOMES, from_error, from_raised, from_returned
from stowhand.protocols.attempt import Attempt, Stop
from stowhand.protocols.handler import Handler
from stowhand.protocols.store import Claim
from stowhand.tasks.context import Context
from stowhand.worker.policy import Policy

if TYPE_CHECKING:
    from stowhand.django.backend import StowhandBackend

Function = Callable[..., Any]
PositionalArguments = list[Any] | None
NamedArguments = dict[str, Any] | None


class DjangoAttempt:
    """One attempt in Django's terms: its ``TaskResult`` and signals."""

    def __init__(self, backend: StowhandBackend, task: base.Task, job: Job, *, is_last: bool) -> None:
        self._sender = type(backend)
        self._task = task
        self._is_last = is_last
        tries = backend.database.jobs.tries(job.id) if job.attempts > 1 else ()
        self.result = result_of(job, tries, task, backend.alias)

    def call(self) -> Any:
        """Call the function with its enqueued arguments. Return its result, or the coroutine of an ``async def``."""
        if not self._task.takes_context:
            return self._task.func(*self.result.args, **self.result.kwargs)
        context = base.TaskContext(task_result=self.result)
        return self._task.func(context, *self.result.args, **self.result.kwargs)

    def start(self) -> None:
        """Send ``task_started``. Errors of receivers are logged and ignored, also in the methods below."""
        task_started.send_robust(sender=self._sender, task_result=self.result)

    def on_return(self, value: object) -> None:
        """Send ``task_finished`` for a returned value or raised outcome, if the job is finished."""
        match from_returned(value):
            case Complete(result):
                object.__setattr__(self.result, "_return_value", result)
                self._end(Status.SUCCESSFUL)
            case Cancel(reason):
                self.fail(error_of(JobCanceled(reason)))
            case Fail(error):
                self.fail(error_of(JobFailed(error)))
            case Retry(error) if self._is_last:
                self.fail(error_of(JobFailed(error)))

    def on_error(self, error: BaseException) -> None:
        """Send ``task_finished`` if the job is finished. Call it inside the handler, for ``sys.exc_info()``."""
        if self._is_last or isinstance(from_error(error), Fail):
            self.fail(error_of(error))

    def fail(self, error: base.TaskError) -> None:
        self.result.errors.append(error)
        self._end(Status.FAILED)

    def _end(self, status: Status) -> None:
        object.__setattr__(self.result, "status", status)
        object.__setattr__(self.result, "finished_at", timezone.now())
        task_finished.send_robust(sender=self._sender, task_result=self.result)


def function_of(backend: StowhandBackend, task: base.Task) -> Function:
    """Return the function that a worker calls for a job of this task, with the payload's ``args`` and ``kwargs``."""

    # The parameters are the names in the payload. ``DjangoAttempt`` reads the payload itself.
    def run(ctx: Context, args: PositionalArguments = None, kwargs: NamedArguments = None) -> Any:  # noqa: ARG001
        django_attempt = _running(backend, task, ctx)
        django_attempt.start()
        try:
            value = _value(django_attempt.call())
        except RaisableOutcome as raised:
            value = from_raised(raised)
        except BaseException as error:  # boundary: raised again; SystemExit is also an error of the attempt
            if not ctx.canceled:
                django_attempt.on_error(error)
            raise
        if not ctx.canceled:  # If it is canceled, ``StopMiddleware`` knows whether the outcome is recorded.
            django_attempt.on_return(value)
        return _outcome(value)

    async def run_async(ctx: Context, args: PositionalArguments = None, kwargs: NamedArguments = None) -> Any:  # noqa: ARG001
        # A separate task has its own context: other attempts on this loop must not share its thread.
        value, error = await asyncio.create_task(_run_in_context(backend, task, ctx))
        if error is not None:
            raise error
        return _outcome(value)

    return run_async if iscoroutinefunction(task.func) else run


async def _run_in_context(
    backend: StowhandBackend, task: base.Task, ctx: Context
) -> tuple[object, BaseException | None]:
    """Return the value and the error: a SystemExit raised in an asyncio task would end the worker."""
    async with ThreadSensitiveContext():
        try:
            django_attempt = await sync_to_async(_running)(backend, task, ctx)
            await sync_to_async(django_attempt.start)()
            try:
                value = _value(await django_attempt.call())
            except asyncio.CancelledError:
                raise
            except RaisableOutcome as raised:
                value = from_raised(raised)
            except BaseException as error:  # noqa: BLE001 - boundary: raised again by the caller
                traceback = error.__traceback__  # The other thread raises the error again, which changes it.
                await sync_to_async(django_attempt.on_error)(error)
                return None, error.with_traceback(traceback)
            await sync_to_async(django_attempt.on_return)(value)
            return value, None
        finally:
            await sync_to_async(connections.close_all)()


def _running(backend: StowhandBackend, task: base.Task, ctx: Context) -> DjangoAttempt:
    return DjangoAttempt(backend, task, ctx.job, is_last=ctx.attempt >= ctx.max_attempts)


def _value(value: object) -> object:
    """Return a value as Django's JSON, and an outcome (``Snooze``, …) unchanged. Raises TypeError for others."""
    return value if isinstance(value, OUTCOMES) else normalize_json(value)


def _outcome(value: object) -> object:
    """Return the outcome. A list is a result here, not a batch."""
    return value if isinstance(value, OUTCOMES) else Complete(value)


class StopMiddleware:
    """Middleware that sends ``task_finished`` if a stopped attempt was the end of its job."""

    def __init__(self, backend: StowhandBackend, inner: Handler) -> None:
        self._backend = backend
        self._inner = inner
        self._policy: Callable[[Claim[Job]], Policy] = getattr(inner, "policy", lambda _: Policy())

    def policy(self, claim: Claim[Job]) -> Policy:
        """Return the task's policy, with the timeout requested by the call."""
        policy, timeout = self._policy(claim), timeout_of(claim.record)
        return policy if timeout is None else replace(policy, timeout=timeout)

    async def handle(self, attempt: Attempt[Job], job: Job) -> object:
        try:
            value = await self._inner.handle(attempt, job)
        except asyncio.CancelledError:
            if (error := _error_of_stop(attempt)) is not None:
                await self._notify(job, None, error)
            raise
        except BaseException:  # boundary: raised again
            if self._is_stopped_thread(attempt, job):
                await self._notify(job, None, _canceled())
            raise
        if self._is_stopped_thread(attempt, job):
            await self._notify(job, from_returned(value), _canceled())
        return value

    def _is_stopped_thread(self, attempt: Attempt[Job], job: Job) -> bool:
        """Return whether this is a canceled ``def`` that finished in time."""
        task = self._backend.known().get(job.task)
        return task is not None and attempt.cancel_reason == Stop.CANCELED and not iscoroutinefunction(task.func)

    async def _notify(self, job: Job, outcome: Outcome | None, error: base.TaskError) -> None:
        """Send the signal. ``error``: the reason of the failure unless the job is completed."""
        task = self._backend.known().get(job.task)
        if task is not None:
            await asyncio.shield(asyncio.to_thread(self._send, task, job, outcome, error))

    def _send(self, task: base.Task, job: Job, outcome: Outcome | None, error: base.TaskError) -> None:
        with around_thread():
            try:
                django_attempt = DjangoAttempt(self._backend, task, job, is_last=True)
                if isinstance(outcome, Complete):
                    django_attempt.on_return(outcome)
                else:
                    django_attempt.fail(error)
            finally:
                connections.close_all()


def _error_of_stop(attempt: Attempt[Job]) -> base.TaskError | None:
    """Return the error of a stopped attempt; ``None`` if the job continues."""
    match attempt.cancel_reason:
        case Stop.TIMEOUT if attempt.attempt >= attempt.max_attempts:
            return error_of(AttemptTimedOut("timed out"))
        case Stop.CANCELED:
            return _canceled()
        case _:
            return None


def _canceled() -> base.TaskError:
    return error_of(JobCanceled("canceled while running"))


def options_of(task: base.Task) -> Mapping[str, Any]:
    """Return the task's options, for jobs of a schedule or of the command line."""
    options = {name: getattr(task, name, None) for name in ("timeout", "max_attempts", "key")}
    declared = {name: value for name, value in options.items() if value is not None}
    return {"queue": task.queue_name, "priority": -int(task.priority), **declared}
