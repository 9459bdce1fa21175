"""Figures of a large schema: by indexes, exact up to a limit."""

from __future__ import annotations

from collections import defaultdict

import pytest

from stowhand.jobs.job import State
from stowhand.protocols.figures import Amount, Figures
from stowhand.stores.postgres.queue import PostgresStore
from tests.conftest import Run
from tests.stores.postgres.conftest import Sql


@pytest.fixture
def large(sql: Sql) -> Sql:
    """20,000 jobs wait and 20,000 are over, without statistics; few run, few have failed, and one task is rare."""
    sql(
        "insert into stowhand.live (task, payload, state, run_at, queue, scout)"
        " select 't' || (n % 4), json_build_object('n', repeat('x', 100)),"
        " case when n % 10 = 0 then 'errored' else 'queued' end,"
        " now() + case when n % 2 = 0 then interval '1 hour' else interval '-1 hour' end,"
        " case when n % 4 = 3 then 'q' || (n % 8) end, false from generate_series(1, 20000) n"
    )
    sql("insert into stowhand.live (task) values ('rare'), ('rare'), ('rare')")
    sql(
        "insert into stowhand.live (task, state, token, worker, lease_until, started_at)"
        " select 't0', 'processing', gen_random_uuid(), 'w' || (n % 2), now() + interval '1 hour', now()"
        " from generate_series(1, 7) n"
    )
    sql(
        "insert into stowhand.live (task, state, finished_at) select 't1', 'failed', now() - n * interval '1 minute'"
        " from generate_series(1, 11) n"
    )
    sql(
        "insert into stowhand.history (id, task, payload, priority, run_at, state, attempts, max_attempts, resets,"
        " revision, epoch, finished_at, created_at, updated_at, cancel_requested)"
        " select 1000000 + n, 't' || (n % 2), json_build_object('n', repeat('x', 100)), 0, now(),"
        " case when n % 10 = 0 then 'canceled' else 'completed' end, 1, 25, 0, 0, 1,"
        " now() - (20000 - n) * interval '1 second', now(), now(), false from generate_series(1, 20000) n"
    )
    return sql


def standing(sql: Sql, most: int) -> dict[tuple[str, str], dict[str, Amount]]:
    """By what and name; what comes from several places is summed up."""
    found: defaultdict[tuple[str, str], defaultdict[str, Amount]] = defaultdict(lambda: defaultdict(Amount))
    for what, name, part, number, more in sql(f"select what, name, part, jobs, more from stowhand.standing({most})"):
        found[what, name][part] += Amount(number, more)
    return {key: dict(parts) for key, parts in found.items()}


def test_live_jobs_are_counted_by_task_queue_and_worker_without_statistics(large: Sql) -> None:
    found = standing(large, 30_000)
    assert found["task", "t0"] == {
        "waiting": Amount(5_000),
        "due": Amount(),
        "errored": Amount(1_000),
        "processing": Amount(7),
    }
    assert found["task", "t1"] == {"waiting": Amount(5_000), "due": Amount(5_000), "failed": Amount(11)}
    assert found["task", "t3"] == {"waiting": Amount(5_000), "due": Amount(5_000)}
    assert found["task", "rare"] == {"waiting": Amount(3), "due": Amount(3)}
    assert found["queue", "q3"] == found["queue", "q7"] == {"waiting": Amount(2_500), "due": Amount(2_500)}
    assert [found["worker", name]["processing"] for name in ("w0", "w1")] == [Amount(3), Amount(4)]


def test_beyond_the_limit_there_are_more_and_other_tasks_are_exact(large: Sql) -> None:
    large("update stowhand.live set priority = id % 3 where task = 't1'")
    found = standing(large, 100)
    assert found["task", "t1"]["waiting"] == found["task", "t1"]["due"] == Amount(100, least=True)
    assert found["task", "t0"] == {
        "waiting": Amount(100, least=True),
        "due": Amount(),
        "errored": Amount(100, least=True),
        "processing": Amount(7),
    }
    assert found["task", "rare"] == {"waiting": Amount(3), "due": Amount(3)}
    assert found["task", "t3"]["waiting"] == Amount(5_000), "what waits in queues is read up to a million"


@pytest.mark.parametrize("most", [6, 2_000, 18_000, 30_000])
def test_each_state_is_counted_exactly_up_to_a_number(large: Sql, most: int) -> None:
    states = {"queued": 18_003, "errored": 2_000, "processing": 7, "failed": 11, "completed": 18_000, "canceled": 2_000}
    found: dict[str, int] = dict(large(f"select state, jobs from stowhand.count_states({most})"))
    assert found == {state: min(number, most + 1) for state, number in states.items()}


def test_counts_are_the_same_after_a_vacuum(postgres_url: str, large: Sql, run: Run) -> None:
    """A vacuum in the midst of a burst said how many rows it had seen."""

    async def ask() -> Figures:
        store = PostgresStore(postgres_url)
        try:
            return await store.inspect.figures()
        finally:
            await store.close()

    before = run(ask())
    large("vacuum stowhand.live")
    assert run(ask()) == before
    assert before.states[State.QUEUED] == Amount(10_000, least=True)
    assert before.states[State.ERRORED] == Amount(2_000)


def test_counting_reads_indexes_and_no_more_than_the_limit(large: Sql) -> None:
    """Whatever statistics say: of 40,000 rows some hundred entries are read."""

    def reads() -> tuple[int, int]:
        large("select pg_stat_force_next_flush()")
        ((scans, rows),) = large(
            "select seq_scan, idx_tup_fetch from pg_stat_user_tables where relid = 'stowhand.live'::regclass"
        )
        return scans, rows

    large("vacuum stowhand.live")
    before = reads()
    large("select * from stowhand.count_states(50)")
    scans, rows = (now - then for now, then in zip(reads(), before, strict=True))
    assert scans == 0
    assert rows < 10_000


def test_every_day_can_be_asked_for_a_time(sql: Sql) -> None:
    """Others would be read whole."""
    rows = sql(
        "select count(*) from pg_inherits i where i.inhparent = 'stowhand.history'::regclass and not exists ("
        "select from pg_index x join pg_class c on c.oid = x.indexrelid join pg_am a on a.oid = c.relam"
        " where x.indrelid = i.inhrelid and a.amname = 'brin' and x.indisvalid)"
    )
    assert rows == [(0,)]


def test_the_oldest_of_many_jobs_is_found_in_a_few_steps(large: Sql) -> None:
    large("insert into stowhand.live (task, run_at, priority) values ('t1', now() - interval '3 hours', 7)")
    ((oldest,),) = large("select stowhand.oldest_due()")
    assert oldest == pytest.approx(3 * 3600, abs=5)
    large(
        "insert into stowhand.live (task, run_at, queue, scout) values ('t1', now() - interval '4 hours', 'mail', true)"
    )
    ((oldest,),) = large("select stowhand.oldest_due()")
    assert oldest == pytest.approx(4 * 3600, abs=5)
    large("select stowhand.pause_queue('mail')")
    ((oldest,),) = large("select stowhand.oldest_due()")
    assert oldest == pytest.approx(3 * 3600, abs=5), "it waits for something else"


def test_what_ended_is_in_the_index_of_times_after_maintenance(large: Sql) -> None:
    """And not only when autovacuum has come round: until then all of it is read at each look."""
    assert large("select stowhand.maintain(86400)") == [(None,)]
    left = large(
        "select sum(brin_summarize_new_values(inhrelid)) from pg_inherits"
        " where inhparent = 'stowhand.history_ended'::regclass"
    )
    assert left == [(0,)]
