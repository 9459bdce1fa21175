"""From the schema of an earlier version to this one's, with jobs in it and workers at work."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from stowhand.errors import SchemaOutdated, StoreError
from stowhand.jobs.job import Job, State
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import COMPLETED, Ended, Settlement
from stowhand.protocols.queue_store import JobFilter, Reschedule
from stowhand.protocols.store import Verdict
from stowhand.stores.database.statements import fill
from stowhand.stores.kernel.columns import COLUMNS
from stowhand.stores.postgres.queue import PostgresStore
from stowhand.stores.postgres.queue.context import fillings_of
from stowhand.stores.postgres.queue.rows import read_job
from stowhand.stores.postgres.queue.texts import FUNCTIONS, read_functions, read_migrations
from tests.conftest import Run
from tests.stores.postgres.verbs import claim
from tests.support import dump
from tests.support.databases import Databases
from tests.support.logins import exec_all

SEVEN = Path(__file__).with_name("schema_7.sql")
TOKEN = str(uuid.uuid4())
# Each line is one job, or what is done to one; ids are given in order.
JOBS = f"""
select stowhand.add_job('t', job_key := 'running', queue_name := 'q');
select stowhand.add_job('t', queue_name := 'q');
select stowhand.add_job('t', '{{"n": 1.50}}', queue_name := 'q', job_key := 'waiting', flags := '{{a,b}}');
select stowhand.claim('old.1.x', '{TOKEN}', 1, 30, null, null, false);
select stowhand.add_job('done');
select stowhand.add_job('later');
select stowhand.add_job('errs');
select stowhand.add_job('fails');
select stowhand.add_job('crashed', job_key := 'k');
select stowhand.claim('old.1.x', '{uuid.uuid4()}', 9, 30, '{{done,errs,fails,crashed}}', null, false);
select stowhand.settle_completed(array_agg(id), array_agg(token), true) from stowhand.live where task = 'done';
select stowhand.settle(array_agg(id), array_agg(token), '{{errored,failed}}', '{{60,null}}', '{{f,f}}', '{{oh,no}}',
  '{{null,null}}', true) from (select * from stowhand.live where task in ('errs', 'fails') order by id) _;
select stowhand.reset(array_agg(id), array_agg(token), '{{queued}}', '{{null}}', null, true)
  from stowhand.live where task = 'crashed';
