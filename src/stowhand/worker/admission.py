"""Permission for each claim: forbidden flags, the handler's ``pre_claim``, and a budget, which is a ``pre_claim``.

The forbidden flags are a fixed list or a function, such as one that counts running jobs or reads a cache. The function
and ``pre_claim`` are application code on the worker's loop. If one fails, the worker claims nothing, emits an event,
and calls it again after a pause. A run with ``once`` must end, so it raises the error after several consecutive
failures.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable, Iterable
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from stowhand.clock import Clock
from stowhand.errors import ConfigurationError, InvalidJob, NonRetryable, StowhandError, a_type
from stowhand.events import HookFailed, HookFinished, StoreCallFailed, StoreRecovered
from stowhand.jobs import limits
from stowhand.jobs.conditions import SUM_OPERATOR, Condition, Where
from stowhand.jobs.outcomes import awaitable, describe
from stowhand.protocols.attempt import Attempt, AttemptLogger
from stowhand.protocols.handler import ClaimContext, ClaimDecision, Function, Handler, handler_of
from stowhand.protocols.options import MAX_ONCE_FAILURES, OUTAGE_BACKOFF, Flags
from stowhand.worker.state import CANCEL_TIMEOUT_SECONDS, WorkerState

FLAGS_TIMEOUT_SECONDS = 10.0
"""Time limit for an asynchronous function that returns the forbidden flags."""
PreClaim = Callable[[ClaimContext], Awaitable[object]]


class Permit(msgspec.Struct, frozen=True):
    """Permission to send a claim."""

    limit: int
    flags: tuple[str, ...] = ()
    conditions: tuple[Any, ...] = ()


class Pause(msgspec.Struct, frozen=True):
    """Refusal to send a claim for ``pause`` seconds. ``None``: for the usual pause after a claim without jobs."""

    pause: float | None = None


class Admission:
    """Asks the application whether a worker may claim."""

    def __init__(self, handler: Handler, state: WorkerState) -> None:
        self._state = state
        self._events = state.events
        self._worker = state.worker
        flags = state.options.forbidden_flags
        self._fixed_flags = () if callable(flags) else flags
        self._flags = flags if callable(flags) else None
        self._pre_claim: PreClaim | None = getattr(handler, "pre_claim", None)
        self._logger = AttemptLogger(state.events.emit, state.worker, "pre_claim", None)
        self._flag_failures = 0
        """Number of consecutive failures to get the flags."""
        self._hook_failures = 0
        """Number of consecutive failures of ``pre_claim``."""
        self.claims_singly = self._flags is not None or self._pre_claim is not None
        """Whether each job must start before the next claim, because the application may count running jobs."""

    async def ask(self, limit: int) -> Permit | Pause:
        """Decide whether a claim may be sent, and for which jobs. ``limit``: number of jobs to request.

        Raises ConfigurationError if the flags' function returned no list. With ``once`` it raises a repeated error.
        """
        flags = self._fixed_flags
        if self._flags is not None:
            try:
                flags = await read_forbidden_flags(self._flags, self._state.clock)
            except FlagsUnknown as error:
                self._flag_failures += 1
                pause = OUTAGE_BACKOFF(self._flag_failures)
                self._events.emit(StoreCallFailed(self._worker, "forbidden flags", str(error), pause))
                if self._gives_up(self._flag_failures):
                    raise
                return Pause(pause)
            if self._flag_failures:
                self._events.emit(StoreRecovered(self._worker, "forbidden flags", self._flag_failures))
                self._flag_failures = 0
            limit = min(limit, 1)
        if self._pre_claim is None:
            return Permit(limit, flags)
        answer = await self._call_in_task(
            self._pre_claim, ClaimContext(self._worker, self._state.free_slots, len(self._state.running), self._logger)
        )
        if isinstance(answer, BaseException):
            self._events.emit(HookFailed(self._worker, "pre_claim", None, describe(answer)))
            self._hook_failures += 1
            if self._gives_up(self._hook_failures):
                raise StowhandError(f"pre_claim failed {self._hook_failures} times in a row: {describe(answer)}")
            return Pause(self._state.options.poll(is_listening=False))
        self._hook_failures = 0
        if answer is None:
            return Pause()
        return Permit(min(limit, answer.limit), flags, answer.conditions)

    def _gives_up(self, failures: int) -> bool:
        return self._state.options.once and failures > MAX_ONCE_FAILURES and not self._state.running

    async def _call_in_task(self, pre_claim: PreClaim, context: ClaimContext) -> ClaimDecision | BaseException | None:
        """Return the answer of ``pre_claim``, or the exception that it raised.

        It runs in its own task, so that it can neither cancel this task nor block its end.
        """
        task = asyncio.ensure_future(self._call(pre_claim, context))
        try:
            await asyncio.wait((task,))
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait((task,), timeout=CANCEL_TIMEOUT_SECONDS)

    async def _call(self, pre_claim: PreClaim, context: ClaimContext) -> ClaimDecision | BaseException | None:
        started_at, failed = self._state.clock.monotonic(), True
        try:
            answer = read_answer(await awaitable(pre_claim(context), "pre_claim"))
            failed = False
            return answer
        except BaseException as error:  # noqa: BLE001 - boundary: reported in an event, and called again after a pause
            return error
        finally:
            if self._events.wants(HookFinished):
                seconds = self._state.clock.monotonic() - started_at
                self._events.emit(HookFinished(self._worker, "pre_claim", "pre_claim", seconds, failed))


def read_answer(answer: object) -> ClaimDecision | None:
    """Read the answer of ``pre_claim``; ``None`` means not now. Raises ConfigurationError if it is invalid."""
    match answer:
        case True:
            return ClaimDecision()
        case False:
            return None
        case ClaimDecision(conditions=conditions, limit=limit):
            if type(limit) is not int or limit < 1:
                raise ConfigurationError(f"pre_claim: limit: got {limit!r}; use a whole number from 1")
            return ClaimDecision(_conditions(conditions), limit)
        case _:
            return ClaimDecision(_conditions(answer if isinstance(answer, list | tuple) else (answer,)))


def _conditions(value: object) -> tuple[Any, ...]:
    conditions = tuple(value) if isinstance(value, list | tuple) else (value,)
    for condition in conditions:
        if isinstance(condition, str):
            raise ConfigurationError(
                f"pre_claim: a condition is text ({condition!r}), which could come from data; write Where(column, "
                f"operator, value), or sql({condition!r}, …) with a {{}} for each value"
            )
        if condition is None or isinstance(condition, bool | int | float | dict):
            raise ConfigurationError(
                f"pre_claim: {condition!r} is not an answer; return True, False, conditions (Where, sql), or "
                "ClaimDecision(…)"
            )
    return conditions


class FlagsUnknown(StowhandError):
    """The forbidden flags are not known: the function raised, returned an invalid flag, or took too long."""


async def read_forbidden_flags(function: Flags, clock: Clock) -> tuple[str, ...]:
    """Return the flags that the function forbids. Raises FlagsUnknown, or ConfigurationError if it returns no list."""
    try:
        answer = _call_uncancelled(function)
        flags = await _with_timeout(answer, clock) if inspect.isawaitable(answer) else answer
    except FlagsUnknown:
        raise
    except Exception as error:  # boundary: reported in an event, and called again after a pause
        raise FlagsUnknown(describe(error)) from error
    if isinstance(flags, str | bytes) or not isinstance(flags, Iterable | None):
        raise ConfigurationError(
            f"forbidden_flags: the function returned {a_type(flags)}; return a list of flags, or None"
        )
    try:
        return limits.read_forbidden(flags)
    except InvalidJob as error:  # a flag that came from data
        raise FlagsUnknown(str(error)) from error


async def _with_timeout(answer: Awaitable[object], clock: Clock) -> object:
    answer_task = asyncio.ensure_future(answer)
    timeout_event = asyncio.Event()
    timer = clock.call_later(FLAGS_TIMEOUT_SECONDS, timeout_event.set)
    timeout_task = asyncio.ensure_future(timeout_event.wait())
    try:
        await asyncio.wait((answer_task, timeout_task), return_when=asyncio.FIRST_COMPLETED)
        if not answer_task.done():
            raise FlagsUnknown(f"forbidden flags: no answer within {FLAGS_TIMEOUT_SECONDS:g} s")
        return _call_uncancelled(answer_task.result)
    finally:
        timer.cancel()
        timeout_task.cancel()
        answer_task.cancel()
        await asyncio.wait((answer_task, timeout_task), timeout=CANCEL_TIMEOUT_SECONDS)


def _call_uncancelled(call: Callable[[], object]) -> object:
    """Call the function. Raise FlagsUnknown for a CancelledError, which would cancel the worker."""
    try:
        return call()
    except asyncio.CancelledError as error:
        raise FlagsUnknown("forbidden flags: the answer was cancelled") from error


if TYPE_CHECKING:
    # The default type is for a lambda as ``cost``. Type checkers know typing_extensions even if it is not installed.
    from typing_extensions import TypeVar as TypeVarWithDefault

    R = TypeVarWithDefault("R", default=Any)
else:
    R = TypeVar("R")
ROUNDING_TOLERANCE = 1e-9


class Budget(Generic[R]):
    """Limit for the total cost of the records that one worker runs.

    Use its three hooks as a handler's own, or wrap a handler with ``around``.
    """

    def __init__(
        self,
        capacity: float,
        *,
        cost: Callable[[R], float] | Callable[[Any], float],
        column: str | Callable[[float], Condition],
    ) -> None:
        """Create a budget.

        Args:
            capacity: Maximum total cost.
            cost: Returns the cost of a record, in the unit of ``capacity``.
            column: Name of the column with the cost. The store adds up the costs, so a claim may return several
                records. It may also be a function that takes the capacity left and returns a condition, such as
                ``lambda left: sql("j.pages * 4096 <= {}", left)``. Then a claim returns one record.

        Raises:
            ConfigurationError: An argument is invalid.

        """
        self.capacity = _check_budget(capacity, cost, column)
        self._cost = cost
        self._column = column
        self._taken: dict[tuple[Any, str], float] = {}
        self._freed = asyncio.Event()
        self.peak: float = 0
        """Highest total cost so far."""

    @property
    def taken(self) -> float:
        """Total cost of the running records."""
        return sum(self._taken.values())

    @property
    def left(self) -> float:
        """Capacity that is not taken."""
        return self.capacity - self.taken

    async def pre_claim(self, ctx: ClaimContext) -> ClaimDecision | bool:
        """Permit only records that fit into the capacity left."""
        if self.left <= 0:
            return False
        if callable(self._column):
            return ClaimDecision((self._column(self.left),))
        return ClaimDecision((Where(self._column, SUM_OPERATOR, self.left),), limit=max(ctx.free, 1))

    async def pre_handle(self, ctx: Attempt[R], record: R) -> None:
        """Add the record's cost to the total. If the cost exceeds the capacity left, wait until it fits.

        Raises NonRetryable if the cost exceeds the whole budget or is not a number.
        """
        value = self._cost(record)
        cost = _number(value)
        if cost is None or cost < 0:
            raise NonRetryable(f"budget: the record's cost is {value!r}; it must be a number of at least 0")
        if cost > self.capacity * (1 + ROUNDING_TOLERANCE):
            raise NonRetryable(f"budget: the record costs {cost:g}, but the whole budget is {self.capacity:g}")
        while cost > self.left + self.capacity * ROUNDING_TOLERANCE:
            self._freed.clear()
            await self._freed.wait()
        self._taken[_attempt_key(ctx)] = cost
        self.peak = max(self.peak, self.taken)

    async def post_handle(self, ctx: Attempt[R], record: R) -> None:
        """Subtract the record's cost from the total."""
        self._taken.pop(_attempt_key(ctx), None)
        self._freed.set()

    def around(self, handler: Handler[R] | Function[R]) -> Handler[R]:
        """Return a handler that is limited by this budget. The inner hooks run inside the budget's."""
        return BudgetedHandler(self, handler_of(handler))


