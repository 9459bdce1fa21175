"""Handler of a step: calls the worker function, and turns its result into an outcome."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import msgspec

from stowhand.clock import wall_clock
from stowhand.errors import ConfigurationError, InvalidJob, Poison, UndecodablePayload, a_type
from stowhand.flows.engine import Engine
from stowhand.flows.job import FlowJob
from stowhand.flows.new_job import size_limit
from stowhand.jobs import strict_json
from stowhand.jobs.durations import Duration, seconds
from stowhand.jobs.lifecycle import Cancel, Complete, Fail, Outcome, RaisableOutcome, Retry, Snooze
from stowhand.jobs.outcomes import describe, from_raised, is_final
from stowhand.jobs.strict_json import encode_plain
from stowhand.jobs.text import clean
from stowhand.observe.propagation import bound_correlation_id
from stowhand.protocols.attempt import Attempt, Stop
from stowhand.protocols.flow_shape import RESERVED_FIELDS, FlowQueue
from stowhand.protocols.handler import is_async
from stowhand.protocols.store import Claim
from stowhand.retry import constant
from stowhand.tasks.threads import Threads
from stowhand.worker.policy import Policy, with_wait

WorkerFunction = Callable[[FlowJob], Awaitable[object] | object]
NO_DELAY = constant(0.0)
NEXT_QUEUE_NAMES = ("next_queue", "nextQueue")


class DelayError(Exception):
    """Raised by a worker function to run the job later. The attempt is not counted.

    ``delay``: seconds from now, a timedelta or a phrase; ``ready_at``: a moment instead, in seconds since the epoch.
    """

    def __init__(
        self, reason: str = "asked to wait", delay: Duration | None = None, *, ready_at: float | None = None
    ) -> None:
        if (delay is None) == (ready_at is None):
            raise ConfigurationError("DelayError: use either a delay or ready_at")
        super().__init__(reason)
        self.reason = reason
        self.ready_at = ready_at
        try:
            self.delay = None if delay is None else seconds(delay)
        except ValueError as error:
            raise ConfigurationError(f"DelayError: delay: {error}") from None


class StepHandler:
    """Handler of a queue's worker.

    ``function``: ``None`` for a parent's queue, which fans out and gathers. ``lock_time``: maximum seconds of a call.
    """

    def __init__(
        self,
        engine: Engine,
        queue: FlowQueue,
        function: WorkerFunction | None = None,
        lock_time: float | None = None,
        now: Callable[[], float] = lambda: wall_clock().timestamp(),
    ) -> None:
        self._engine = engine
        self._queue = queue
        self._lock_time = lock_time
        self._function = function
        self._is_async = function is not None and is_async(function)
        self._threads: Threads | None = None
        self._now = now
        """Seconds since the epoch, for ``DelayError(ready_at=…)``."""
        self._policy = Policy(timeout=lock_time, backoff=queue.declared.backoff or NO_DELAY)

    def policy(self, claim: Claim[Any]) -> Policy:
        """Return the policy, which is the same for every job of the queue."""
        return self._policy

    def encode(self, result: object) -> str:
        """Return the result of a completed step as JSON text."""
        return self._engine.encode(result)

    def close(self) -> None:
        """End idle threads."""
        if self._threads is not None:
            self._threads.close()
            self._threads = None

    async def handle(self, ctx: Attempt[Any], record: Any) -> Outcome:
        """Execute the step. Errors of the function become outcomes; the job stores only the message.

        A parent fans out, gathers, or keeps waiting without a slot.
        """
        try:
            job = self._engine.job(self._queue, ctx, record)
        except UndecodablePayload as error:
            return Fail(clean(str(error)), poison=True)
        with bound_correlation_id(job.correlation_id):
            outcome = await self._engine.check_start(self._queue, job)
            if outcome is not None:
                return outcome
            if self._function is None:
                return await self._engine.parent(self._queue, job)
            try:
                return await self._run(job, self._function)
            except DelayError as error:
                return self._postponed(job, error)
            except Exception as error:  # noqa: BLE001 - boundary: the application's code
                return self._failed(job, error)

    async def _run(self, job: FlowJob, function: WorkerFunction) -> Outcome:
        try:
            result = await self._call(job, function)
        except asyncio.CancelledError:
            if job.ctx.cancel_reason == Stop.TIMEOUT:
                return self._timed_out()
            raise
        except RaisableOutcome as raised:
            result = from_raised(raised)
        if job.ctx.cancel_reason == Stop.TIMEOUT:
            return self._timed_out()  # the function suppressed its cancellation: its late result is ignored
        return await self._ended(job, result)

    async def _call(self, job: FlowJob, function: WorkerFunction) -> object:
        if self._is_async:
            return await function(job)  # type: ignore[misc]
        if self._threads is None:
            self._threads = Threads()
        result = await self._threads.run_handler(job.ctx, partial(function, job))
        return await result if inspect.isawaitable(result) else result

    def _timed_out(self) -> Outcome:
        return Retry(f"Execution timeout of {self._lock_time:g} seconds exceeded")

    def _postponed(self, job: FlowJob, error: DelayError) -> Outcome:
        if not self._queue.declared.delayable:
            return Fail(f"the worker function requested a delay, but queue {self._queue.name!r} is not delayable")
        delay = error.delay if error.ready_at is None else error.ready_at - self._now()
        return self._engine.postpone(self._queue, job, max(delay or 0.0, 0.0), clean(error.reason, 1024))

    def _failed(self, job: FlowJob, error: Exception) -> Outcome:
        if job.ctx.cancel_reason == Stop.TIMEOUT:
            return self._timed_out()
        text = describe(error)
        job.ctx.logger.error(text)
        message = clean(_message(error))
        if is_final(error):
            return Fail(message, poison=isinstance(error, Poison))
        return with_wait(Retry(message), error, job.ctx.claim, self._policy)

    async def _ended(self, job: FlowJob, result: object) -> Outcome:
        if isinstance(result, Retry | Fail) and result.payload is not None:
            return Fail("a job of a flow has attributes, but no payload to replace")
        if isinstance(result, Retry | Fail | Cancel | Snooze):
            return result
        if isinstance(result, Complete):
            result = result.result
        try:
            fields, chosen = read_result(result)
        except InvalidJob as error:
            return Fail(clean(str(error)))
        following = chosen if chosen is not None else self._queue.declared.next_for(job.flow)
        if chosen is not None and self._queue.parent is not None:
            return Fail(f"the result chooses the next queue {chosen!r}, but a child has none")
        return await self._engine.complete(self._queue, job, fields, following)


class ChildHandler(StepHandler):
    """Handler of a child's queue, for engines that must wake the parent after the child's end."""

    async def post_handle(self, ctx: Attempt[Any], record: Any) -> None:
        """Wake the parent after the child's settlement was recorded."""
        await self._engine.on_child_end(self._queue, self._engine.job(self._queue, ctx, record))


