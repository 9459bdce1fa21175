"""A budget holds, whatever the number of slots, and nobody starves who fits."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from stowhand.errors import ConfigurationError
from stowhand.events import JobStarted
from stowhand.jobs.conditions import Where, sql
from stowhand.jobs.job import Job, State
from stowhand.protocols.attempt import Attempt, AttemptLogger
from stowhand.protocols.handler import ClaimContext, ClaimDecision
from stowhand.testing import FakeClock
from stowhand.worker.admission import Budget
from tests.worker.worker_harness import ChoosyStore, at_work, taking

FITS = Where("size", "together <=", 10)


def cost(job: Job) -> float:
    return job.priority


async def test_ten_hold_one_of_three_sixes_at_a_time_in_three_slots() -> None:
    clock = FakeClock()
    budget = Budget(10, cost=cost, column="priority")
    async with at_work(
        budget.around(lambda ctx, job: taking(clock, 1)(ctx)), clock=clock, store=ChoosyStore(clock), concurrency=3
    ) as harness:
        for _ in range(3):
            await harness.add(priority=6)
        await clock.advance(2.5)
        assert len(harness.events(JobStarted)) == 3, "the next starts when the one before it ends, not at the next poll"
        await clock.advance(2)
        assert {row.state for row in harness.store.rows()} == {State.COMPLETED}
        assert (budget.peak, budget.taken) == (6, 0)


async def test_a_small_record_is_claimed_before_a_large_one_that_does_not_fit() -> None:
    clock = FakeClock()
    budget = Budget(10, cost=cost, column="priority")
    async with at_work(
        budget.around(lambda ctx, job: taking(clock, 10)(ctx)), clock=clock, store=ChoosyStore(clock), concurrency=3
    ) as harness:
        for size in (6, 7, 4):
            await harness.add(priority=size)
        await clock.advance(1)
        assert [event.job_id for event in harness.events(JobStarted)] == [3, 1], "smaller priorities come first"
        assert budget.left == 0


async def test_a_record_beyond_its_column_waits_and_one_beyond_the_budget_fails() -> None:
    clock = FakeClock()
    costs = iter([6.0, 6.0, 11.0])
    budget: Budget[Job] = Budget(10, cost=lambda job: next(costs), column="priority")
    async with at_work(
        budget.around(lambda ctx, job: taking(clock, 5)(ctx)), clock=clock, store=ChoosyStore(clock), concurrency=3
    ) as harness:
        await harness.add(priority=1)
        await harness.add(priority=1)
        await clock.advance(4)
        assert budget.taken == 6
        await clock.advance(5)
        assert (budget.taken, budget.peak) == (6, 6)
        job = await harness.does(priority=1, seconds=6)
        assert job.state is State.FAILED
        assert "the whole budget is 10" in str(job.last_error)


async def test_the_capacity_is_freed_with_every_outcome() -> None:
    clock = FakeClock()
    budget = Budget(10, cost=cost, column="priority")

    async def fails(ctx: Attempt[Job], job: Job) -> None:
        raise ValueError

    async with at_work(budget.around(fails), clock=clock, store=ChoosyStore(clock)) as harness:
        await harness.does(priority=10)
        assert budget.left == 10


class Inner:
    def __init__(self, answer: Any) -> None:
        self.answer = answer

    async def pre_claim(self, ctx: ClaimContext) -> Any:
        return self.answer

    async def handle(self, ctx: Attempt[Job], record: Job) -> None:
        pass


@pytest.mark.parametrize(
    ("theirs", "both"),
    [
        (False, False),
        (True, ClaimDecision((FITS,))),
        (sql("x = {}", 1), ClaimDecision((FITS, sql("x = {}", 1)))),
        ([Where("a", "=", 1)], ClaimDecision((FITS, Where("a", "=", 1)))),
        (ClaimDecision(limit=3), ClaimDecision((FITS,), limit=3)),
        (ClaimDecision(limit=9), ClaimDecision((FITS,), limit=5)),
    ],
)
async def test_the_handlers_own_pre_claim_counts_too(theirs: Any, both: Any) -> None:
    budget = Budget(10, cost=cost, column="size")
    handler: Any = budget.around(Inner(theirs))
    asking = ClaimContext("w", free=5, running=0, logger=AttemptLogger.mute())
    assert await handler.pre_claim(asking) == both


async def test_a_cost_may_be_a_decimal_as_numeric_columns_and_sums_give_it() -> None:
    clock = FakeClock()
    sums: Any = lambda job: Decimal(job.priority)  # noqa: E731
    budget: Budget[Job] = Budget(10, cost=sums, column="priority")

    async def looks(ctx: Attempt[Job], job: Job) -> None:
        assert budget.left == 4

    async with at_work(budget.around(looks), clock=clock, store=ChoosyStore(clock)) as harness:
        assert (await harness.does(priority=6)).state is State.COMPLETED


class Paired:
    """A handler that must tidy up behind each pre_handle of its own, and behind nothing else."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    async def pre_handle(self, ctx: Attempt[Job], record: Job) -> None:
        self.calls.append(f"pre {record.id}")

    async def handle(self, ctx: Attempt[Job], record: Job) -> None:
        pass

    async def post_handle(self, ctx: Attempt[Job], record: Job) -> None:
        self.calls.append(f"post {record.id}")


async def test_a_record_that_never_fits_is_not_begun_for_the_handler_inside() -> None:
    clock, inner = FakeClock(), Paired()
    budget: Budget[Job] = Budget(10, cost=lambda job: 11 if job.id == 1 else 1, column="priority")
    async with at_work(budget.around(inner), clock=clock, store=ChoosyStore(clock)) as harness:
        assert (await harness.does()).state is State.FAILED
        assert (await harness.does()).state is State.COMPLETED
        assert inner.calls == ["pre 2", "post 2"]
        assert budget.taken == 0


@pytest.mark.parametrize("wrong", [None, "", 5])
def test_a_column_that_is_none_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="is not a column"):
        Budget(10, cost=cost, column=wrong)


def test_a_cost_that_would_have_to_be_awaited_is_refused() -> None:
    async def asks(job: Job) -> float:
        return 1.0

    with pytest.raises(ConfigurationError, match="must be a plain function"):
        Budget(10, cost=asks, column="size")  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [0, -1, True, "10", float("inf"), float("nan")])
def test_a_capacity_that_is_none_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="capacity"):
        Budget(wrong, cost=cost, column="size")
