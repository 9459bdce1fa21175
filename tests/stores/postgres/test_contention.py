"""Fifty sessions on one key while workers lock its job: every call gives a row, and nothing that was said is lost."""

from __future__ import annotations

import asyncio
import random
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from stowhand.events import ClaimFinished, Events
from stowhand.jobs.job import Job, NewJob
from stowhand.protocols.attempt import Attempt
from stowhand.protocols.options import WorkerOptions
from stowhand.protocols.queue_store import ActionResult, Answer
from stowhand.stores.postgres.queue import PostgresStore
from stowhand.worker.worker import Worker
from tests.conftest import Run
from tests.stores.postgres.conftest import Sql
from tests.worker.worker_harness import handler_of

SESSIONS = 50
CALLS = 8
WORKERS = 2

ADD = {
    "add_job": "select id, key from stowhand.add_job('t', %s::json, %s, job_key := 'k', job_key_mode := %s)",
    "add_jobs": """select id, key from stowhand.add_jobs(
        array[('t', %s::json, %s, null, null, 'k', null, null, null)::stowhand.job_spec], %s = 'preserve_run_at')""",
}
CLAIM = "select id, payload from stowhand.claim(%s, %s, 3, 30, null, null, false) where id > 0"
SETTLE = """select count(*) from stowhand.settle_attempts(array[%s::bigint], array[%s::uuid], array[%s], array[0.0],
    array[%s], array[null::text], array[null::text], array[null::text], array[null::text], true)"""

LOOK = "select found from stowhand.look(array[%s::bigint], array[%s::uuid])"


@pytest.mark.parametrize("serial", [None, "q"])
@pytest.mark.parametrize("call", ["add_job", "add_jobs"])
def test_fifty_sessions_add_one_key_while_workers_lock_it(
    postgres_url: str, sql: Sql, call: str, serial: str | None
) -> None:
    added = threading.Event()
    started = threading.Barrier(SESSIONS)
    worked_off: list[int] = []

    def produce(session: int) -> list[int]:
        mode = random.Random(session).choice(["replace", "preserve_run_at"])
        ids = []
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            started.wait(60)
            for number in range(CALLS):
                values = (f"[{session * CALLS + number}]", serial, mode)
                ((job_id, key),) = connection.execute(ADD[call], values).fetchall()
                assert key == "k"
                ids.append(job_id)
        return ids

    def work(number: int) -> None:
        dice = random.Random(number)
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            while True:
                over = added.is_set()
                token = str(uuid.uuid4())
                claimed = connection.execute(CLAIM, (f"w{number}", token)).fetchall()
                for job_id, payload in claimed:
                    # Handed back at times, so that one that has lost its key comes again.
                    state = dice.choice(["completed", "completed", "queued"])
                    while connection.execute(SETTLE, (job_id, token, state, state == "queued")).fetchone() != (1,):
                        # A producer has the row; it is never lost.
                        result = connection.execute(LOOK, (job_id, token)).fetchall()
                        assert result == [("busy",)]
                    if state == "completed":
                        worked_off.extend(elements(payload))
                if over and not claimed:
                    return

    with ThreadPoolExecutor(SESSIONS + WORKERS) as threads:
        workers = [threads.submit(work, number) for number in range(WORKERS)]
        try:
            producers = [threads.submit(produce, number) for number in range(SESSIONS)]
            ids = [job_id for producer in producers for job_id in producer.result(timeout=60)]
        finally:
            added.set()
        for worker in workers:
            worker.result(timeout=60)
    assert len(ids) == SESSIONS * CALLS
    assert None not in ids
    assert sql("select count(*) from stowhand.live") == [(0,)]
    assert sorted(worked_off) == list(range(SESSIONS * CALLS)), "each was worked off, and once"


def elements(payload: str) -> list[int]:
    return [int(number) for number in payload.strip("[]").split(",")]


def test_fifty_sessions_of_the_unsafe_mode_share_one_row(postgres_url: str, sql: Sql) -> None:
    started = threading.Barrier(SESSIONS)

    def produce(number: int) -> int:
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            started.wait(60)
            row = connection.execute(
                "select id from stowhand.add_job('t', job_key := 'k', job_key_mode := 'unsafe_dedupe')"
            ).fetchone()
            assert row is not None
            job_id: int = row[0]
            return job_id

    with ThreadPoolExecutor(SESSIONS) as threads:
        ids = set(threads.map(produce, range(SESSIONS)))
    assert sql("select id, revision from stowhand.live") == [(job_id, SESSIONS - 1) for job_id in ids]


def test_a_locked_job_is_refused_and_the_others_of_the_call_are_canceled(
    postgres_url: str, sql: Sql, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stowhand.stores.postgres.queue.administrator.MAX_JOBS_PER_TRANSACTION", 3)
    sql("alter function stowhand.cancel set lock_timeout = '50ms'")

    async def cancel() -> list[Answer]:
        store = PostgresStore(postgres_url)
        ids = await store.jobs.enqueue_many([NewJob(task="t")] * 5)
        with psycopg.connect(postgres_url) as holder:
            holder.execute("select from stowhand.live where id = %s for update", (ids[1],))
            answers = list(await store.admin.cancel_jobs(ids))
        await store.close()
        return answers

    try:
        answers = run(cancel())
    finally:
        sql("alter function stowhand.cancel set lock_timeout = '5s'")
    done, refused = ActionResult.DONE, ActionResult.REFUSED
    assert [answer.result for answer in answers] == [done, refused, done, done, done]
    assert "transaction holds" in answers[1].reason
    assert sql("select count(*) from stowhand.live") == [(1,)]


def test_a_job_whose_row_is_locked_for_a_moment_does_not_wait_for_the_next_poll(
    store: PostgresStore, postgres_url: str, sql: Sql, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim that the notification causes passes over the row, and nothing notifies when the lock is released."""
    monkeypatch.setattr("stowhand.stores.postgres.queue.idle_announcement.RECLAIM_DELAYS_SECONDS", ())
    claims: asyncio.Queue[int] = asyncio.Queue()
    done = asyncio.Event()

    async def act(attempt: Attempt[Job]) -> None:
        done.set()

    async def story() -> None:
        events = Events()
        events.on(ClaimFinished, lambda event: claims.put_nowait(event.jobs))
        worker = Worker(store, handler_of(act), WorkerOptions(poll_interval=600.0), events=events)
        running = asyncio.create_task(worker.run())
        async with asyncio.timeout(30):
            while not store.is_listening or claims.empty():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        sql("select stowhand.pause_task('t')")
        sql("select stowhand.add_job('t')")
        with psycopg.connect(postgres_url) as other:
            other.execute("select from stowhand.live for update")
            while not claims.empty():
                claims.get_nowait()
            sql("select stowhand.resume_task('t')")
            assert await asyncio.wait_for(claims.get(), 30) == 0
            other.rollback()
        await asyncio.wait_for(done.wait(), 30)
        worker.stop()
        await running
        await store.close()

    run(story(), timeout=60)
