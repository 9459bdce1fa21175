"""A deadlock while a job is settled, a mistake while a runner stops, numbers that would make it spin."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import psycopg
import pytest

from stowhand.errors import ConfigurationError
from stowhand.jobs.job import State
from stowhand.runner import WorkerEvents, make_worker_utils, run, run_once
from stowhand.tasks.context import Helpers
from stowhand.worker.host import Host, Timings

DEADLOCK_ONCE = """
create sequence public.settlements;
create function public.deadlock_once() returns trigger language plpgsql as $$
begin
  if nextval('public.settlements') = 1 then
    raise exception 'deadlock detected' using errcode = '40P01';
  end if;
  return coalesce(new, old);
end $$;
create trigger deadlock_once before update or delete on stowhand.live
  for each row when (old.state = 'processing') execute function public.deadlock_once();
"""


async def test_a_deadlock_while_settling_costs_a_repeat_and_nothing_else(postgres_url: str) -> None:
    ran: list[int] = []
    completed: list[int] = []
    events = WorkerEvents()
    events.on("job:success", lambda event: completed.append(event.job.id))

    async def task(payload: Any, helpers: Helpers) -> str:
        ran.append(helpers.job.id)
        return "done"

    async with await make_worker_utils(connection_string=postgres_url) as utils:
        await utils.migrate()
        with psycopg.connect(postgres_url) as connection:
            connection.execute(DEADLOCK_ONCE)
        await utils.add_jobs([{"identifier": "task"}, {"identifier": "task", "queue_name": "q"}])
        await run_once(connection_string=postgres_url, task_list={"task": task}, events=events)
        states = [job.state if (job := await utils._store.jobs.get(one)) else None for one in (1, 2)]
    with psycopg.connect(postgres_url) as connection:
        settlements = connection.execute("select last_value from settlements").fetchone()
    assert settlements is not None
    assert settlements[0] > 2, "no settlement met the deadlock"
    assert sorted(ran) == sorted(completed) == [1, 2]
    assert states == [State.COMPLETED, State.COMPLETED]


async def test_an_error_during_the_stop_is_reported_and_raised(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = partial(Host, timings=Timings(final_timeout=0.05))  # what it could not record is waited for
    monkeypatch.setattr("stowhand.worker.worker.Host", quick)
    begun, may_end = asyncio.Event(), asyncio.Event()
    notices: list[str] = []
    events = WorkerEvents()
    events.on("pool:gracefulShutdown:error", lambda event: notices.append(f"{event.pool.worker_id}: {event.error}"))

    async def task(payload: Any) -> None:
        begun.set()
        await may_end.wait()

    runner = await run(
        connection_string=sqlite_url, no_handle_signals=True, events=events, name="w", task_list={"task": task}
    )

    async def broken(batch: object, *, repeat: bool = False) -> Any:
        raise ZeroDivisionError("a bug in the store")

    runner._plan.store.settle = broken  # type: ignore[method-assign]
    events.on("pool:gracefulShutdown", lambda event: may_end.set())
    await runner.add_job("task")
    await begun.wait()
    with pytest.raises(ZeroDivisionError):
        await runner.stop()
    assert notices == ["w: a bug in the store"]


@pytest.mark.parametrize("number", ["poll_interval", "lease", "concurrency", "timeout"])
@pytest.mark.parametrize("value", [0, -1])
async def test_a_number_of_zero_or_less_is_refused(sqlite_url: str, number: str, value: int) -> None:
    wrong: Any = {number: value}
    with pytest.raises(ConfigurationError, match=f"{number}: got {value}, must be (more than 0|from 1 to)"):
        await run(connection_string=sqlite_url, task_list={"task": print}, **wrong)


async def test_a_task_knows_the_queue_of_its_job(sqlite_url: str) -> None:
    serials: list[str | None] = []

    async def task(payload: Any, helpers: Helpers) -> None:
        serials.append(helpers.job.serial)

    async with await make_worker_utils(connection_string=sqlite_url) as utils:
        await utils.migrate()
        await utils.add_job("task", queue_name="q")
        await utils.add_job("task")
    await run_once(connection_string=sqlite_url, task_list={"task": task}, concurrency=1)
    assert serials == ["q", None]


async def test_run_once_stops_on_request(sqlite_url: str) -> None:
    ran: list[int] = []
    events = WorkerEvents()
    pools: list[Any] = []
    events.on("pool:create", lambda event: pools.append(event.worker_pool))

    async def task(payload: Any, helpers: Helpers) -> None:
        ran.append(helpers.job.id)
        pools[0].graceful_shutdown("enough for today")
        await asyncio.sleep(0)

    async with await make_worker_utils(connection_string=sqlite_url) as utils:
        await utils.migrate()
        await utils.add_jobs([{"identifier": "task", "queue_name": "q"} for _ in range(3)])
        await run_once(connection_string=sqlite_url, task_list={"task": task}, events=events)
        states = [job.state if (job := await utils._store.jobs.get(one)) else None for one in (1, 2, 3)]
    assert ran == [1]
    assert states == [State.COMPLETED, State.QUEUED, State.QUEUED]