class BudgetedHandler:
    """Handler with a budget. The budget's ``pre_handle`` comes first, its ``post_handle`` last."""

    def __init__(self, budget: Budget[Any], inner: Handler) -> None:
        self._budget = budget
        self._inner = inner
        self.handle = inner.handle
        for name in ("policy", "encode", "retryable"):
            if hasattr(inner, name):
                setattr(self, name, getattr(inner, name))
        self._inner_pre_claim: Callable[[ClaimContext], Awaitable[Any]] | None = getattr(inner, "pre_claim", None)
        self._prepared: set[tuple[Any, str]] = set()

    async def pre_claim(self, ctx: ClaimContext) -> object:
        decision = await self._budget.pre_claim(ctx)
        if isinstance(decision, bool) or self._inner_pre_claim is None:
            return decision
        answer = read_answer(await self._inner_pre_claim(ctx))
        if answer is None:
            return False
        # Both answers may have a limit.
        return ClaimDecision((*decision.conditions, *answer.conditions), min(decision.limit, answer.limit))

    async def pre_handle(self, ctx: Attempt[Any], record: Any) -> None:
        await self._budget.pre_handle(ctx, record)
        # A record that waits for capacity has not reached the inner hooks, so their post_handle must not run.
        self._prepared.add(_attempt_key(ctx))
        if hasattr(self._inner, "pre_handle"):
            await self._inner.pre_handle(ctx, record)

    async def post_handle(self, ctx: Attempt[Any], record: Any) -> None:
        was_prepared = _attempt_key(ctx) in self._prepared
        self._prepared.discard(_attempt_key(ctx))
        try:
            if was_prepared and hasattr(self._inner, "post_handle"):
                await self._inner.post_handle(ctx, record)
        finally:
            await self._budget.post_handle(ctx, record)


def _check_budget(capacity: object, cost: object, column: object) -> float:
    amount = _number(capacity)
    if amount is None or amount <= 0:
        raise ConfigurationError(f"budget: capacity: got {capacity!r}; use a number above 0")
    if not callable(cost) or inspect.iscoroutinefunction(cost):
        raise ConfigurationError("budget: cost must be a plain function that returns the cost of a record")
    if not callable(column) and not (isinstance(column, str) and column):
        raise ConfigurationError(
            f"budget: {column!r} is not a column; use the name of the column with a record's cost, or a function that"
            " takes the capacity left and returns a condition"
        )
    return amount


def _number(value: object) -> float | None:
    """Convert a cost. PostgreSQL returns ``numeric`` and sums of ``bigint`` as Decimal."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal) or not math.isfinite(value):
        return None
    return float(value)


def _attempt_key(ctx: Attempt[Any]) -> tuple[Any, str]:
    return ctx.lease.job_id, ctx.lease.token
