"""Workflows: attempts of a job that share a memory.

A *step* is a value that is recorded under a name. The first attempt that reaches the step runs its function and records
the value; later attempts get the recorded one. A *wait* for a time, an event or child jobs ends the attempt: it raises
``WaitRequested``, the worker settles the job as waiting, and when the wait ends the function runs again from its start,
past the steps that are recorded.

    Context, SyncContext    the methods of a task (context.py)
    Workflow                the steps of one attempt, here
    StepRecorder            reads and records steps, in batches for all attempts of a worker
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Literal

import msgspec

from stowhand.clock import SystemClock
from stowhand.errors import InvalidJob, LeaseLost, Misuse, NonRetryable, StoreUnreachable, a_type
from stowhand.jobs import limits, strict_json
from stowhand.jobs.durations import Duration, format_duration
from stowhand.jobs.job import NewJob
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import RaisableOutcome, Wait, Waiting, read_outcome_delay
from stowhand.jobs.outcomes import causes
from stowhand.protocols.attempt import Attempt, control_of
from stowhand.protocols.queue_store import QueueStore, require_part
from stowhand.protocols.workflows import (
    MAX_EVENT_NAME_CHARACTERS,
    MAX_STEP_NAME_CHARACTERS,
    MAX_STEPS,
    MAX_VALUE_BYTES,
    STEP_OF_CHILDREN,
    NewStep,
    RecordedStep,
    Workflows,
)
from stowhand.retry import AnyBackoff, exponential, resolve_backoff, wait
from stowhand.stores.group_commit import GroupCommit, TakeJobs
from stowhand.tasks.result import read_result, read_typed

Failures = Literal["raise", "collect"]
"""What ``ctx.map`` does with failed children: raise ChildrenFailed, or return a ChildFailed in the place of each."""

OUTAGE_BACKOFF = exponential(base=0.1, cap=5.0)
"""Delays between the calls to a store that is unreachable."""
JOBS_PER_TURN = 200
"""Number of child jobs to create before other attempts have a turn of the loop."""
MAX_LISTED_FAILURES = 5
"""Maximum number of failed children in the text of an error."""


class WaitRequested(BaseException):
    """Ends the attempt of a workflow that waits. It is not an ``Exception``, so that handlers of errors let it pass."""

    def __init__(self, wait: Wait) -> None:
        super().__init__(f"the workflow waits: {wait.step}")
        self.wait = wait


class ChildFailed(msgspec.Struct, frozen=True):
    """A child of a workflow that has failed or was canceled, in the list that ``ctx.map`` returns."""

    place: int
    """The place of the child in the call, from 0."""
    error: str


class ChildrenFailed(Exception):
    """Children of a workflow have failed or were canceled. A retry of the workflow creates them anew."""

    def __init__(self, step: str, failures: Sequence[ChildFailed], count: int) -> None:
        shown = "; ".join(
            f"{failure.place}: {failure.error.partition(chr(10))[0]}" for failure in failures[:MAX_LISTED_FAILURES]
        )
        more = "" if len(failures) <= MAX_LISTED_FAILURES else f"; and {len(failures) - MAX_LISTED_FAILURES} more"
        super().__init__(f"step {step!r}: {len(failures)} of {count} children failed ({shown}{more})")
        self.step = step
        self.failures = tuple(failures)


class Children(msgspec.Struct, frozen=True):
    """The children that a workflow asks for. A later attempt needs their number, and only seldom their jobs."""

    size: int
    job: Callable[[int], NewJob]
    """Returns the job at a place."""
    function: Callable[..., Any] | None = None
    """The function by whose annotation their results are read; ``None``: plain JSON values."""
    are_written: bool = False
    """Their task has written and checked their payloads."""


class StepRecorder:
    """Reads and records the steps of all attempts of one handler. Steps that end at the same time share a commit."""

    def __init__(self, open_store: Callable[[], Awaitable[QueueStore]]) -> None:
        self._open_store = open_store
        self._clock = SystemClock()
        self._group_commit: GroupCommit[tuple[Lease, NewStep], bool] = GroupCommit(
            self._record_one, self._record_all, _is_divisible, lambda error, _: error, size=_size
        )

    async def workflows(self) -> Workflows:
        """Return the store's part. Raises ConfigurationError if the store has none."""
        store = await self._open_store()
        return require_part(store, "workflows", store.workflows)

    async def read(self, job_id: int) -> Sequence[RecordedStep]:
        """Return the recorded steps of a job. An unreachable store is asked again until the attempt is stopped."""
        workflows = await self.workflows()
        steps: Sequence[RecordedStep] = await self._retried(lambda: workflows.read(job_id))
        return steps

    async def record(self, lease: Lease, step: NewStep) -> None:
        """Record a step. Raises LeaseLost. An unreachable store is asked again until the attempt is stopped."""
        if not await self._retried(lambda: self._group_commit.enqueue((lease, step))):
            raise LeaseLost(f"job {lease.job_id}: step {step.name!r} was not recorded: the attempt has lost its lease")

    async def _retried(self, call: Callable[[], Awaitable[Any]]) -> Any:
        failures = 0
        while True:
            try:
                return await call()
            except StoreUnreachable:
                failures += 1
                await self._clock.sleep(OUTAGE_BACKOFF(failures))

    async def _record_one(self, step: tuple[Lease, NewStep]) -> bool:
        return (await (await self.workflows()).record([step]))[0]

    async def _record_all(self, take_steps: TakeJobs) -> Sequence[bool]:
        workflows = await self.workflows()
        return await workflows.record(take_steps())


