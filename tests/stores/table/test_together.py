"""What one claim brings may have no more than so much together: a budget is kept by the claim itself."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from stowhand.errors import ConfigurationError
from stowhand.events import ClaimFinished, Events
from stowhand.jobs.conditions import Where
from stowhand.protocols.attempt import Attempt
from stowhand.protocols.options import WorkerOptions
from stowhand.remote import HttpStore
from stowhand.table import TableStore
from stowhand.worker.admission import Budget
from stowhand.worker.worker import Worker
from tests.conftest import Run
from tests.stores.table.conftest import Place
from tests.stores.table.harness import asking, opened, options
from tests.support.shared_server import SharedServer

TEN = Where("size", "together <=", 10)


def added(place: Place, *sizes: int) -> None:
    for size in sizes:
        place.add("p", size=size)


async def sizes_of(store: Any, limit: int = 10, token: str = "", **given: Any) -> list[int]:
    request = asking(limit=limit, conditions=(TEN,), **given)
    return [claim.record["size"] for claim in await store.claim(request)]


@pytest.mark.parametrize(
    ("sizes", "limit", "first"),
    [
        ((6, 3, 2, 1), 10, [6, 3]),  # in order, and not the most that would fit
        ((20, 6, 4, 1), 10, [6, 4]),  # what is too large by itself is passed over
        ((1, 1, 1, 1), 3, [1, 1, 1]),
        ((10, 1), 10, [10]),
        ((11,), 10, []),
    ],
)
def test_a_claim_brings_as_many_in_order_as_fit_together(
    run: Run, place: Place, sizes: Sequence[int], limit: int, first: list[int]
) -> None:
    added(place, *sizes)

    async def scenario() -> None:
        async with opened(place, record=None) as store:
            assert await sizes_of(store, limit) == first
        assert place.states().count("processing") == len(first)

    run(scenario())


def test_what_is_left_over_is_free_for_others_at_once(run: Run, place: Place) -> None:
    added(place, 6, 6, 6)

    async def scenario() -> None:
        async with opened(place, record=None, view_name=None) as store:
            assert await sizes_of(store) == [6]
            other = asking("22222222-2222-4222-8222-222222222222", conditions=(TEN,))
            assert [claim.record["size"] for claim in await store.claim(other)] == [6]

    run(scenario())


def test_it_is_summed_over_http_too(run: Run, place: Place) -> None:
    added(place, 6, 3, 2)

    async def scenario() -> None:
        with SharedServer() as shared_server:
            url = await asyncio.to_thread(shared_server.lend, TableStore(place.url, options(record=None)))
            async with HttpStore(url) as remote:
                assert await sizes_of(remote) == [6, 3]

    run(scenario())


def test_a_budget_claims_several_at_once_and_holds(run: Run, place: Place) -> None:
    added(place, *[3] * 12)
    budget: Budget[Any] = Budget(10, cost=lambda record: record["size"], column="size")
    events, claims = Events(), list[int]()
    events.on(ClaimFinished, lambda event: claims.append(event.jobs))
    running = list[asyncio.Event]()

    def end_together() -> None:
        while running:
            running.pop().set()

    async def act(ctx: Attempt[Any], record: Any) -> None:
        assert budget.taken <= 10
        running.append(may_end := asyncio.Event())
        if len(running) == 3:  # no more fit; at the loop's next turn, so that this one waits too
            asyncio.get_running_loop().call_soon(end_together)
        await may_end.wait()

    async def scenario() -> None:
        async with opened(place, record=None) as store:
            await Worker(store, budget.around(act), WorkerOptions(once=True, concurrency=8), events=events).run()

    run(scenario())
    assert set(place.states()) == {"completed"}
    assert (max(claims), budget.peak) == (3, 9)
    assert [jobs for jobs in claims if jobs] == [3, 3, 3, 3], "what becomes free together is claimed in one call"


def test_it_is_for_claims_alone_and_takes_a_number(run: Run, place: Place) -> None:
    async def scenario() -> None:
        async with opened(place) as store:
            with pytest.raises(ConfigurationError, match="is for a claim; write '<='"):
                await store.queued_count(conditions=TEN)

    run(scenario())
    with pytest.raises(ConfigurationError, match="takes a number"):
        Where("size", "together <=", "10")