def read_result(result: object) -> tuple[dict[str, str], str | None]:
    """Return the attributes as JSON text, and the queue that the result chooses.

    ``None``, ``False``, zero and empty values are results without attributes. Attributes that are null are dropped.
    Raises InvalidJob if the result is not an object, and for an attribute that the next queue would get as another
    type.
    """
    if not result:
        return {}, None
    attributes = result if isinstance(result, Mapping) else _as_object(result)
    chosen: str | None = None
    fields: dict[str, str] = {}
    for name, value in attributes.items():
        if name in NEXT_QUEUE_NAMES:
            if value is not None and not isinstance(value, str):
                raise InvalidJob(f"the result's {name} is {value!r}; use the name of a queue")
            chosen = value or chosen
        elif value is not None:
            fields[_attribute(name)] = encode_plain(value, what=f"the result's {name}", limit=size_limit(name))
    return fields, chosen


def _as_object(result: object) -> Mapping[str, object]:
    """Return the fields of a struct, dataclass or model, which JSON encodes as an object."""
    try:
        decoded = msgspec.json.decode(strict_json.encode(result, what="the result"))
    except InvalidJob:
        decoded = None
    if not isinstance(decoded, dict):
        raise InvalidJob(f"the worker function returned {a_type(result)}; return a dict")
    return {name: getattr(result, name, value) for name, value in decoded.items()}


def _attribute(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise InvalidJob(f"the result has an attribute {name!r}; names are text")
    if name in RESERVED_FIELDS:
        raise InvalidJob(f"the result has an attribute {name!r}, which is the job's own")
    return name


def _message(error: Exception) -> str:
    """Return the error's message, or its type if the message is empty."""
    try:
        return str(error).strip() or type(error).__name__
    except Exception as raised:  # noqa: BLE001 - boundary: the application's code
        return f"{type(error).__name__} (its text could not be made: {type(raised).__name__})"
