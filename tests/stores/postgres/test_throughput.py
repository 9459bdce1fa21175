"""Throughput in PostgreSQL: writers never wait for each other in a circle, nor write what is being added up."""

from __future__ import annotations

import asyncio
import random

import psycopg
import pytest

from stowhand.protocols.throughput import OutcomeCounts, TaskMinute, ThroughputKeeper, total
from stowhand.stores.postgres.queue import PostgresStore
from stowhand.worker.heartbeat_thread import HeartbeatThread
from tests.conftest import Run
from tests.stores.postgres.conftest import Sql

WRITERS, TASKS, ROUNDS = 8, 30, 4


def test_eight_writers_of_thirty_tasks_never_deadlock(postgres_url: str, sql: Sql, run: Run) -> None:
    """Each in an order of its own, beside one that folds."""

    async def write(number: int, minute: int) -> None:
        store = PostgresStore(postgres_url)
        thread = HeartbeatThread(f"writer {number}", store.heartbeats)
        draw = random.Random(number)
        try:
            for round_ in range(1, ROUNDS + 1):
                rows = [TaskMinute(minute, f"t{task}", OutcomeCounts(ok=round_)) for task in range(TASKS)]
                draw.shuffle(rows)

                async def send(heartbeats: object, rows: list[TaskMinute] = rows) -> None:
                    assert isinstance(heartbeats, ThroughputKeeper)
                    assert not await heartbeats.write_throughput(f"w{number}", rows)

                await thread.call(send)
                if number == 0:
                    await thread.call(lambda heartbeats: heartbeats.maintain())
        finally:
            await thread.close()
            await store.close()

    async def all_of_them() -> None:
        store = PostgresStore(postgres_url)
        now = await store.timetable.now()
        try:
            await asyncio.gather(*(write(number, int(now.timestamp()) // 60) for number in range(WRITERS)))
            result = total(await store.inspect.throughput(now, now.replace(year=now.year + 1)))
            assert result.ok == WRITERS * TASKS * ROUNDS
        finally:
            await store.close()

    deadlocks = "select deadlocks from pg_stat_database where datname = current_database()"
    before = sql(deadlocks)
    run(all_of_them())
    assert sql(deadlocks) == before
    assert sql("select count(*) from stowhand.throughput") == [(WRITERS * TASKS,)]


def test_a_writer_waits_for_a_fold_and_writes_no_closed_minute(postgres_url: str, sql: Sql) -> None:
    write = """select count(*) from stowhand.write_throughput('w',
        jsonb_build_array(jsonb_build_object('minute', {minute}, 'task', 't',
        'tally', '{{"ok": 1}}'::jsonb)))"""
    ((minute,),) = sql("select floor(extract(epoch from now()) / 60)::bigint")
    write = write.format(minute=minute)
    with psycopg.connect(postgres_url) as folding, psycopg.connect(postgres_url, autocommit=True) as writing:
        folding.execute("select pg_advisory_xact_lock(hashtextextended('stowhand:wake', 3))")
        writing.execute("set statement_timeout = 200")
        with pytest.raises(psycopg.errors.QueryCanceled):
            writing.execute(write.encode())
        folding.execute(
            "insert into stowhand.throughput values (60, to_timestamp(%s * 60), 't', '', '{\"ok\": 5}')", (minute,)
        )
        folding.commit()
        writing.execute("set statement_timeout = 60000")
        assert writing.execute(write.encode()).fetchone() == (1,), "it is refused"
    assert sql("select tally->>'ok' from stowhand.throughput") == [("5",)]
