"""Whether a claim may go out now: forbidden flags, the handler's ``pre_claim``, and a budget as a ready ``pre_claim``.

A function may say which flags are forbidden: it counts what runs, reads a cache, or queries a database. Both are the
application's code on the worker's loop. When one fails nothing is claimed, because nothing is known to be allowed; the
error is reported in an event, and the code is called again after a pause. A run with ``once`` raises the error after a
number of failures in a row: it must end.
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
from stowhand.protocols.options import ONCE_PATIENCE, OUTAGE, Flags
from stowhand.worker.state import CANCEL_TIMEOUT_SECONDS, WorkerState

FLAGS_TIMEOUT_SECONDS = 10.0
"""Seconds that an asynchronous function for the forbidden flags may take."""
PreClaim = Callable[[ClaimContext], Awaitable[object]]


class Permit(msgspec.Struct, frozen=True):
    """Permission to send one claim."""

    limit: int
    flags: tuple[str, ...] = ()
    conditions: tuple[Any, ...] = ()


class Pause(msgspec.Struct, frozen=True):
    """Refusal to send a claim; ask again after ``pause`` seconds (``None``: as if there had been no jobs)."""

    pause: float | None = None


class Admission:
    """The rules by which the application permits or refuses a worker's claims."""

    def __init__(self, handler: Handler, state: WorkerState) -> None:
        self._state = state
        self._events = state.events
        self._worker = state.worker
        flags = state.options.forbidden_flags
        self._fixed_flags = () if callable(flags) else flags
        self._flags = flags if callable(flags) else None
        self._pre_claim: PreClaim | None = getattr(handler, "pre_claim", None)
        self._logger = AttemptLogger(state.events.emit, state.worker, "pre_claim", None)
        self._refusals = 0
        """How often the flags were not known, in a row."""
        self._hook_failures = 0
        """How often ``pre_claim`` failed, in a row."""
        self.one_by_one = self._flags is not None or self._pre_claim is not None
        """The last record must have begun, and been counted by the application, before the next claim."""

    async def ask(self, limit: int) -> Permit | Pause:
        """Decide whether a claim may go out, and for what. ``limit``: how many the worker would claim by itself.

        Raises ConfigurationError where the flags' function returned no list; with ``once``, what went on failing.
        """
        flags = self._fixed_flags
        if self._flags is not None:
            try:
                flags = await forbidden(self._flags, self._state.clock)
            except FlagsUnknown as error:
                self._refusals += 1
                pause = OUTAGE(self._refusals)
                self._events.emit(StoreCallFailed(self._worker, "forbidden flags", str(error), pause))
                if self._gives_up(self._refusals):
                    raise
                return Pause(pause)
            if self._refusals:
                self._events.emit(StoreRecovered(self._worker, "forbidden flags", self._refusals))
                self._refusals = 0
            limit = min(limit, 1)
        if self._pre_claim is None:
            return Permit(limit, flags)
        answer = await self._call_apart(
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
        return self._state.options.once and failures > ONCE_PATIENCE and not self._state.running

    async def _call_apart(self, pre_claim: PreClaim, context: ClaimContext) -> ClaimDecision | BaseException | None:
        """Return the answer of ``pre_claim``, or what it raises.

        It runs in a task of its own: it can neither cancel this one nor ignore its end.
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
    """Read the answer of ``pre_claim``. ``None``: not now. Raises ConfigurationError for what is no answer."""
    match answer:
        case True:
            return ClaimDecision()
        case False:
            return None
        case ClaimDecision(conditions=conditions, limit=limit):
            if type(limit) is not int or limit < 1:
                raise ConfigurationError(f"pre_claim: a limit of {limit!r}; give a whole number of 1 or more")
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
                f"pre_claim: {condition!r} is no answer; return True, False, conditions (Where, sql), or "
                "ClaimDecision(…)"
            )
    return conditions


class FlagsUnknown(StowhandError):
    """The function raised, returned something that is no flag, or took too long; the text says which."""


async def forbidden(function: Flags, clock: Clock) -> tuple[str, ...]:
    """Return the flags that this function forbids. Raises FlagsUnknown; ConfigurationError where it gives no list."""
    try:
        answer = _uncancelled(function)
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
    answering = asyncio.ensure_future(answer)
    late = asyncio.Event()
    timer = clock.call_later(FLAGS_TIMEOUT_SECONDS, late.set)
    waiting = asyncio.ensure_future(late.wait())
    try:
        await asyncio.wait((answering, waiting), return_when=asyncio.FIRST_COMPLETED)
        if not answering.done():
            raise FlagsUnknown(f"forbidden flags: no answer within {FLAGS_TIMEOUT_SECONDS:g} s")
        return _uncancelled(answering.result)
    finally:
        timer.cancel()
        waiting.cancel()
        answering.cancel()
        await asyncio.wait((answering, waiting), timeout=CANCEL_TIMEOUT_SECONDS)


def _uncancelled(call: Callable[[], object]) -> object:
    """A cancellation that the function raises is its own mistake, and does not cancel the worker."""
    try:
        return call()
    except asyncio.CancelledError as error:
        raise FlagsUnknown("forbidden flags: the answer was cancelled") from error


if TYPE_CHECKING:
    # A lambda for ``cost`` does not reveal the record's type. (Checkers know this module without its being installed.)
    from typing_extensions import TypeVar as TypeVarWithDefault

    R = TypeVarWithDefault("R", default=Any)
else:
    R = TypeVar("R")
ROUNDING_TOLERANCE = 1e-9


class Budget(Generic[R]):
    """A limit for the total cost of running records, for one worker. Its three hooks can be a handler's own, or are
    called around a handler's (``around``)."""

    def __init__(
        self,
        capacity: float,
        *,
        cost: Callable[[R], float] | Callable[[Any], float],
        column: str | Callable[[float], Condition],
    ) -> None:
        """``cost``: what a record needs, in the unit of ``capacity``.

        ``column``: where the store keeps that; then it sums what it claims, and several come at once. Or a function
        from what is left to a condition, such as ``lambda left: sql("j.pages * 4096 <= {}", left)``; then one comes at
        a time. Raises ConfigurationError.
        """
        self.capacity = _check_budget(capacity, cost, column)
        self._cost = cost
        self._column = column
        self._taken: dict[tuple[Any, str], float] = {}
        self._freed = asyncio.Event()
        self.peak: float = 0
        """The most that was taken at once so far."""

    @property
    def taken(self) -> float:
        """Total cost of the records that run."""
        return sum(self._taken.values())

    @property
    def left(self) -> float:
        """Capacity that is not taken."""
        return self.capacity - self.taken

    async def pre_claim(self, ctx: ClaimContext) -> ClaimDecision | bool:
        """Only records that fit into what is left; nothing when nothing is left."""
        if self.left <= 0:
            return False
        if callable(self._column):
            return ClaimDecision((self._column(self.left),))
        return ClaimDecision((Where(self._column, SUM_OPERATOR, self.left),), limit=max(ctx.free, 1))

    async def pre_handle(self, ctx: Attempt[R], record: R) -> None:
        """Take the record's cost.

        If it is higher than the condition promised, wait until there is room. Raises NonRetryable when it can never
        fit, or is no number.
        """
        value = self._cost(record)
        cost = _number(value)
        if cost is None or cost < 0:
            raise NonRetryable(f"budget: the record's cost is {value!r}, and not a number of 0 or more")
        if cost > self.capacity * (1 + ROUNDING_TOLERANCE):
            raise NonRetryable(f"budget: the record costs {cost:g}, and the whole budget is {self.capacity:g}")
        while cost > self.left + self.capacity * ROUNDING_TOLERANCE:
            self._freed.clear()
            await self._freed.wait()
        self._taken[_pair(ctx)] = cost
        self.peak = max(self.peak, self.taken)

    async def post_handle(self, ctx: Attempt[R], record: R) -> None:
        """Give the record's cost back."""
        self._taken.pop(_pair(ctx), None)
        self._freed.set()

    def around(self, handler: Handler[R] | Function[R]) -> Handler[R]:
        """Return the handler, limited by this budget. The handler's own hooks run inside those of the budget."""
        return BudgetedHandler(self, handler_of(handler))


class BudgetedHandler:
    """A handler and a budget. ``pre_handle`` of the budget comes first, ``post_handle`` last."""

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
        own = await self._budget.pre_claim(ctx)
        if isinstance(own, bool) or self._inner_pre_claim is None:
            return own
        answer = read_answer(await self._inner_pre_claim(ctx))
        if answer is None:
            return False
        # A budget within this one, or a limit, may say that several come at once.
        return ClaimDecision((*own.conditions, *answer.conditions), min(own.limit, answer.limit))

    async def pre_handle(self, ctx: Attempt[Any], record: Any) -> None:
        await self._budget.pre_handle(ctx, record)
        self._prepared.add(_pair(ctx))  # what waits for room has not reached the inner hooks, and needs no clean-up
        if hasattr(self._inner, "pre_handle"):
            await self._inner.pre_handle(ctx, record)

    async def post_handle(self, ctx: Attempt[Any], record: Any) -> None:
        was_prepared = _pair(ctx) in self._prepared
        self._prepared.discard(_pair(ctx))
        try:
            if was_prepared and hasattr(self._inner, "post_handle"):
                await self._inner.post_handle(ctx, record)
        finally:
            await self._budget.post_handle(ctx, record)


def _check_budget(capacity: object, cost: object, column: object) -> float:
    """The capacity. Raises ConfigurationError."""
    amount = _number(capacity)
    if amount is None or amount <= 0:
        raise ConfigurationError(f"budget: a capacity of {capacity!r}; give a number of more than 0")
    if not callable(cost) or inspect.iscoroutinefunction(cost):
        raise ConfigurationError("budget: cost is a function, and no async one, that tells what a record needs")
    if not callable(column) and not (isinstance(column, str) and column):
        raise ConfigurationError(
            f"budget: {column!r} is no column; give the name of the one that holds a record's cost, or a function "
            "from what is left to a condition"
        )
    return amount


def _number(value: object) -> float | None:
    """PostgreSQL's ``numeric``, and every sum of ``bigint``, comes as a Decimal."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal) or not math.isfinite(value):
        return None
    return float(value)


def _pair(ctx: Attempt[Any]) -> tuple[Any, str]:
    return ctx.lease.job_id, ctx.lease.token
