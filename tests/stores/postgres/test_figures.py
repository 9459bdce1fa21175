"""Figures of a large schema: from a sample of its pages, and by indexes where those know better."""

from __future__ import annotations

import pytest

from stowhand.jobs.job import State
from stowhand.protocols.figures import Amount
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


def test_waiting_jobs_are_estimated_and_what_runs_and_has_failed_is_counted(large: Sql) -> None:
    rows = large(
        "select name, queued, errored, due, processing, failed, exact from stowhand.standing(100, 100)"
        " where what = 'task'"
    )
    found = {name: numbers for name, *numbers in rows}
    assert {"t0", "t1", "t2", "t3", "rare"} == found.keys()
    queued, errored, due, running, failed = map(sum, zip(*(numbers[:5] for numbers in found.values()), strict=True))
    assert queued == pytest.approx(18_000, rel=0.5)
    assert errored == pytest.approx(2_000, rel=0.7)
    assert due == pytest.approx(10_000, rel=0.5)
    assert (running, failed) == (7, 11), "by their indexes, whatever the sample has seen"
    assert found["t0"][3] == 7
    assert found["t1"][4] == 11
    assert found["t2"][5] is False


def test_a_task_that_the_sample_has_not_seen_is_found_by_its_index(large: Sql) -> None:
    for _ in range(3):  # of 500 pages one is looked at
        rows = large("select queued, due, exact from stowhand.standing(100, 1) where what = 'task' and name = 'rare'")
        assert rows == [(3, 3, True)]


def test_what_runs_is_told_by_worker_and_what_waits_by_queue(large: Sql) -> None:
    workers = large("select name, processing, exact from stowhand.standing(100, 20) where what = 'worker' order by 1")
    assert workers == [("w0", 3, True), ("w1", 4, True)]
    queues = large("select name, queued + errored from stowhand.standing(100, 200) where what = 'queue' order by 1")
    assert [name for name, _ in queues] == ["q3", "q7"]
    assert sum(number for _, number in queues) == pytest.approx(5_000, rel=0.5)


@pytest.mark.parametrize(("most", "counted"), [(6, {}), (30_000, {"queued": 18_003, "errored": 2_000})])
def test_states_are_counted_by_their_indexes_up_to_a_number(large: Sql, most: int, counted: dict[str, int]) -> None:
    found: dict[str, int] = dict(large(f"select state, jobs from stowhand.count_states({most})"))
    cut = {"queued": most + 1, "errored": most + 1, "processing": 7, "failed": min(11, most + 1)}
    assert found == cut | counted


def test_a_state_with_few_jobs_is_exact_beside_many_others(postgres_url: str, large: Sql, run: Run) -> None:
    large("delete from stowhand.live where state = 'queued' and task <> 'rare'")
    large(
        "insert into stowhand.live (task, state, finished_at, payload) select 't1', 'failed', now(),"
        " json_build_object('n', repeat('x', 1500)) from generate_series(1, 22000) n"
    )

    async def ask() -> dict[State, Amount]:
        store = PostgresStore(postgres_url)
        try:
            return (await store.inspect.figures()).states()
        finally:
            await store.close()

    states = run(ask())
    assert (states[State.QUEUED], states[State.ERRORED], states[State.PROCESSING]) == (
        Amount(3),
        Amount(2_000),
        Amount(7),
    )
    assert not states[State.FAILED].exact
    assert states[State.FAILED].number == pytest.approx(22_011, rel=0.5)


@pytest.mark.parametrize("question", ["standing(100, 50)", "ended(array[15], 100, 50, 100)", "state_amounts(100)"])
def test_an_estimate_stays_the_same_while_nothing_changes(large: Sql, question: str) -> None:
    looks = [sorted(map(str, large(f"select * from stowhand.{question}"))) for _ in range(3)]
    assert looks[0] == looks[1] or looks[1] == looks[2], "a sample is the same until the minute ends"


def test_a_small_table_is_counted(large: Sql) -> None:
    rows = large("select sum(queued), sum(errored), bool_and(exact) from stowhand.standing(100) where what = 'task'")
    assert rows == [(18_003, 2_000, True)]


def test_a_long_history_is_estimated_and_its_last_minutes_are_counted(large: Sql) -> None:
    rows = large(
        "select minutes, sum(completed), sum(canceled), sum(failed), bool_or(exact)"
        " from stowhand.ended('{1,5}', 100, 100) group by minutes order by minutes nulls first"
    )
    (_, completed, canceled, _, exact), *lately = rows
    assert completed == pytest.approx(18_000, rel=0.5)
    assert canceled == pytest.approx(2_000, rel=0.7)
    assert exact is False
    (one, *minute), (five, *minutes) = lately
    assert (one, five) == (1, 5)
    assert minute[:2] == pytest.approx([54, 6], abs=3)
    assert minutes[:2] == pytest.approx([270, 30], abs=3)
    assert (minute[3], minutes[3]) == (True, True)
    assert minutes[2] == pytest.approx(5, abs=1), "the failed, too"


def test_minutes_in_which_too_much_ended_are_estimated(large: Sql) -> None:
    rows = large(
        "select sum(completed), bool_or(exact) from stowhand.ended('{300}', 100, 100, 1000) where minutes = 300"
    )
    ((completed, exact),) = rows
    assert completed == pytest.approx(16_200, rel=0.5)
    assert exact is False


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
