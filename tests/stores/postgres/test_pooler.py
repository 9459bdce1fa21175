"""Everything through a real PgBouncer in transaction mode, with fewer server connections than we open to it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from uuid import uuid4

import asyncpg
import psycopg
import pytest
from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from stowhand.app.app import App
from stowhand.cli.program import run as run_program
from stowhand.errors import StoreError
from stowhand.events import Event, Events, Listening, StoreCallFailed
from stowhand.jobs.job import Job, NewJob, State
from stowhand.jobs.lifecycle import COMPLETED
from stowhand.protocols.attempt import Attempt
from stowhand.protocols.options import WorkerOptions
from stowhand.protocols.queue_store import ActionResult, JobFilter, Reschedule
from stowhand.protocols.store import StoreOptions, Verdict
from stowhand.service.exit_codes import FAILURE, exit_code
from stowhand.stores.postgres.queue import PostgresStore
from stowhand.worker.worker import Worker
from tests.app.test_app import settled
from tests.conftest import Run
from tests.stores.postgres.verbs import claim, take
from tests.support.pgbouncer import KNOWS_PREPARED_STATEMENTS, PgBouncer, Program, find_pgbouncer

POOLED = [False, True]
"""Prepared statements off, and on."""
POLLING = "no wake-ups arrive: polling instead"


@pytest.fixture(scope="module")
def program() -> Program:
    result = find_pgbouncer()
    if isinstance(result, str):
        pytest.skip(f"PgBouncer: {result}")
    return result


@pytest.fixture
def bouncer(program: Program, postgres_url: str) -> Iterator[PgBouncer]:
    with PgBouncer(program, postgres_url) as bouncer:
        yield bouncer


@pytest.fixture(params=POOLED, ids=["unprepared", "prepared"])
def options(request: pytest.FixtureRequest, program: Program) -> dict[str, Any]:
    if request.param and program.version < KNOWS_PREPARED_STATEMENTS:
        version = ".".join(map(str, program.version))
        pytest.skip(f"PgBouncer {version} does not know prepared statements (1.21 does)")
    return {"prepared_statements": request.param}


def test_every_call_of_a_store_works_through_the_pooler(bouncer: PgBouncer, options: dict[str, Any], run: Run) -> None:
    async def story() -> None:
        store = PostgresStore(bouncer.url, StoreOptions(**options))
        await store.open()
        heartbeats = store.heartbeats()
        for turn in range(8):  # more often than psycopg asks before it prepares
            keyed = await store.jobs.enqueue(NewJob(task="k", key="k", payload=f"[{turn}]"))
            assert keyed.payload_text == f"[{turn}]"
            assert (await store.jobs.enqueue(NewJob(task="k", key="k", payload="[9]"))).payload_text == f"[{turn},9]"
            assert (await store.admin.remove_key("k")).result is ActionResult.DONE
            ids = await store.jobs.enqueue_many([NewJob(task="t", serial="q"), NewJob(task="t"), NewJob(task="t")])
            assert (await store.admin.cancel(ids[2])).result is ActionResult.DONE
            first, second = sorted(await claim(store, 9), key=lambda claimed: claimed.record.id)
            assert not (await heartbeats.beat([first.lease, second.lease], 30.0)).lost
            assert (await store.admin.cancel(ids[0])).result is ActionResult.ASKED
            assert (await heartbeats.beat([first.lease], 30.0)).canceled == {(first.lease.job_id, first.lease.token)}
            assert await store.settle([(first.lease, COMPLETED)]) == [Verdict.SETTLED]
            (reset,) = await heartbeats.reset_lease(second.lease)
            assert reset.state is State.QUEUED
            assert await store.settle([(second.lease, COMPLETED)]) == [Verdict.LOST]
            assert [job.priority for job in await store.admin.reschedule_jobs([ids[1]], Reschedule(priority=-1))] == [
                -1
            ]
            lease = await take(store)
            assert await heartbeats.release([lease]) == []
            assert [job.id for job in await store.admin.complete_jobs([ids[1]])] == [ids[1]]
            await heartbeats.maintain()
            assert len(await store.inspect.list(JobFilter(states=tuple(State)))) == 3 * (turn + 1)
        await heartbeats.close()
        await store.close()

    run(story(), timeout=60)


def test_a_schema_is_installed_and_removed_through_the_pooler(
    program: Program, empty_url: str, options: dict[str, Any], run: Run
) -> None:
    async def story(url: str) -> None:
        stores = [PostgresStore(url, StoreOptions(**options)) for _ in range(4)]
        statuses = await asyncio.gather(*(store.schema.install() for store in stores))
        assert {status.installed for status in statuses} == {statuses[0].expected}
        await stores[0].schema.uninstall()
        assert (await stores[0].schema.status()).installed is None
        for store in stores:
            await store.close()

    with PgBouncer(program, empty_url) as bouncer:
        run(story(bouncer.url))


def test_a_worker_without_a_direct_address_warns_and_polls(
    bouncer: PgBouncer, options: dict[str, Any], run: Run
) -> None:
    events: list[Event] = []

    async def story() -> None:
        app = app_on(bouncer.url, **options)
        async with app:
            store = await app.open()
            async with app.run_in_background(events=watched(events), concurrency=3, poll_interval=0.2):
                for _ in range(3):
                    jobs = [await app.enqueue(NewJob(task="send", serial="q")) for _ in range(2)]
                    jobs += [await app.enqueue(NewJob(task="send")) for _ in range(4)]
                    result = await settled(store, *(job.id for job in jobs))
                    assert {job.state for job in result} == {State.COMPLETED}
                assert not store.is_listening

    run(story(), timeout=60)
    listening = [event for event in events if isinstance(event, Listening)]
    assert {event.state for event in listening} == {"connecting", "error"}
    assert any("--listen-url" in (event.error or "") for event in listening)
    assert [event.error for event in events if isinstance(event, StoreCallFailed)] == [POLLING]


def test_a_worker_with_a_direct_address_is_notified(
    bouncer: PgBouncer, postgres_url: str, options: dict[str, Any], run: Run
) -> None:
    async def story() -> None:
        store = PostgresStore(bouncer.url, StoreOptions(listen_url=postgres_url, **options))
        assert await store.wait(5.0) is True  # it has only just begun to listen
        waiting = asyncio.create_task(store.wait(20.0))
        await asyncio.sleep(0)
        assert store.is_listening
        await store.jobs.enqueue(NewJob(task="t"))
        assert await asyncio.wait_for(waiting, 15) is True
        await store.close()

    run(story())


def test_connections_of_the_pooler_keep_no_state(
    bouncer: PgBouncer, postgres_url: str, options: dict[str, Any], run: Run
) -> None:
    """What we leave behind would be the next client's: settings, locks, a LISTEN, a role, temporary tables."""

    async def story() -> None:
        app = app_on(bouncer.url, **options)
        async with app:
            store = await app.open()
            async with app.run_in_background(concurrency=3, poll_interval=0.2):
                jobs = [await app.enqueue(NewJob(task="send", serial="q")) for _ in range(3)]
                await settled(store, *(job.id for job in jobs))

    run(story(), timeout=60)
    with psycopg.connect(postgres_url) as connection:
        locks = connection.execute(
            "select count(*) from pg_locks l join pg_database d on d.oid = l.database"
            " where d.datname = current_database() and l.locktype = 'advisory'"
        ).fetchone()
        assert locks == (0,)
    seen = set()
    for _ in range(9):
        with psycopg.connect(bouncer.url, autocommit=True, prepare_threshold=None) as connection:
            row = connection.execute(
                "select pg_backend_pid(), array(select pg_listening_channels()), current_user = session_user,"
                " (select count(*) from pg_settings where source = 'session' and setting is distinct from reset_val"
                "  and name not in ('application_name', 'client_encoding')),"
                " (select count(*) from pg_class where relnamespace = pg_my_temp_schema())"
            ).fetchone()
            assert row is not None
            seen.add(row[0])
            assert row[1:] == ([], True, 0, 0)
    assert len(seen) > 1, "all the server's connections were to be looked at"


