"""The administration functions as people call them in SQL. What they do to each state is in the contract suite."""

from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from stowhand.errors import StoreUnreachable
from stowhand.jobs import lifecycle
from stowhand.jobs.job import NewJob, State
from stowhand.jobs.lifecycle import COMPLETED, AttemptOutcome, Settlement
from stowhand.protocols.queue_store import LEDGER_DAYS
from stowhand.protocols.store import Verdict
from stowhand.protocols.validation import MANUALLY_FAILED
from stowhand.stores.postgres.queue import PostgresStore
from tests.stores.postgres.conftest import Sql
from tests.stores.postgres.verbs import maintain, take, wait_for_a_waiter

CALLS = {
    "complete_jobs": "stowhand.complete_jobs(ARRAY[7, 99, 38674])",
    "permanently_fail_jobs": "stowhand.permanently_fail_jobs(ARRAY[7, 99, 38674], 'Enter reason here')",
    "reschedule_jobs": """stowhand.reschedule_jobs(
      ARRAY[7, 99, 38674],
      run_at := NOW() + interval '5 minutes',
      priority := 5,
      attempts := 5,
      max_attempts := 25
    )""",
}


@pytest.fixture
def numbered(sql: Sql) -> None:
    """Jobs 7, 99 and 38674 wait, and 8."""
    for number in (7, 8, 99, 38674):
        sql("select setval(pg_get_serial_sequence('stowhand.live', 'id'), %s, false)", number)
        sql("select stowhand.add_job('t', queue_name := 'q', job_key := %s)", f"k{number}")


@pytest.mark.usefixtures("numbered")
def test_complete_jobs_works_as_in_the_readme(sql: Sql) -> None:
    rows = sql(f"SELECT * FROM {CALLS['complete_jobs']}")
    assert [row[0] for row in rows] == [7, 99, 38674]
    assert sql("select id from stowhand.jobs") == [(8,)]
    assert sql(
        "select id, state from stowhand.everything where finished_at = now() or state = 'completed' order by id"
    ) == [(number, "completed") for number in (7, 99, 38674)]


@pytest.mark.usefixtures("numbered")
def test_permanently_fail_jobs_works_as_in_the_readme(sql: Sql) -> None:
    rows = sql(f"select id, attempts, max_attempts, last_error, state, key from {CALLS['permanently_fail_jobs']}")
    assert rows == [(n, 25, 25, "Enter reason here", "failed", f"k{n}") for n in (7, 99, 38674)]
    assert sql("select count(*) from stowhand.jobs where attempts = max_attempts") == [(3,)]


@pytest.mark.usefixtures("numbered")
def test_reschedule_jobs_works_as_in_the_readme(sql: Sql) -> None:
    rows = sql(
        "select id, run_at = now() + interval '5 minutes', priority, attempts, max_attempts, state"
        f" from {CALLS['reschedule_jobs']}"
    )
    assert rows == [(n, True, 5, 5, 25, "queued") for n in (7, 99, 38674)]
    assert sql("select id from stowhand.jobs where attempts = 0 and priority = 0") == [(8,)]


def test_every_function_has_the_names_order_and_defaults_of_the_readme(sql: Sql) -> None:
    rows: list[tuple[Any, ...]] = sql(
        "select proname, pg_get_function_arguments(oid), pg_get_function_result(oid) from pg_proc"
        " where pronamespace = 'stowhand'::regnamespace and proname = any(%s) order by 1",
        ["add_jobs", "remove_job", "complete_jobs", "permanently_fail_jobs", "reschedule_jobs", "force_unlock_workers"],
    )
    jobs = "SETOF stowhand.jobs"
    assert rows == [
        ("add_jobs", "specs stowhand.job_spec[], job_key_preserve_run_at boolean DEFAULT false", jobs),
        ("complete_jobs", "job_ids bigint[]", jobs),
        ("force_unlock_workers", "worker_ids text[]", jobs),
        ("permanently_fail_jobs", "job_ids bigint[], error_message text DEFAULT NULL::text", jobs),
        ("remove_job", "job_key text", "stowhand.jobs"),
        (
            "reschedule_jobs",
            (
                "job_ids bigint[], run_at timestamp with time zone DEFAULT NULL::timestamp with time zone,"
                " priority integer DEFAULT NULL::integer, attempts integer DEFAULT NULL::integer,"
                " max_attempts integer DEFAULT NULL::integer, work_queue text DEFAULT NULL::text"
            ),
            jobs,
        ),
    ]