select stowhand.cancel(5, true);
select stowhand.abandon('{uuid.uuid4()}', true);
"""


def make_seven(url: str, schema: str = "stowhand") -> None:
    """The schema as the package had it then, with nothing in it."""
    fillings = fillings_of(schema)
    text = fill(SEVEN.read_text(), fillings | {"pinned_path": "set search_path = pg_catalog, pg_temp"})
    frame = """
        create schema {schema};
        create table {schema}.migrations (
          id int primary key, ts timestamptz not null default now(), breaking boolean not null default false);
        insert into {schema}.migrations (id, breaking) select n, true from generate_series(1, 7) n"""
    with psycopg.connect(url) as connection:
        connection.execute(fill(frame, fillings).encode())
        connection.execute(text.encode())


def make_eleven(url: str, schema: str = "stowhand") -> None:
    """As number 11 had it: our numbers in the table `migrations`, the history without a key, no settings."""
    fillings = fillings_of(schema)
    make_seven(url, schema)
    texts = [each.text for each in read_migrations(fillings) if 7 < each.number < 12]
    functions = read_functions(fillings | {"max_attempts": "25"}, [name for name in FUNCTIONS if name != "shared_name"])
    note = "insert into {schema}.migrations (id, breaking) values (8, true), (9, false), (10, false), (11, false)"
    with psycopg.connect(url) as connection:
        connection.execute("set check_function_bodies = off")  # they are of today, and name tables of later numbers
        for text in (*texts, *functions, fill(note, fillings)):
            connection.execute(text.encode())


@pytest.fixture
def seven_url(empty_url: str) -> str:
    make_seven(empty_url)
    with psycopg.connect(empty_url, autocommit=True) as connection:
        for statement in JOBS.strip().split(";\n"):
            connection.execute(statement.encode())
    return empty_url


async def upgraded(url: str) -> PostgresStore:
    store = PostgresStore(url)
    with pytest.raises(SchemaOutdated):
        await store.open()
    status = await store.schema.install()
    assert status.installed == status.expected
    await store.open()
    return store


def test_an_upgraded_schema_is_the_same_as_a_fresh_one(
    seven_url: str, own_url: str, postgres_server: Databases, run: Run
) -> None:
    program = dump.find_pg_dump(postgres_server.version)
    if program is None:
        pytest.skip("no pg_dump for this server")

    async def upgrade() -> None:
        store = await upgraded(seven_url)
        assert await store.schema.plan() == ""
        await store.close()

    run(upgrade())
    upgraded_one, fresh_one = (dump.dump(program, url, rights=True) for url in (seven_url, own_url))
    assert not dump.differences(fresh_one, upgraded_one)


PRUNE_OF_9 = "create function stowhand.prune_days(_before timestamptz) returns void language sql as 'select null::void'"


@pytest.mark.parametrize("left_behind", ["", PRUNE_OF_9])
def test_number_11_becomes_the_same_as_a_fresh_one(
    empty_url: str, own_url: str, postgres_server: Databases, run: Run, left_behind: str
) -> None:
    """Its numbers move, its days get keys; and a function that an older version has left with other arguments goes."""
    program = dump.find_pg_dump(postgres_server.version)
    if program is None:
        pytest.skip("no pg_dump for this server")
    make_eleven(empty_url)
    with psycopg.connect(empty_url) as connection:
        connection.execute(left_behind.encode())

    async def upgrade() -> None:
        store = await upgraded(empty_url)
        assert await store.schema.foreign_changes() == []
        await store.close()

    run(upgrade())
    upgraded_one, fresh_one = (dump.dump(program, url, rights=True) for url in (empty_url, own_url))
    assert not dump.differences(fresh_one, upgraded_one)
    with psycopg.connect(empty_url) as connection:
        numbers = connection.execute("select array_agg(id order by id) from stowhand.applied_migrations").fetchone()
        invalid = connection.execute("select count(*) from pg_index where not indisvalid").fetchone()
    newer = [migration.number for migration in read_migrations(fillings_of("stowhand")) if migration.number > 11]
    assert numbers == ([*range(1, 12), *newer],)
    assert invalid == (0,)


def test_older_programs_of_ours_read_a_newer_breaking_schema(own_url: str) -> None:
    """As they asked before number 12: at opening, and a worker every minute."""
    with psycopg.connect(own_url) as connection:
        opening = connection.execute("select id, breaking from stowhand.migrations order by id").fetchall()
        newest = connection.execute("select coalesce(max(id), 0) from stowhand.migrations where breaking").fetchone()
    assert opening == [(1_000_000, True)]
    assert newest == (1_000_000,)


def test_an_upgrade_that_is_cut_off_in_the_middle_leaves_all_as_it_was(empty_url: str, run: Run) -> None:
    make_eleven(empty_url)

    async def story() -> None:
        store = PostgresStore(empty_url)
        script, _, afterwards = (await store.schema.plan()).partition("\ncommit;")
        assert "validate constraint lawful" in afterwards, "jobs may come between the plan and its run"
        with psycopg.connect(empty_url, autocommit=True) as cut:
            cut.execute(script.encode())
            assert cut.execute("select id from stowhand.migrations").fetchall() == [(1_000_000,)]
            cut.close()
        assert (await store.schema.status()).installed == 11
        status = await store.schema.install()
        assert status.installed == status.expected
        await store.close()

    run(story())


def test_the_keys_of_large_days_are_made_while_others_work(empty_url: str, run: Run) -> None:
    """Not in the migration, which would lock settlements out; and an attempt that was cut is made anew."""
    make_eleven(empty_url)
    with psycopg.connect(empty_url, autocommit=True) as connection:
        connection.execute("select stowhand.make_days('2031-05-01 12:00+00', 1)")
        for day in ("01", "02"):
            connection.execute(f"alter table stowhand.history_203105{day} set (fillfactor = 10)".encode())
            connection.execute(
                "insert into stowhand.history (id, task, payload, priority, run_at, state, attempts, max_attempts,"
                " resets, revision, epoch, finished_at, created_at, updated_at, cancel_requested)"
                " select n, 't', '{}', 0, now(), 'completed', 1, 25, 0, 0, 0,"
                f" timestamptz '2031-05-{day} 00:00+00', now(), now(), false from generate_series(1, 6000) n".encode()
            )
        # As a build that was cut off leaves it.
        connection.execute("create unique index history_20310502_pkey on stowhand.history_20310502 (id, finished_at)")
        connection.execute("update pg_index set indisvalid = false"
                           " where indexrelid = 'stowhand.history_20310502_pkey'::regclass")  # fmt: skip
        connection.execute("create table made (at_once boolean)")
        connection.execute(
            "create function note() returns event_trigger language plpgsql as $$ begin insert into public.made"
            " select not current_query() ilike '%%concurrently%%' from pg_event_trigger_ddl_commands() c"
            " where c.command_tag = 'CREATE INDEX' and c.object_identity like '%%2031050%%'; end $$"
        )
        connection.execute("create event trigger noted on ddl_command_end execute function note()")

    async def upgrade() -> None:
        await (await upgraded(empty_url)).close()

    run(upgrade())
    with psycopg.connect(empty_url) as connection:
        assert connection.execute("select at_once from made").fetchall() == [(False,), (False,)]
        days = connection.execute(
            "select count(*) from pg_index where indisprimary and indisvalid"
            " and indrelid::regclass::text like 'stowhand.history_2031050%'"
        ).fetchone()
        parent = connection.execute(
            "select indisvalid from pg_index where indrelid = 'stowhand.history'::regclass and indisprimary"
        ).fetchone()
    assert (days, parent) == ((2,), (True,))


def test_the_index_of_failed_jobs_is_made_while_others_work(seven_url: str, run: Run) -> None:
    """As the keys of large days."""
    with psycopg.connect(seven_url, autocommit=True) as connection:
        connection.execute("alter table stowhand.live set (fillfactor = 10)")
        connection.execute(
            "insert into stowhand.live (task, state, finished_at)"
            " select 't', 'failed', now() from generate_series(1, 8000)"
        )
        connection.execute("create index live_failed_last on stowhand.live (finished_at, id) where state = 'failed'")
        connection.execute("update pg_index set indisvalid = false"
                           " where indexrelid = 'stowhand.live_failed_last'::regclass")  # fmt: skip
        connection.execute("create table made (at_once boolean)")
        connection.execute(
            "create function note() returns event_trigger language plpgsql as $$ begin insert into public.made"
            " select not current_query() ilike '%concurrently%' from pg_event_trigger_ddl_commands() c"
            " where c.command_tag = 'CREATE INDEX' and c.object_identity like '%live_failed_last%'; end $$"
        )
        connection.execute("create event trigger noted on ddl_command_end execute function note()")

    async def upgrade() -> None:
        store = await upgraded(seven_url)
        assert sum(one.jobs for one in await store.inspect.failures()) == 8001
        await store.close()

    run(upgrade())
    with psycopg.connect(seven_url) as connection:
        assert connection.execute("select at_once from made").fetchall() == [(False,)]
        found = connection.execute(
            "select indexrelid::regclass::text, indisvalid from pg_index"
            " where indexrelid::regclass::text like 'stowhand.live_failed%'"
        ).fetchall()
    assert found == [("stowhand.live_failed", True)]


def test_the_jobs_of_an_upgraded_schema_are_as_they_were_and_go_on(seven_url: str, run: Run) -> None:
    async def story() -> None:
        before = everything_of_seven(seven_url)
        assert {job.state for job in before} == set(State)
        store = await upgraded(seven_url)
        assert await everything(store) == before
        # A worker of before holds on to what it holds, and its queue to it.
        assert [c.record.task for c in await claim(store, 10, tasks=("t",))] == []
        heartbeats = store.heartbeats()
        lease = Lease(1, TOKEN, 1)
        assert not (await heartbeats.beat([lease], 30.0)).lost
        assert await store.settle([(lease, COMPLETED)]) == [Verdict.SETTLED]
        assert [c.record.id for c in await claim(store, 10, tasks=("t",))] == [2]
        assert [c.record.resets for c in await claim(store, 10, tasks=("crashed",))] == [1]
        await heartbeats.close()
        await store.close()

    run(story())


def test_an_error_of_before_number_28_is_read_everywhere_until_a_settlement_moves_it(seven_url: str, run: Run) -> None:
    async def story() -> None:
        store = await upgraded(seven_url)
        with psycopg.connect(seven_url, autocommit=True) as connection:

            def texts(source: str) -> list[tuple[str | None, ...]]:
                return connection.execute(f"select {source} and id in (6, 7) order by id".encode()).fetchall()

            assert texts("last_error from stowhand.jobs where true") == [("oh",), ("no",)]
            # What a program of before reads of a failed job itself; what is tried again was not touched.
            moved = "last_error, earlier_error from stowhand.live where true"
            assert texts(moved) == [(None, "oh"), ("no", None)]
            assert [job.id for job in await store.inspect.list(JobFilter(error="OH"))] == [6]
            assert [group.error for group in await store.inspect.failures()] == ["no"]
            (due,) = await store.admin.reschedule_jobs([6], Reschedule(run_at=datetime.now(UTC) - timedelta(minutes=1)))
            assert due.last_error == "oh"
            (again,) = await claim(store, 1, tasks=("errs",))
            assert again.record.last_error == "oh"
            await store.settle([(again.lease, Settlement(State.ERRORED, Ended.RETRY, 60.0, "anew"))])
            assert texts(moved)[0] == ("anew", None)
        await store.close()

    run(story())


def everything_of_seven(url: str) -> list[Job]:
    """As today's statements would show them, which name columns of later numbers."""
    columns = [name for name in COLUMNS if name not in ("worker", "result", "payload", *COLUMNS[-3:])]
    shown = f"payload::text, {', '.join(columns)}"
    with psycopg.connect(url, row_factory=psycopg.rows.dict_row) as connection:
        found = connection.execute(
            f"select {shown}, worker, worker as last_worker, null as result, null as progress, null as progress_text"
            " from stowhand.live union all"
            f" select {shown}, null, worker, result::text, null, null from stowhand.history order by id".encode()
        )
        return [read_job(tuple(row[name] for name in COLUMNS)) for row in found]


