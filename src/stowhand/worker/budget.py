"""A budget limits what runs at once by what each record needs, however many slots there are.

    budget = Budget(8 * 1024**3, cost=lambda upload: upload.size, column="size")
    worker = Worker(store, budget.around(handle), WorkerOptions(concurrency=16))

Each claim asks the store for records that fit together into what is left. The cost of a record is taken before its
handler and given back after it, so larger records are skipped, not waited for. A record that costs more than the whole
budget is never claimed: look for such records now and then.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from stowhand.errors import ConfigurationError, NonRetryable
from stowhand.jobs.conditions import TOGETHER, Condition, Where
from stowhand.protocols.attempt import Attempt
from stowhand.protocols.handler import Asking, Claimable, Function, Handler, handler_of
from stowhand.worker.admission import read_answer

if TYPE_CHECKING:
    # A lambda for ``cost`` does not reveal the record's type. (Checkers know this module without its being installed.)
    from typing_extensions import TypeVar as TypeVarWithDefault

    R = TypeVarWithDefault("R", default=Any)
else:
    R = TypeVar("R")
ROUNDING = 1e-9


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
        self.capacity = _check(capacity, cost, column)
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

    async def pre_claim(self, ctx: Asking) -> Claimable | bool:
        """Only records that fit into what is left; nothing when nothing is left."""
        if self.left <= 0:
            return False
        if callable(self._column):
            return Claimable((self._column(self.left),))
        return Claimable((Where(self._column, TOGETHER, self.left),), limit=max(ctx.free, 1))

    async def pre_handle(self, ctx: Attempt[R], record: R) -> None:
        """Take the record's cost.

        If it is higher than the condition promised, wait until there is room. Raises NonRetryable when it can never
        fit, or is no number.
        """
        given = self._cost(record)
        cost = _number(given)
        if cost is None or cost < 0:
            raise NonRetryable(f"budget: the record's cost is {given!r}, and not a number of 0 or more")
        if cost > self.capacity * (1 + ROUNDING):
            raise NonRetryable(f"budget: the record costs {cost:g}, and the whole budget is {self.capacity:g}")
        while cost > self.left + self.capacity * ROUNDING:
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
        return _Budgeted(self, handler_of(handler))


class _Budgeted:
    """A handler and a budget. ``pre_handle`` of the budget comes first, ``post_handle`` last."""

    def __init__(self, budget: Budget[Any], inner: Handler) -> None:
        self._budget = budget
        self._inner = inner
        self.handle = inner.handle
        for name in ("policy", "encode", "retryable"):
            if hasattr(inner, name):
                setattr(self, name, getattr(inner, name))
        self._inner_pre_claim: Callable[[Asking], Awaitable[Any]] | None = getattr(inner, "pre_claim", None)
        self._begun: set[tuple[Any, str]] = set()

    async def pre_claim(self, ctx: Asking) -> object:
        own = await self._budget.pre_claim(ctx)
        if isinstance(own, bool) or self._inner_pre_claim is None:
            return own
        answer = read_answer(await self._inner_pre_claim(ctx))
        if answer is None:
            return False
        # A budget within this one, or a limit, may say that several come at once.
        return Claimable((*own.conditions, *answer.conditions), min(own.limit, answer.limit))

    async def pre_handle(self, ctx: Attempt[Any], record: Any) -> None:
        await self._budget.pre_handle(ctx, record)
        self._begun.add(_pair(ctx))  # what waits for room has not reached the inner hooks, and needs no clean-up
        if hasattr(self._inner, "pre_handle"):
            await self._inner.pre_handle(ctx, record)

    async def post_handle(self, ctx: Attempt[Any], record: Any) -> None:
        begun = _pair(ctx) in self._begun
        self._begun.discard(_pair(ctx))
        try:
            if begun and hasattr(self._inner, "post_handle"):
                await self._inner.post_handle(ctx, record)
        finally:
            await self._budget.post_handle(ctx, record)


def _check(capacity: object, cost: object, column: object) -> float:
    """The capacity. Raises ConfigurationError."""
    room = _number(capacity)
    if room is None or room <= 0:
        raise ConfigurationError(f"budget: a capacity of {capacity!r}; give a number of more than 0")
    if not callable(cost) or inspect.iscoroutinefunction(cost):
        raise ConfigurationError("budget: cost is a function, and no async one, that tells what a record needs")
    if not callable(column) and not (isinstance(column, str) and column):
        raise ConfigurationError(
            f"budget: {column!r} is no column; give the name of the one that holds a record's cost, or a function "
            "from what is left to a condition"
        )
    return room


def _number(value: object) -> float | None:
    """PostgreSQL's ``numeric``, and every sum of ``bigint``, comes as a Decimal."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal) or not math.isfinite(value):
        return None
    return float(value)


def _pair(ctx: Attempt[Any]) -> tuple[Any, str]:
    return ctx.lease.job_id, ctx.lease.token