@pytest.mark.parametrize(
    "call",
    [
        "complete_jobs(null)",
        "complete_jobs('{}')",
        "permanently_fail_jobs(null, null)",
        "reschedule_jobs(null)",
        "reschedule_jobs(array[999])",
        "force_unlock_workers(null)",
        "force_unlock_workers(array[null])",
    ],
)
def test_null_and_an_empty_array_change_no_job(sql: Sql, call: str) -> None:
    sql("select stowhand.add_job('t')")
    assert sql(f"select * from stowhand.{call}") == []
    assert sql("select state, revision, updated_at = created_at from stowhand.live") == [("queued", 0, True)]


def test_null_keeps_a_value_and_zero_sets_it(sql: Sql) -> None:
    sql("select stowhand.add_job('t', priority := 7, max_attempts := 3)")
    sql("update stowhand.live set attempts = 2, state = 'errored'")
    rows = sql(
        "select priority, attempts, max_attempts, run_at < now() from stowhand.reschedule_jobs(array[1], null, 0)"
    )
    assert rows == [(0, 2, 3, True)]
    assert sql("select attempts, state from stowhand.reschedule_jobs(array[1], attempts := 0)") == [(0, "errored")]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ("max_attempts := 0", "GWBMA", "here it is 0"),
        ("attempts := -1", "22023", "here it is -1"),
        ("work_queue := ''", "GWBQN", "queue"),
        ("work_queue := 'a,b'", "GWBQN", "no comma"),
    ],
)
def test_invalid_values_are_refused(sql: Sql, arguments: str, code: str, said: str) -> None:
    sql("select stowhand.add_job('t')")
    with pytest.raises(psycopg.Error, match=said) as raised:
        sql(f"select * from stowhand.reschedule_jobs(array[1], {arguments})")
    assert raised.value.sqlstate == code


def test_a_manual_failure_without_a_reason_has_the_same_text_in_sql_and_python(sql: Sql) -> None:
    sql("select stowhand.add_job('t')")
    assert sql("select last_error from stowhand.permanently_fail_jobs(array[1])") == [(MANUALLY_FAILED,)]
    assert sql("select length(last_error) from stowhand.permanently_fail_jobs(array[1], repeat('é', 99999))") == [
        (16384,)
    ]


def test_a_job_completed_in_sql_is_pruned_without_a_history(forgetful_store: PostgresStore, sql: Sql, run: Any) -> None:
    sql("select stowhand.add_job('t')")
    sql("select stowhand.complete_jobs(array[1])")
    assert sql("select id from stowhand.history") == [(1,)]
    run(maintain(forgetful_store))
    assert sql("select id from stowhand.history") == []


def test_unlocking_resets_the_jobs_and_frees_their_serial_keys(sql: Sql) -> None:
    for worker in ("p1", "p2"):
        sql("select stowhand.add_job('t', queue_name := %s)", worker)
        sql("select from stowhand.claim(%s, gen_random_uuid(), 1, 30, null, null, false)", worker)
    rows = sql("select id, locked_by, locked_at, attempts, resets, state from stowhand.force_unlock_workers('{p1}')")
    assert rows == [(1, None, None, 0, 1, "queued")]
    assert sql("select name, stowhand.is_held(name) from stowhand.limit_keys order by name") == [
        ("p1", False),
        ("p2", True),
    ]
    assert sql("select locked_by from stowhand.jobs order by id") == [(None,), ("p2",)]


