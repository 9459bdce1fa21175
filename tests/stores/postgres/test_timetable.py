"""What a timetable does with a busy server."""

from __future__ import annotations

from datetime import timedelta

import pytest

from stowhand.errors import StoreError
from stowhand.jobs.job import NewJob
from stowhand.protocols.queue_store import Tick
from stowhand.stores.postgres.queue import PostgresStore
from tests.conftest import Run
from tests.stores.postgres.conftest import Sql

DEADLOCKS = """
create sequence public.entries;
create function public.deadlock() returns trigger language plpgsql as $$
begin
  if nextval('public.entries') <= %s then
    raise exception 'deadlock detected' using errcode = '40P01';
  end if;
  return new;
end $$;
create trigger deadlock before insert on stowhand.ticks for each row execute function public.deadlock()
"""


@pytest.fixture
def postgres_url(own_url: str) -> str:
    return own_url


@pytest.mark.parametrize("count", [1, 3])
def test_a_deadlock_is_retried_and_creates_no_second_job(store: PostgresStore, sql: Sql, run: Run, count: int) -> None:
    sql(DEADLOCKS.replace("%s", str(count)))

    async def story() -> None:
        minute = (await store.timetable.now()).replace(second=0, microsecond=0)
        ticks = [
            Tick(identifier="report", at=minute - timedelta(minutes=back), job=NewJob(task="t"), spec="s")
            for back in (1, 0)
        ]
        assert [one.is_own for one in await store.timetable.schedule(ticks)] == [True, True]
        await store.close()

    run(story())
    assert sql("select count(*) from stowhand.jobs") == [(2,)]


def test_repeated_deadlocks_are_an_error_and_no_tick_is_entered(store: PostgresStore, sql: Sql, run: Run) -> None:
    sql(DEADLOCKS.replace("%s", "1000"))

    async def story() -> None:
        minute = (await store.timetable.now()).replace(second=0, microsecond=0)
        with pytest.raises(StoreError, match="deadlock"):
            await store.timetable.schedule([Tick(identifier="report", at=minute, job=NewJob(task="t"), spec="s")])
        assert list(await store.timetable.known_items()) == []
        await store.close()

    run(story())
    assert sql("select count(*) from stowhand.jobs") == [(0,)]