async def everything(store: PostgresStore) -> list[Job]:
    return list(await store.inspect.list(JobFilter(states=tuple(State))))


def test_eight_upgrades_at_once_all_succeed(seven_url: str, run: Run) -> None:
    async def story() -> None:
        stores = [PostgresStore(seven_url) for _ in range(8)]
        statuses = await asyncio.gather(*(store.schema.install() for store in stores))
        assert len({(status.installed, status.expected) for status in statuses}) == 1
        for store in stores:
            await store.close()

    run(story())


def is_proved(url: str) -> bool:
    with psycopg.connect(url) as connection:
        row = connection.execute("select convalidated from pg_constraint where conname = 'lawful'").fetchone()
    assert row is not None
    return bool(row[0])


def test_the_rows_of_before_are_proved_lawful_while_others_work_and_a_proof_cut_off_is_made_anew(
    seven_url: str, run: Run
) -> None:
    async def story() -> None:
        store = PostgresStore(seven_url)
        upgrade, proof, end = (await store.schema.plan()).split("commit;")
        assert ("validate constraint" in proof, end.strip()) == (True, "")
        with psycopg.connect(seven_url, autocommit=True) as cut:
            cut.execute(f"{upgrade}commit;".encode())
            cut.execute(proof.encode())
            cut.close()
        assert not is_proved(seven_url)
        assert await store.schema.foreign_changes() == ["the constraint live.lawful is not the one of this version"]
        with psycopg.connect(seven_url) as other:
            other.execute("select stowhand.add_job('t')")
            other.execute("update stowhand.live set priority = 1")
            await store.schema.install()
        assert is_proved(seven_url)
        assert await store.schema.plan() == ""
        await store.close()

    run(story())