def _is_divisible(error: Exception) -> bool:
    return not isinstance(error, StoreUnreachable)


def _size(step: tuple[Lease, NewStep]) -> int:
    return len(step[1].value or "")


class Workflow:
    """The steps of one attempt, in the order in which it reaches them."""

    def __init__(self, attempt: Attempt[Any], recorder: StepRecorder) -> None:
        self._attempt = attempt
        self._lease = attempt.lease
        self._recorder = recorder
        self._uses: Counter[str] = Counter()
        """How often this attempt has used each name."""
        self._steps: dict[str, dict[int, RecordedStep]] | None = None
        """The recorded steps by name and place, once they are read."""
        self._reading = asyncio.Lock()
        self._running: list[str] = []
        """Steps whose function runs."""
        self.wait: Wait | None = None
        """The wait that this attempt has requested."""

    # -- steps -----------------------------------------------------------------------------------

    async def start(
        self, name: str, function: Callable[..., Any], attempts: int, backoff: AnyBackoff | str | None
    ) -> Step:
        """Return the next step with this name."""
        if type(attempts) is not int or attempts < 1:
            raise Misuse(f"ctx.step: attempts: got {attempts!r}; use a whole number from 1")
        name = self._next_name("ctx.step", name)
        recorded = (await self._recorded(name)).get(0)
        return Step(
            self,
            name,
            _function_of(function),
            attempts,
            None if backoff is None else resolve_backoff(backoff),
            recorded,
        )

    @contextmanager
    def running(self, name: str) -> Any:
        """Note that the function of a step runs."""
        self._running.append(name)
        try:
            yield
        finally:
            self._running.remove(name)

    async def record(self, step: NewStep, connection: object = None) -> None:
        """Record a step, in the caller's transaction if there is one. Raises LeaseLost."""
        if connection is None:
            await self._recorder.record(self._lease, step)
        else:
            is_held = (await self.part()).record_in(connection, self._lease, step)
            self._refuse_lost(step, await is_held if isinstance(is_held, Awaitable) else is_held)

    def record_in(self, part: Workflows, step: NewStep, connection: object) -> None:
        """Record a step in the caller's transaction, in the caller's thread. Raises LeaseLost, or Misuse."""
        is_held = part.record_in(connection, self._lease, step)
        if isinstance(is_held, Awaitable):
            if isinstance(is_held, Coroutine):
                is_held.close()
            raise Misuse("ctx.step: connection: this one is asynchronous; use it in an async def task")
        self._refuse_lost(step, is_held)

    async def part(self) -> Workflows:
        """Return the store's part. Raises ConfigurationError if the store has none."""
        return await self._recorder.workflows()

    def _refuse_lost(self, step: NewStep, is_held: bool) -> None:
        if not is_held:
            raise LeaseLost(f"job {self._lease.job_id}: step {step.name!r}: the attempt has lost its lease")

    # -- waits -----------------------------------------------------------------------------------

    async def sleep(self, delay: Duration | None, until: datetime | None, call: str) -> None:
        """Return if the sleep is over. Otherwise raise WaitRequested."""
        if until is not None and until.tzinfo is None:
            raise Misuse(f"{call}: got a time without a time zone; use datetime.now(UTC) + …")
        seconds = None if delay is None else _seconds(call, delay)
        name = self._next_name(call, "sleep")
        recorded = (await self._recorded(name)).get(0)
        if recorded is None or not (recorded.is_over or recorded.is_recorded):
            raise self._request(call, Wait(step=name, delay=seconds, until=until))

    async def event(self, event: str, kind: type[Any] | None, timeout: Duration | None) -> Any:
        """Return the payload of an event. Raises TimeoutError, or WaitRequested."""
        check_event_name("ctx.event", event)
        seconds = None if timeout is None else _seconds("ctx.event", timeout)
        name = self._next_name("ctx.event", f"event:{event}")
        recorded = (await self._recorded(name)).get(0)
        if recorded is None or not (recorded.is_over or recorded.is_recorded):
            raise self._request("ctx.event", Wait(step=name, event=event, delay=seconds))
        if not recorded.is_recorded:
            # The event may have been emitted since this attempt read its steps. Then that value is kept.
            await self._recorder.record(self._lease, NewStep(name, error="timed out"))
            self._steps = None
            recorded = (await self._recorded(name))[0]
        if recorded.value is None:
            after = "" if seconds is None else f" within {format_duration(seconds)}"
            raise TimeoutError(f"event {event!r} was not emitted{after}")
        return strict_json.decode(recorded.value) if kind is None else read_typed(kind, recorded.value)

    # -- children --------------------------------------------------------------------------------

    async def children(self, call: str, name: str, children: Children, failures: str) -> list[Any]:
        """Return the results of child jobs, in their order. Raises ChildrenFailed, or WaitRequested."""
        if failures not in ("raise", "collect"):
            raise Misuse(f"{call}: failures: got {failures!r}; use 'raise' or 'collect'")
        name = self._next_name(call, name)
        recorded = await self._recorded(name)
        header = recorded.get(STEP_OF_CHILDREN)
        if header is None:
            places = tuple(range(children.size))
            jobs = await self._jobs_of(call, children, places)
            raise self._request_children(call, name, children.size, jobs, places, 0)
        note = _ChildrenNote.read(header.value)
        if header.remaining:
            raise self._request_children(call, name, note.size, (), (), max(note.attempts, 0))
        if note.size != children.size:
            raise Misuse(
                f"{call}: step {name!r} has created {note.size} children, and this attempt asks for {children.size};"
                " rename the step to create others"
            )
        failed = [
            ChildFailed(place, _error_of(recorded.get(place)))
            for place in range(note.size)
            if _has_failed(recorded, place)
        ]
        if failed and failures == "raise":
            if self._attempt.attempt == note.attempts + 1:
                raise ChildrenFailed(name, failed, note.size)
            # This is a retry of the workflow: create the failed children anew. The attempts stay, so that they run out.
            places = tuple(failure.place for failure in failed)
            again = await self._jobs_of(call, children, places)
            raise self._request_children(call, name, note.size, again, places, self._attempt.attempt - 1)
        errors = {failure.place: failure for failure in failed}
        return [
            errors[place] if place in errors else _read_child(children.function, recorded[place].value)
            for place in range(note.size)
        ]

    async def _jobs_of(self, call: str, children: Children, places: Iterable[int]) -> tuple[NewJob, ...]:
        """Return the jobs at these places, as the hooks of the App change them. Raises InvalidJob."""
        on_enqueue = control_of(self._attempt).on_enqueue
        check = limits.check_options if children.are_written and on_enqueue is None else limits.check
        jobs = []
        for place in places:
            job = children.job(place)
            if job.key is not None:
                raise InvalidJob(f"{call}: a child has no key, since its step already names it; leave out key=…")
            jobs.append(check(job if on_enqueue is None else on_enqueue(job)))
            if len(jobs) % JOBS_PER_TURN == 0:
                await asyncio.sleep(0)  # other attempts of the worker go on meanwhile
        return tuple(jobs)

    def _request_children(
        self, call: str, name: str, size: int, jobs: tuple[NewJob, ...], places: tuple[int, ...], attempts: int
    ) -> WaitRequested:
        note = _ChildrenNote(size=size, attempts=attempts).write()
        return self._request(call, Wait(step=name, children=jobs, places=places, value=note, attempts=attempts))

    # -- the attempt -----------------------------------------------------------------------------

    def _request(self, call: str, wait: Wait) -> WaitRequested:
        """Return the exception that ends this attempt. Raises Misuse while something else of the attempt runs."""
        if self._running:
            raise Misuse(f"{call}: step {self._running[0]!r} still runs; await it before the workflow waits")
        if self.wait is not None:
            raise Misuse(
                f"{call}: the workflow waits for {self.wait.step!r} already; wait for one thing at a time (or ctx.map)"
            )
        self.wait = wait
        return WaitRequested(wait)

    def _next_name(self, call: str, name: str) -> str:
        if not _is_name(name, MAX_STEP_NAME_CHARACTERS):
            raise Misuse(f"{call}: name: got {name!r}; use a text of 1 to {MAX_STEP_NAME_CHARACTERS} characters")
        self._uses[name] += 1
        return name if self._uses[name] == 1 else f"{name}#{self._uses[name]}"

    async def _recorded(self, name: str) -> dict[int, RecordedStep]:
        """Return what is recorded for a name, by place."""
        async with self._reading:
            if self._steps is None:
                self._steps = {}
                # A job that is claimed for the first time has no steps.
                for step in await self._recorder.read(self._attempt.record.id) if self._lease.epoch > 1 else ():
                    self._steps.setdefault(step.name, {})[step.place] = step
        if name not in self._steps and len(self._steps) + len(self._uses) > MAX_STEPS:
            raise Misuse(f"step {name!r}: a job has at most {MAX_STEPS:,} steps; use child jobs (ctx.map)")
        return self._steps.get(name, {})


