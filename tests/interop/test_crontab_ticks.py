"""The same crontab, given to the original's scheduler and to ours after the same absence: the same jobs.

Nobody waits for real minutes: the original is started with a shifted clock, ours on a store with a pinned one.
"""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from stowhand.cron.crontab import parse_crontab
from stowhand.cron.scheduler import Scheduler
from stowhand.events import CronStarted, Events
from stowhand.protocols.store import StoreOptions
from stowhand.stores.postgres.queue import PostgresStore
from tests.interop.original import Original

pytestmark = pytest.mark.xdist_group("interop")

CRONTAB = """\
# every form of the grammar, with a backfill of two days
*/5 * * * * every_five ?fill=6h
7-9,30,45-47 */6 * * * lists_and_ranges ?fill=2d {a: 'x # y', b: [1, 2.5],}
0 4 * * 1 mondays ?fill=2d&max=3&priority=7
0 0 * * 0,3 sunday_and_wednesday ?fill=2d
0 12 29 2 * leap_day ?fill=2d&queue=serial
0 6 1 * * first_of_the_month ?fill=2d
15 6 1 * 2 first_or_tuesday ?fill=2d
30 3 */2 * * every_other_day ?fill=2d
10 1 * */3 * every_third_month ?fill=2d
20 2 * * 5-7 weekend ?fill=2d
0 */4 * * * rollup ?fill=5h {onboarding: false}
1 * * * * not_filled
*/20 8 * * * another:name ?id=named&fill=1d12h
*/7 23 28-31 12 * end_of_year ?fill=2d
"""

OLD, NEW = "0.13.0", "0.17.3"
MOMENTS = ["2028-03-01T00:07:20Z", "2027-01-01T05:00:20Z", "2026-08-04T11:59:20Z"]
ABSENT_FOR = timedelta(days=3)

Job = tuple[Any, ...]


@pytest.mark.parametrize(
    ("original", "moment"), [*((OLD, moment) for moment in MOMENTS), (NEW, MOMENTS[0])], indirect=["original"]
)
def test_both_schedule_the_same_jobs_after_the_same_absence(
    both: str, original: Original, moment: str, tmp_path: Path
) -> None:
    now = datetime.fromisoformat(moment).astimezone(UTC)
    crontab = tmp_path / "crontab"
    crontab.write_text(CRONTAB)
    items = parse_crontab(CRONTAB)
    with psycopg.connect(both, autocommit=True) as connection:
        for item in items:
            for table in ("graphile_worker.known_crontabs", "stowhand.crontab"):
                if table.startswith("graphile") and original.version >= "0.16":
                    table = "graphile_worker._private_known_crontabs"
                statement = f"insert into {table} (identifier, known_since) values (%s, %s)"
                connection.execute(statement.encode(), (item.identifier, now - ABSENT_FOR))
        original.backfill(both, crontab, moment)
        asyncio.run(_backfill(both, now))
        theirs, ours = _jobs(connection, original), _ours(connection)
    assert len(ours) > 100
    assert ours == theirs, sorted(set(ours) ^ set(theirs))


async def _backfill(url: str, now: datetime) -> None:
    store = PostgresStore(url, StoreOptions(pinned=lambda: now))
    events, caught_up = Events(), asyncio.Event()
    events.on(CronStarted, lambda _: caught_up.set())
    scheduler = Scheduler(store, parse_crontab(CRONTAB), events)
    running = asyncio.create_task(scheduler.run())
    try:
        async with asyncio.timeout(30):
            await caught_up.wait()
    finally:
        scheduler.stop()
        await running
        await store.close()


def _jobs(connection: psycopg.Connection[Any], original: Original) -> list[Job]:
    if original.version >= "0.16":
        query = """select t.identifier, j.payload, q.queue_name, j.priority, j.max_attempts, j.run_at
            from graphile_worker._private_jobs j join graphile_worker._private_tasks t on t.id = j.task_id
            left join graphile_worker._private_job_queues q on q.id = j.job_queue_id"""
    else:
        query = """select task_identifier, payload, queue_name, priority, max_attempts, run_at
            from graphile_worker.jobs"""
    return _sorted(connection.execute(query.encode()).fetchall())


def _ours(connection: psycopg.Connection[Any]) -> list[Job]:
    query = b"select task_identifier, payload, queue_name, priority, max_attempts, run_at from stowhand.jobs"
    return _sorted(connection.execute(query).fetchall())


def _sorted(rows: list[Job]) -> list[Job]:
    return sorted(
        (task, json.dumps(payload, sort_keys=True), serial or "", priority, most, run_at.astimezone(UTC))
        for task, payload, serial, priority, most, run_at in rows
    )
