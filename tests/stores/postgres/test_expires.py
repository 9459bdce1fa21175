"""``expires`` on PostgreSQL: a row that another transaction has locked at that moment."""

from __future__ import annotations

import psycopg

from stowhand.jobs.job import EXPIRED_ERROR, NewJob
from stowhand.stores.postgres.queue import PostgresStore
from tests.conftest import Run
from tests.stores.postgres.verbs import claim


def test_a_job_that_was_locked_when_it_expired_is_canceled_soon_and_never_run(postgres_url: str, run: Run) -> None:
    async def story() -> None:
        store = PostgresStore(postgres_url)
        job = await store.jobs.enqueue(NewJob(task="t", expires=0.001))
        with psycopg.connect(postgres_url) as other:
            other.execute("select from stowhand.live where id = %s for update", [job.id])
            for tasks in (("t",), ("another",)):
                assert await claim(store, 1, tasks=tasks) == []
                assert await store.next_due(tasks) == 0, "a worker looks again at its next poll, which is not stretched"
        assert await claim(store, 1, tasks=("another",)) == []
        result = await store.jobs.get(job.id)
        assert result is not None
        assert (result.last_error, result.attempts) == (EXPIRED_ERROR, 0)
        assert await store.next_due(("another",)) is None
        await store.close()

    run(story())