def test_an_unlawful_row_of_before_is_named_and_the_upgrade_goes_on_when_it_is_mended(seven_url: str, run: Run) -> None:
    exec_all(
        seven_url,
        "alter table stowhand.live drop constraint attempts_in_range",
        "update stowhand.live set attempts = 26 where key = 'waiting'",
    )

    async def story() -> None:
        store = PostgresStore(seven_url)
        with pytest.raises(StoreError, match="attempts_in_range"):
            await store.schema.install()
        assert not is_proved(seven_url)
        exec_all(seven_url, "update stowhand.live set attempts = 25 where key = 'waiting'")
        await store.schema.install()
        assert is_proved(seven_url)
        await store.close()

    run(story())


def test_the_plan_of_an_upgrade_run_by_hand_is_the_upgrade(seven_url: str, run: Run) -> None:
    async def story() -> None:
        store = PostgresStore(seven_url)
        plan = await store.schema.plan()
        assert "create schema" not in plan
        with psycopg.connect(seven_url) as connection:
            connection.execute(plan.encode())
        assert (await store.schema.status()).installed == (await store.schema.status()).expected
        await store.close()

    run(story())


@pytest.fixture
def role(postgres_server: Databases, empty_url: str) -> Iterator[str]:
    """A login of this test's own, gone afterwards with all that it has in the test's database."""
    name = f"role_{uuid.uuid4().hex[:8]}"
    exec_all(empty_url, f"create role {name} login password 'secret'")
    yield name
    exec_all(empty_url, f"drop owned by {name}", f"drop role {name}")


