"""``on_failure`` in the database: what refuses the job that tells keeps no job from failing."""

from __future__ import annotations

from typing import Any

import pytest

from stowhand.jobs.job import NewJob, State
from stowhand.jobs.lifecycle import Fail, settle
from stowhand.protocols.queue_store import JobFilter
from stowhand.protocols.store import Verdict
from stowhand.stores.postgres.queue import PostgresStore
from tests.stores.postgres.conftest import Sql
from tests.stores.postgres.verbs import claim

JOB = NewJob(task="t", on_failure=NewJob(task="told"))
FAILED = settle(Fail("no"), attempts=1, max_attempts=1, backoff=lambda attempt: 0.0)

REFUSE = """
create function public.refuse() returns trigger language plpgsql as
  $$ begin raise exception 'nobody is to be told'; end $$;
create trigger mine before insert on stowhand.live for each row when (new.task = 'told')
  execute function public.refuse()
"""


@pytest.fixture
def postgres_url(own_url: str) -> str:
    """The trigger must not reach other tests."""
    return own_url


def test_a_trigger_that_refuses_the_failure_report_does_not_prevent_the_failure(
    store: PostgresStore, sql: Sql, run: Any
) -> None:
    sql(REFUSE)

    async def story() -> None:
        job, by_hand = [await store.jobs.enqueue(JOB) for _ in range(2)]
        (first, _) = await claim(store, 2)
        assert await store.settle([(first.lease, FAILED)]) == [Verdict.SETTLED]
        failed = await store.jobs.get(job.id)
        assert failed is not None
        assert (failed.state, failed.last_error) == (
            State.FAILED,
            "no\non_failure could not be enqueued: nobody is to be told",
        )
        await store.admin.force_unlock_workers([str(failed.worker), "w", "w1"])
        assert [one.state for one in await store.admin.permanently_fail_jobs([by_hand.id])] == [State.FAILED]
        assert await store.inspect.list(JobFilter(task="told")) == []
        await store.close()

    run(story())


def test_a_failure_in_sql_is_reported(store: PostgresStore, sql: Sql, run: Any) -> None:
    """What is written down with the job holds where no app is known."""

    async def story() -> None:
        job = await store.jobs.enqueue(JOB)
        sql(f"select from stowhand.permanently_fail_jobs(array[{job.id}], 'by SQL')")
        (told,) = await store.inspect.list(JobFilter(task="told"))
        assert told.payload == {
            "job_id": job.id,
            "task": "t",
            "arguments": {},
            "error_class": "by hand",
            "error": "by SQL",
        }
        await store.close()

    run(story())