@pytest.mark.parametrize(
    "call",
    ["complete_all('{1}', true)", "fail_all('{1}', 'x')", "reschedule_all('{1}', null, 1, null, null, null, true)"],
)
def test_an_administrator_does_not_get_the_token_of_a_settled_job(
    postgres_url: str, sql: Sql, run: Any, call: str
) -> None:
    store = PostgresStore(postgres_url)

    async def story() -> None:
        await store.jobs.enqueue(NewJob(task="t"))
        await store.settle([(await take(store), Settlement(State.ERRORED, AttemptOutcome.RETRY, error="x", delay=0.0))])
        await store.close()

    run(story())
    assert sql("select settled_token is null from stowhand.live") == [(False,)]
    assert sql(f"select id, token, settled_token from stowhand.{call}") == [(1, None, None)]


def test_the_rules_of_resets_are_the_same_in_sql(sql: Sql) -> None:
    for resets in range(8):
        for max_resets in (None, 0, 1, 5):
            for max_attempts in (1, 2, 25):
                law = lifecycle.reset(resets=resets, max_resets=max_resets, max_attempts=max_attempts)
                ((state, error),) = sql(
                    "select state, error from stowhand.judge_reset(%s, %s, %s)", resets, max_resets, max_attempts
                )
                assert (state, error) == (law.state.value, law.error), (resets, max_resets, max_attempts)


def test_the_ledger_is_pruned_a_day_after_its_ticks_are_refused(sql: Sql) -> None:
    ((body,),) = sql("select prosrc from pg_proc where proname = 'prune_ticks'")
    assert f"interval '{LEDGER_DAYS + 1} days'" in body


def test_a_locked_row_is_waited_for_within_the_timeout(postgres_url: str, sql: Sql, run: Any) -> None:
    sql("select stowhand.add_job('t')")
    sql("alter function stowhand.complete_all set lock_timeout = '50ms'")
    store = PostgresStore(postgres_url)

    async def story() -> None:
        with psycopg.connect(postgres_url) as other:
            other.execute("select from stowhand.live for update")
            with pytest.raises(StoreUnreachable, match="open transaction"):
                await store.admin.complete_jobs([1])
        assert len(await store.admin.complete_jobs([1])) == 1
        await store.close()

    try:
        run(story())
    finally:
        sql("alter function stowhand.complete_all set lock_timeout = '5s'")


def test_a_change_by_a_concurrent_transaction_decides(postgres_url: str, sql: Sql) -> None:
    """Rows are looked at again once their lock is ours."""
    sql("select stowhand.add_job('t') from generate_series(1, 2)")
    with psycopg.connect(postgres_url) as worker, ThreadPoolExecutor(1) as threads:
        worker.execute("select from stowhand.claim('w', gen_random_uuid(), 1, 30, null, null, false)")
        completed = threads.submit(sql, "select id from stowhand.complete_jobs(array[2, 1])")
        wait_for_a_waiter(worker)
        worker.commit()
        assert completed.result(timeout=60) == [(2,)]
    assert sql("select id, state from stowhand.live") == [(1, "processing")]


def test_a_lease_is_lost_after_its_worker_was_unlocked(postgres_url: str, sql: Sql, run: Any) -> None:
    store = PostgresStore(postgres_url)

    async def story() -> None:
        await store.jobs.enqueue(NewJob(task="t", serial="q"))
        lease = await take(store)
        sql("select stowhand.force_unlock_workers('{w}')")
        again = await take(store)
        assert [await store.settle([(one, COMPLETED)]) for one in (lease, again)] == [
            [Verdict.LOST],
            [Verdict.SETTLED],
        ]
        await store.close()

    run(story())