class Step:
    """One step that an attempt has reached: its recorded value, or its function and the attempts of it."""

    def __init__(
        self,
        workflow: Workflow,
        name: str,
        function: Callable[..., Any],
        attempts: int,
        backoff: AnyBackoff | None,
        recorded: RecordedStep | None,
    ) -> None:
        self._workflow = workflow
        self.name = name
        self._function = function
        self._attempts = attempts
        self._backoff = backoff
        self._failures = 0
        self._text = None if recorded is None else recorded.value
        self.is_recorded = recorded is not None and recorded.is_recorded

    def running(self) -> Any:
        """Context manager around the calls of the function."""
        return self._workflow.running(self.name)

    def delay_after(self, error: Exception) -> float:
        """Return the seconds until the next call of the function. Raises the error if there is none."""
        self._failures += 1
        is_final = any(
            isinstance(cause, RaisableOutcome | NonRetryable | Misuse | LeaseLost) for cause in causes(error)
        )
        if is_final or self._failures >= self._attempts:
            raise error
        return wait(self._backoff or exponential(base=1.0, cap=60.0), self._failures, error)

    async def record(self, value: object, connection: object) -> None:
        """Record the value. Raises InvalidJob, which is final: a retry would run the function again."""
        text = self._encode(value)
        await self._workflow.record(NewStep(self.name, text), connection)
        self._text, self.is_recorded = text, True

    def record_in(self, part: Workflows, value: object, connection: object) -> None:
        """Record the value in the caller's transaction, in the caller's thread."""
        text = self._encode(value)
        self._workflow.record_in(part, NewStep(self.name, text), connection)
        self._text, self.is_recorded = text, True

    def _encode(self, value: object) -> str:
        return strict_json.encode(value, what=f"the value of step {self.name!r}", limit=MAX_VALUE_BYTES)

    @property
    def value(self) -> Any:
        """The value in the type that the function is annotated to return, in the first attempt as in later ones."""
        return read_result(self._function, self._text)