def test_what_an_administrator_upgrades_stays_the_owners(empty_url: str, role: str, run: Run) -> None:
    """Functions run with their owner's rights: an administrator's would be everybody's."""
    grant = f"execute format('grant create on database %I to {role}', current_database());"
    exec_all(empty_url, f"do $$ begin {grant} end $$")
    make_seven(make_conninfo(empty_url, user=role, password="secret"))

    async def upgrade() -> None:
        await (await upgraded(empty_url)).close()

    run(upgrade())
    with psycopg.connect(empty_url) as connection:
        owners = connection.execute(
            "select pg_get_userbyid(proowner) from pg_proc where pronamespace = 'stowhand'::regnamespace"
            " union select pg_get_userbyid(relowner) from pg_class where relnamespace = 'stowhand'::regnamespace"
        ).fetchall()
    assert owners == [(role,)]


def test_what_was_granted_on_add_job_is_granted_after_an_upgrade(seven_url: str, role: str, run: Run) -> None:
    exec_all(seven_url, f"grant execute on all functions in schema stowhand to {role}")

    async def upgrade() -> None:
        await (await upgraded(seven_url)).close()

    run(upgrade())
    with psycopg.connect(seven_url) as connection:
        may = connection.execute(
            "select p.proname from pg_proc p where p.pronamespace = 'stowhand'::regnamespace"
            " and has_function_privilege(%s, p.oid, 'execute')", (role,)
        ).fetchall()  # fmt: skip
    assert may == [("add_job",)]