def test_ids_beyond_32_bits_work(postgres_url: str, sql: Sql, run: Any) -> None:
    sql("alter table stowhand.live alter column id restart with 2147483649")
    store = PostgresStore(postgres_url)

    async def story() -> None:
        jobs = await store.jobs.add_jobs([NewJob(task="t", serial="q", key="k"), NewJob(task="t"), NewJob(task="t")])
        assert [job.id for job in jobs] == [2147483651, 2147483649, 2147483650]
        leases = [await take(store) for _ in jobs]
        heartbeats = store.heartbeats()
        assert (await heartbeats.beat(leases, 30.0)).lost == frozenset()
        await heartbeats.close()
        errored = Settlement(State.ERRORED, AttemptOutcome.RETRY, error="x", delay=0.0)
        failed = Settlement(State.FAILED, AttemptOutcome.FAILED, error="x")
        verdicts = await store.settle(list(zip(leases, (errored, COMPLETED, failed), strict=True)))
        assert set(verdicts) == {Verdict.SETTLED}
        assert [job.id for job in await store.admin.complete_jobs([leases[0].job_id, leases[2].job_id])] == sorted(
            [leases[0].job_id, leases[2].job_id]
        )
        await store.close()

    run(story())
    assert sql("select id from stowhand.history order by id") == [(2147483649,), (2147483650,), (2147483651,)]


# -- beside a worker ------------------------------------------------------------------------------------


def work(connection: psycopg.Connection[Any], worker: str, dice: random.Random) -> Iterator[tuple[bool, int]]:
    """Claim and settle, for ever: was each settlement accepted, and of which job."""
    while True:
        token = str(uuid.uuid4())
        claimed = connection.execute(
            "select id from stowhand.claim(%s, %s, 5, 30, null, null, false) where id > 0", (worker, token)
        ).fetchall()
        if not claimed:
            yield True, 0
        for (job_id,) in claimed:
            yield settle_when_free(connection, job_id, token, dice.choice(["completed", "errored"])), job_id


def settle_when_free(connection: psycopg.Connection[Any], job_id: int, token: str, state: str) -> bool:
    """False: the lease was lost. A row that an administrator looks at just now is busy, and asked for again."""
    while True:
        row = connection.execute(
            "select count(*) from stowhand.settle_attempts(array[%s::bigint], array[%s::uuid], array[%s],"
            " array[0.0], array[false], array['x'], array[null::text], array[null::text], array[null::text], true)",
            (job_id, token, state),
        ).fetchone()
        if row == (1,):
            return True
        result = connection.execute(
            "select found from stowhand.look(array[%s::bigint], array[%s::uuid])", (job_id, token)
        ).fetchone()
        if result != ("busy",):
            return False


@pytest.mark.parametrize("unlocking", [False, True])
def test_an_administrator_does_not_change_jobs_under_a_valid_lease(
    postgres_url: str, sql: Sql, unlocking: bool
) -> None:
    sql("select stowhand.add_job('t', queue_name := case n % 3 when 0 then 'q' end) from generate_series(1, 150) n")
    done = threading.Event()
    lost: list[int] = []

    def serve(number: int) -> None:
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            for accepted, job_id in work(connection, f"w{number}", random.Random(number)):
                if not accepted:
                    lost.append(job_id)
                if job_id == 0 and done.is_set():
                    return

    with ThreadPoolExecutor(2) as threads, psycopg.connect(postgres_url, autocommit=True) as admin:
        workers = [threads.submit(serve, number) for number in range(2)]
        dice = random.Random(7)
        try:
            for _ in range(150):
                ids = dice.sample(range(1, 151), 20)
                call = dice.choice(["reschedule_jobs(%s, priority := 1)", "reschedule_jobs(%s, attempts := 1)"])
                if dice.random() < 0.1:
                    call = dice.choice(["permanently_fail_jobs(%s)", "complete_jobs(%s)"])
                    ids = ids[:3]
                rows = admin.execute(f"select id, locked_by from stowhand.{call}".encode(), (ids,)).fetchall()
                assert all(holder is None for _, holder in rows)
                if unlocking:
                    admin.execute("select from stowhand.force_unlock_workers('{w0}')")
        finally:
            done.set()
        for worker in workers:
            worker.result(timeout=60)
    if not unlocking:
        assert lost == []
        assert sql("select distinct state from stowhand.everything where state not in ('completed', 'failed')") == []
    assert sql("select count(*), count(distinct id) from stowhand.everything") == [(150, 150)]
    assert sql("select count(*) from stowhand.live where key_slot is not null and worker is not null") == [(0,)]
