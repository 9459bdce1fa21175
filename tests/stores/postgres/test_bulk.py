"""Many jobs in one call: the next thousand is gathered while the server writes the one before."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from stowhand.errors import InvalidJob
from stowhand.jobs.job import NewJob
from stowhand.stores.postgres.queue import PostgresStore
from stowhand.stores.postgres.queue.producer import MAX_JOBS_PER_CHUNK


class SourceFailedError(Exception):
    """The caller's own."""


def failing_source(after: int) -> Iterator[NewJob]:
    yield from (NewJob(task="t") for _ in range(after))
    raise SourceFailedError


async def one_by_one(jobs: Iterator[NewJob]) -> AsyncIterator[NewJob]:
    for job in jobs:
        yield job


@pytest.mark.parametrize("after", [0, 1, MAX_JOBS_PER_CHUNK, MAX_JOBS_PER_CHUNK + 1, 3 * MAX_JOBS_PER_CHUNK - 1])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_source_that_fails_during_a_write_leaves_no_job(
    store: PostgresStore, sql: Any, run: Any, after: int, asynchronous: bool
) -> None:
    async def story() -> None:
        source = failing_source(after)
        with pytest.raises(SourceFailedError):
            await store.jobs.enqueue_many(one_by_one(source) if asynchronous else source)
        assert await store.jobs.enqueue_many([NewJob(task="after")]), "the connection is as good as new"
        await store.close()

    run(story())
    assert sql("select task from stowhand.live") == [("after",)]


def test_a_refused_part_and_a_failing_source_leave_no_job(store: PostgresStore, sql: Any, run: Any) -> None:
    def source() -> Iterator[NewJob]:
        yield NewJob(task="x" * 129)  # refused by the server: nobody has checked it before
        yield from failing_source(MAX_JOBS_PER_CHUNK + 5)

    async def story() -> None:
        with pytest.raises((SourceFailedError, InvalidJob)):
            await store.jobs.enqueue_many(source())
        await store.close()

    run(story())
    assert sql("select count(*) from stowhand.live") == [(0,)]


def test_ids_are_in_the_order_of_the_jobs_across_parts(store: PostgresStore, sql: Any, run: Any) -> None:
    async def story() -> list[int]:
        ids = await store.jobs.enqueue_many(
            NewJob(task="t", payload=str(n), key=str(n) if n % 7 == 0 else None)
            for n in range(2 * MAX_JOBS_PER_CHUNK + 3)
        )
        await store.close()
        return ids

    ids = run(story())
    payloads = dict(sql("select id, payload::text::int from stowhand.live"))
    assert [payloads[one] for one in ids] == list(range(2 * MAX_JOBS_PER_CHUNK + 3))