@pytest.fixture
def mixed_up(program: Program, postgres_url: str) -> Iterator[str]:
    """The URL of a pooler that knows no prepared statements, after others have left some behind it."""
    with PgBouncer(program, postgres_url, prepared=False) as bouncer:
        with ExitStack() as stack:
            for _ in range(3):  # each in a transaction, so on a server connection of its own
                connection = stack.enter_context(psycopg.connect(bouncer.url))
                for number in range(20):
                    connection.execute(f"select {number}".encode(), prepare=True)
        yield bouncer.url


@pytest.mark.parametrize("command", ["doctor", "jobs show 1"])
def test_a_command_with_mixed_up_statements_exits_with_1_and_names_the_option(
    mixed_up: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_program([*command.split(), "-c", mixed_up]) == 1
    output = capsys.readouterr()
    assert "--no-prepared-statements" in (output.out if command == "doctor" else output.err)


def test_run_once_with_mixed_up_statements_ends_and_names_the_option(
    mixed_up: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stowhand.worker.claims.MAX_ONCE_FAILURES", 2)

    async def once() -> None:
        store = PostgresStore(mixed_up)
        try:
            await Worker(store, _nothing, WorkerOptions(once=True)).run()
        finally:
            await store.close()

    with pytest.raises(StoreError, match="--no-prepared-statements") as ended:
        run(once())
    assert exit_code(ended.value) == FAILURE


def test_the_doctor_names_the_option_at_the_first_use_of_a_pooler(
    bouncer: PgBouncer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_program(["doctor", "-c", bouncer.url]) == 0
    (said,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warn  wake-ups")]
    assert "--listen-url, and --no-prepared-statements if it is a PgBouncer before 1.21" in said


def test_a_direct_connection_is_not_mistaken_for_a_pooler(postgres_url: str, run: Run) -> None:
    async def story() -> None:
        store = PostgresStore(postgres_url)
        assert await store.wait(5.0) is True
        assert store.is_listening
        await store.close()

    run(story())


def test_without_notifications_the_reason_is_reported_and_jobs_are_polled(postgres_url: str, run: Run) -> None:
    """The same without a PgBouncer, so that it is tried on every machine: an address where nobody answers."""
    events: list[Event] = []

    async def story() -> None:
        app = app_on(postgres_url, listen_url="postgresql://127.0.0.1:1/nowhere", prepared_statements=False)
        async with app:
            store = await app.open()
            async with app.run_in_background(events=watched(events), concurrency=2, poll_interval=0.2):
                for _ in range(3):
                    job = await app.enqueue(NewJob(task="send"))
                    assert [found.state for found in await settled(store, job.id)] == [State.COMPLETED]
                assert not store.is_listening

    run(story())
    assert {event.state for event in events if isinstance(event, Listening)} == {"connecting", "error"}
    assert [event.error for event in events if isinstance(event, StoreCallFailed)] == [POLLING]


async def _nothing(ctx: Attempt[Job], job: Job) -> None:
    """The handler."""


def app_on(url: str, **options: Any) -> App:
    app = App(url, **options)

    @app.task
    async def send() -> None:
        return None

    return app


def watched(told: list[Event]) -> Events:
    """What is said about listening goes into the list."""
    events = Events()
    for kind in (Listening, StoreCallFailed):
        events.on(kind, told.append)
    return events


def test_a_read_only_store_leaves_no_setting_on_a_connection_of_the_pooler(
    bouncer: PgBouncer, options: dict[str, Any], run: Run
) -> None:
    async def story() -> None:
        reader = PostgresStore(bouncer.url, StoreOptions(**options, read_only=True))
        writer = PostgresStore(bouncer.url, StoreOptions(**options))
        await reader.open()
        for number in range(1, 9):
            assert (await writer.jobs.enqueue(NewJob(task="t"))).id == number
            assert (await reader.inspect.amounts())[State.QUEUED].number == number
        with pytest.raises(StoreError, match="read_only"):
            await reader.admin.cancel(1)
        await reader.close()
        await writer.close()
        with psycopg.connect(bouncer.url, autocommit=True) as connection:
            for name, usual in (("transaction_read_only", "off"), ("statement_timeout", "0")):
                assert connection.execute(f"show {name}").fetchone() == (usual,)

    run(story())


def test_callers_without_prepared_statements_enqueue_through_the_pooler(
    bouncer: PgBouncer, postgres_url: str, run: Run
) -> None:
    app = App(bouncer.url)
    plain: dict[str, Any] = {"statement_cache_size": 0}
    engines = {
        "postgresql+asyncpg": {"connect_args": plain | {"prepared_statement_name_func": lambda: f"__{uuid4()}__"}},
        "postgresql+psycopg": {"connect_args": {"prepare_threshold": None}},
    }

    async def story() -> None:
        for _ in range(2):  # the second on another server connection, maybe
            connection = await asyncpg.connect(bouncer.url, **plain)
            async with connection.transaction():
                await app.enqueue_in(connection, NewJob(task="t"))
            await connection.close()
            for driver, options in engines.items():
                engine = create_async_engine(make_url(bouncer.url).set(drivername=driver), **options)
                async with AsyncSession(engine) as session, session.begin():
                    await app.enqueue_in(session, NewJob(task="t"))
                await engine.dispose()

    run(story())
    with psycopg.connect(postgres_url) as connection:
        assert connection.execute("select count(*) from stowhand.live").fetchone() == (6,)