class _ChildrenNote(msgspec.Struct, frozen=True):
    """The JSON that is recorded with a step of children."""

    size: int
    attempts: int = 0
    """The attempts of the workflow that counted when the wait started. If the attempt after the wait has the next
    number, it raises the errors of the children; a later one is a retry. The store sets -1 when somebody retries the
    workflow by hand."""

    @classmethod
    def read(cls, text: str | None) -> _ChildrenNote:
        return msgspec.json.decode(text or "{}", type=cls)

    def write(self) -> str:
        return json.dumps({"size": self.size, "attempts": self.attempts})


def requested_wait(attempt: Attempt[Any], error: BaseException) -> Waiting | None:
    """Return the outcome of an attempt that ended because it waits; ``None`` if the error has another reason."""
    workflow: Workflow | None = control_of(attempt).workflow
    if workflow is None or workflow.wait is None:
        return None
    is_alone = isinstance(error, WaitRequested)
    if is_alone or (isinstance(error, BaseExceptionGroup) and error.split(WaitRequested)[1] is None):
        return Waiting(workflow.wait)
    return None


def refuse_caught_wait(workflow: Workflow) -> None:
    """Raise Misuse if the attempt went on after it had requested a wait."""
    if workflow.wait is not None:
        raise Misuse(
            f"the wait for {workflow.wait.step!r} was caught; let it pass: write 'except Exception', not"
            " 'except BaseException'"
        )


