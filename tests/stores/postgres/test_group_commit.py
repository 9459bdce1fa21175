"""What callers enqueue at the same time shares a transaction, and nothing else."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from stowhand.app.app import App
from stowhand.errors import InvalidJob, OutcomeUnknown, StoreError
from stowhand.jobs.job import Job, NewJob
from stowhand.stores.group_commit import MAX_JOBS_PER_STATEMENT, MAX_STATEMENTS_IN_FLIGHT
from stowhand.stores.postgres.queue import PostgresStore
from tests.conftest import Run
from tests.stores.postgres.conftest import Sql
from tests.support.proxy import Proxy
from tests.support.spans import Spans, facts_of, traceparent_of

TRANSACTIONS = "select count(distinct xmin::text) from stowhand.live"
WAITERS = """select count(*) from pg_stat_activity
  where wait_event_type = 'Lock' and datname = current_database() and application_name like 'stowhand:%'"""


def numbered(number: int, **options: Any) -> NewJob:
    return NewJob(task="t", payload=str(number), **options)


@contextmanager
def locked(url: str) -> Iterator[psycopg.Connection[Any]]:
    """Nobody can insert: what is sent stays on its way until this is committed."""
    with psycopg.connect(url) as connection:
        connection.execute("lock table stowhand.live in exclusive mode")
        yield connection


async def on_their_way(sql: Sql, statements: int) -> None:
    async with asyncio.timeout(60):
        while (await asyncio.to_thread(sql, WAITERS))[0][0] < statements:  # noqa: ASYNC110
            await asyncio.sleep(0.002)


async def calls(store: PostgresStore, *jobs: NewJob) -> list[asyncio.Task[Job]]:
    """Each by a caller of its own; they have called when this returns."""
    tasks = [asyncio.create_task(store.jobs.enqueue(job)) for job in jobs]
    await asyncio.sleep(0)
    return tasks


async def settled(tasks: list[asyncio.Task[Job]]) -> list[Job | BaseException]:
    return await asyncio.gather(*tasks, return_exceptions=True)


def test_calls_at_the_same_time_are_two_transactions_with_ids_in_order_of_arrival(
    store: PostgresStore, sql: Sql, run: Run
) -> None:
    """The first goes at once, on a connection of its own, and all others together."""

    async def story() -> list[Job]:
        jobs = [numbered(n, delay=60.0 if n % 3 else None, serial=f"q{n % 2}", priority=n % 5) for n in range(40)]
        instance = await asyncio.gather(*map(store.jobs.enqueue, jobs))
        assert [await store.jobs.get(job.id) for job in instance] == instance
        await store.close()
        return instance

    instance = run(story())
    assert [job.id for job in instance[1:]] == sorted(job.id for job in instance[1:])
    assert [(job.payload, job.serial, job.priority) for job in instance] == [(n, f"q{n % 2}", n % 5) for n in range(40)]
    assert [(job.run_at - job.created_at).total_seconds() for job in instance] == [
        60 if n % 3 else 0 for n in range(40)
    ]
    assert sql(TRANSACTIONS) == [(2,)]


def test_a_second_statement_starts_during_the_first_and_a_third_waits(
    store: PostgresStore, postgres_url: str, sql: Sql, run: Run
) -> None:
    async def story() -> None:
        with locked(postgres_url) as lock:
            tasks = await calls(store, numbered(0))
            await on_their_way(sql, 1)
            tasks += await calls(store, numbered(1))
            await on_their_way(sql, MAX_STATEMENTS_IN_FLIGHT)
            for n in range(2, 12):
                tasks += await calls(store, numbered(n))
            lock.commit()
        instance = await asyncio.gather(*tasks)
        assert [job.payload for job in instance] == list(range(12))
        assert [job.id for job in instance[2:]] == sorted(job.id for job in instance[2:])
        await store.close()

    run(story(), timeout=100)
    assert sql(TRANSACTIONS) == [(3,)]


def test_a_job_with_a_key_is_enqueued_by_itself(store: PostgresStore, sql: Sql, run: Run) -> None:
    """Two statements with the same keys in different orders would wait for each other."""

    async def story() -> None:
        jobs = [numbered(n, key=f"k{n}") for n in range(5)] + [NewJob(task="t", payload=f'"{"x" * 9000}"')]
        await asyncio.gather(*map(store.jobs.enqueue, jobs))
        await store.close()

    run(story())
    assert sql(TRANSACTIONS) == [(6,)]


def test_only_the_caller_of_a_refused_job_gets_the_error(postgres_url: str, sql: Sql, run: Run) -> None:
    store = PostgresStore(postgres_url)
    sql("create function refuse() returns trigger language plpgsql as"
        " $$ begin raise exception 'not for %', new.task; end $$")  # fmt: skip
    sql("create trigger refuse before insert on stowhand.live for each row when (new.task = 'bad')"
        " execute function refuse()")  # fmt: skip
    wrong = {3: "no json", 11: '"\ud800"', 12: '"\x00"'}

    async def story() -> list[Job | BaseException]:
        jobs = [NewJob(task="t", payload=wrong.get(n, str(n))) for n in range(30)] + [NewJob(task="bad"), numbered(31)]
        result = await settled(await calls(store, *jobs))
        await store.close()
        return result

    try:
        result = run(story())
    finally:
        sql("drop function refuse() cascade")
    errors = {place: one for place, one in enumerate(result) if isinstance(one, BaseException)}
    assert {place: type(error) for place, error in errors.items()} == dict.fromkeys(wrong, InvalidJob) | {
        30: StoreError
    }
    assert "not for bad" in str(errors[30])
    assert [one.payload for one in result if isinstance(one, Job)] == [n for n in range(32) if n not in errors]
    rows = sql("select payload::text::int from stowhand.live order by 1")
    assert rows == [(n,) for n in range(32) if n not in errors]


def test_a_lost_connection_gives_each_caller_an_unknown_outcome(postgres_url: str, sql: Sql, run: Run) -> None:
    async def story() -> list[Job | BaseException]:
        with Proxy(postgres_url) as proxy:
            store = PostgresStore(proxy.url)
            await store.jobs.enqueue(numbered(-1))  # what a first connection asks is answered
            proxy.lose_next_reply("enqueue", b"cut here")
            result = await settled(await calls(store, numbered(0), *(NewJob(task="cut here") for _ in range(5))))
            assert proxy.lost.is_set()
            assert (await store.jobs.enqueue(numbered(1))).payload == 1
            await store.close()
            return result

    first, *others = run(story())
    assert isinstance(first, Job)
    assert [type(one) for one in others] == [OutcomeUnknown] * 5
    assert len({id(one) for one in others}) == 5
    assert "may or may not have been committed" in str(others[0])
    assert sql("select count(*) from stowhand.live where task = 'cut here'") == [(5,)]


def test_an_unreachable_store_is_reported_to_each_caller(run: Run) -> None:
    async def story() -> list[Job | BaseException]:
        store = PostgresStore("postgresql://127.0.0.1:1/nowhere")
        result = await settled(await calls(store, *map(numbered, range(4))))
        await store.close()
        return result

    assert [type(one).__name__ for one in run(story())] == ["StoreUnreachable"] * 4


def test_a_cancelled_call_is_removed_before_sending_and_still_committed_afterwards(
    store: PostgresStore, postgres_url: str, sql: Sql, run: Run
) -> None:
    async def story() -> None:
        with locked(postgres_url) as lock:
            tasks = await calls(store, numbered(0))
            tasks += await calls(store, numbered(1), numbered(2), numbered(3))
            await on_their_way(sql, MAX_STATEMENTS_IN_FLIGHT)
            tasks += await calls(store, numbered(4), numbered(5), numbered(6))
            for place in (2, 5):
                tasks[place].cancel()
            await asyncio.wait([tasks[2], tasks[5]])
            lock.commit()
        result = await settled(tasks)
        assert [place for place, one in enumerate(result) if isinstance(one, asyncio.CancelledError)] == [2, 5]
        assert sum(isinstance(one, Job) for one in result) == 5
        await store.close()

    run(story(), timeout=100)
    assert sql("select payload::text from stowhand.live order by 1") == [(n,) for n in "012346"]


def test_closing_a_store_waits_for_sent_statements(store: PostgresStore, postgres_url: str, sql: Sql, run: Run) -> None:
    async def story() -> None:
        with locked(postgres_url) as lock:
            tasks = await calls(store, numbered(0), numbered(1), numbered(2))
            await on_their_way(sql, 2)
            for task in tasks[1:]:
                task.cancel()
            closing = asyncio.create_task(store.close())
            await asyncio.wait(tasks[1:])
            assert not closing.done()
            lock.commit()
        await asyncio.gather(closing, tasks[0])
        assert len(asyncio.all_tasks()) == 1

    run(story(), timeout=100)
    assert sql("select count(*) from stowhand.live") == [(3,)]


def test_each_call_has_its_own_span_which_its_job_carries(store: PostgresStore, sql: Sql, run: Run) -> None:
    spans = Spans()

    async def story() -> list[Job]:
        traced = spans.traces().store(store)
        instance = await asyncio.gather(*(traced.jobs.enqueue(NewJob(task="t", flags=("a", "a"))) for _ in range(8)))
        assert [await store.jobs.get(job.id) for job in instance] == instance
        await store.close()
        return instance

    instance = run(story())
    carried = {facts_of(span)["messaging.message.id"]: traceparent_of(span) for span in spans.named("enqueue t")}
    assert {str(job.id): job.flags for job in instance} == {
        number: ("a", f"traceparent={parent}") for number, parent in carried.items()
    }
    assert len(carried) == 8
    assert sql(TRANSACTIONS) == [(2,)]


def test_a_statement_has_a_limit_of_jobs_and_of_text(
    store: PostgresStore, postgres_url: str, sql: Sql, run: Run
) -> None:
    long = '"' + "x" * 8000 + '"'

    async def story() -> None:
        with locked(postgres_url) as lock:
            tasks = await calls(store, numbered(0))
            tasks += await calls(store, numbered(0))
            await on_their_way(sql, MAX_STATEMENTS_IN_FLIGHT)
            tasks += await calls(store, *(NewJob(task="many") for _ in range(MAX_JOBS_PER_STATEMENT + 5)))
            tasks += await calls(store, *(NewJob(task="long", payload=long) for _ in range(200)))
            lock.commit()
        await asyncio.gather(*tasks)
        await store.close()

    run(story(), timeout=100)
    assert sorted(sql("select count(*) from stowhand.live group by xmin::text")) == [
        (1,), (1,), (69,), (5 + 131,), (MAX_JOBS_PER_STATEMENT,)
    ]  # fmt: skip


def test_threads_that_enqueue_at_the_same_time_share_transactions_too(postgres_url: str, sql: Sql, run: Run) -> None:
    app = App(postgres_url)

    @app.task
    def noop(number: int) -> None: ...

    instance: dict[int, Job] = {}

    def enqueue(number: int) -> None:
        instance[number] = app.sync.enqueue(noop, number).job

    async def arrived() -> int:
        return len(asyncio.all_tasks())

    enqueue(0)
    threads = [threading.Thread(target=enqueue, args=(number,)) for number in range(1, 21)]
    with locked(postgres_url) as lock:
        for thread in threads:
            thread.start()
        while app.sync.wait_for(lambda _: arrived(), "") < len(threads):
            pass
        lock.commit()
    for thread in threads:
        thread.join(60)
    app.sync.close()
    assert {number: job.payload for number, job in instance.items()} == {n: {"number": n} for n in range(21)}
    assert sql("select count(*) from stowhand.live") == [(21,)]
    assert sql(TRANSACTIONS)[0][0] <= 1 + MAX_STATEMENTS_IN_FLIGHT + 2