def check_event_name(call: str, name: object) -> None:
    """Raise Misuse unless this is the name of an event."""
    if not _is_name(name, MAX_EVENT_NAME_CHARACTERS):
        raise Misuse(f"{call}: event: got {name!r}; use a text of 1 to {MAX_EVENT_NAME_CHARACTERS} characters")


def _is_name(name: object, limit: int) -> bool:
    return isinstance(name, str) and 1 <= len(name) <= limit and "\x00" not in name


def encode_payload(event: str, payload: object) -> str:
    """Return the payload of an event as JSON text. Raises InvalidJob."""
    return strict_json.encode(payload, what=f"the payload of event {event!r}", limit=MAX_VALUE_BYTES)


def _seconds(call: str, duration: Duration) -> float:
    try:
        return read_outcome_delay(call, duration)
    except ValueError as error:
        raise Misuse(str(error)) from None


def _function_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function of a task, or the function itself. Raises Misuse."""
    from stowhand.tasks.task import definition_of  # task.py imports context.py

    if (definition := definition_of(function)) is not None:
        return definition.function
    if not callable(function):
        raise Misuse(
            f"ctx.step: got {a_type(function)}; use a function and its arguments: ctx.step('charge', charge, 7)"
        )
    return function


def _has_failed(recorded: dict[int, RecordedStep], place: int) -> bool:
    return place not in recorded or recorded[place].value is None


def _error_of(step: RecordedStep | None) -> str:
    return "it has no result" if step is None or step.error is None else step.error


def _read_child(function: Callable[..., Any] | None, text: str | None) -> Any:
    if text is None or function is None:
        return None if text is None else strict_json.decode(text)
    return read_result(function, text)
