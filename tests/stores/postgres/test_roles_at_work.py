"""The four roles with real logins: what each is for works whole, anything else is refused in words that help."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from stowhand.app.app import App
from stowhand.errors import StoreError, StoreRefused
from stowhand.jobs.job import KeyMode, NewJob, State
from stowhand.jobs.lifecycle import COMPLETED
from stowhand.protocols.queue_store import ActionResult, JobFilter, Reschedule, Tick
from stowhand.protocols.store import StoreOptions, Verdict
from stowhand.stores.postgres.queue import PostgresStore
from stowhand.stores.postgres.queue.context import ROLE_KINDS, role_names
from tests.app.test_app import settled
from tests.conftest import Run
from tests.docs.pages import DOCS
from tests.stores.postgres.verbs import ask, claim, take
from tests.support.databases import Databases
from tests.support.emptying import empty
from tests.support.logins import Logins, exec_all, with_roles
from tests.support.questions import QUESTIONS
from tests.support.schema import install

pytestmark = pytest.mark.xdist_group("roles")
WHEN = datetime(2030, 1, 1, tzinfo=UTC)
Store = Callable[..., PostgresStore]


@pytest.fixture(scope="module")
def shared_logins(postgres_server: Databases) -> Iterator[Logins]:
    with with_roles(postgres_server) as logins:
        yield logins


@pytest.fixture
def logins(shared_logins: Logins) -> Logins:
    with psycopg.connect(shared_logins.owner, autocommit=True) as connection:
        empty(connection)
    return shared_logins


@pytest.fixture
def store(logins: Logins) -> Store:
    def store(role: str, **options: Any) -> PostgresStore:
        return PostgresStore(logins.url(role), StoreOptions(**options))

    return store


def test_every_way_to_enqueue_is_open_to_an_enqueuer(logins: Logins, store: Store, run: Run) -> None:
    async def story() -> None:
        enqueuer = store("enqueuer")
        await enqueuer.open()
        plain = [await enqueuer.jobs.enqueue(NewJob(task="plain", serial="q")) for _ in range(3)]
        assert [job.id for job in plain] == sorted(job.id for job in plain)
        keyed = await enqueuer.jobs.enqueue(NewJob(task="keyed", key="k", flags=("f",)))
        assert (await enqueuer.jobs.enqueue(NewJob(task="keyed", key="k"))).id == keyed.id
        assert len(await enqueuer.jobs.enqueue_many([NewJob(task="many"), NewJob(task="many", key="m")])) == 2
        added = await enqueuer.jobs.add_jobs([NewJob(task="a"), NewJob(task="b", key="b")])
        assert [job.task for job in added] == ["a", "b"]
        assert (await enqueuer.admin.remove_key("k")).result is ActionResult.DONE
        async with await psycopg.AsyncConnection.connect(logins.url("enqueuer")) as connection:
            await as_awaitable(enqueuer.transactions.enqueue_in(connection, NewJob(task="rolled back")))
            await connection.rollback()
            await as_awaitable(enqueuer.transactions.enqueue_in(connection, NewJob(task="committed")))
        await enqueuer.close()

    run(story())
    with psycopg.connect(logins.url("enqueuer")) as connection:
        connection.execute("select stowhand.add_job('sql', json_build_object('a', 1), job_key := 's')")
        connection.execute("select from stowhand.add_jobs(array[('x', '{}', null, null, null, null, null, null, null)"
                           "::stowhand.job_spec])")  # fmt: skip
    with psycopg.connect(logins.owner) as connection:
        result = connection.execute("select task from stowhand.live order by id").fetchall()
    assert [task for (task,) in result] == ["plain"] * 3 + ["many", "many", "a", "b", "committed", "sql", "x"]


async def as_awaitable(found: object) -> object:
    assert isinstance(found, Awaitable)
    return await found


def test_an_enqueuer_tries_the_table_once_and_not_for_each_job(
    logins: Logins, store: Store, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> list[bytes]:
        enqueuer = store("enqueuer")
        calls: list[bytes] = []
        rows = enqueuer._context.pool.rows

        async def noted(role: str, statement: bytes, values: Any = ()) -> Any:
            calls.append(statement)
            return await rows(role, statement, values)

        monkeypatch.setattr(enqueuer._context.pool, "rows", noted)
        for _ in range(3):
            await enqueuer.jobs.enqueue(NewJob(task="t", queue="default"))
        await enqueuer.close()
        return calls

    calls = run(story())
    assert [b"insert into" in statement for statement in calls] == [True, False, False, False]


def test_callers_of_an_enqueuer_share_transactions(logins: Logins, store: Store, run: Run) -> None:
    async def story() -> None:
        enqueuer = store("enqueuer")
        instance = await asyncio.gather(*(enqueuer.jobs.enqueue(NewJob(task=task)) for task in "abcd"))
        assert [job.task for job in instance] == list("abcd")
        assert [job.id for job in instance[1:]] == sorted(job.id for job in instance[1:])
        await enqueuer.close()

    run(story())
    with psycopg.connect(logins.owner) as connection:
        groups = connection.execute("select count(*) from stowhand.live group by xmin::text order by 1").fetchall()
    assert groups == [(1,), (3,)]


def test_an_app_of_an_enqueuer_enqueues_and_one_of_a_worker_works(logins: Logins, run: Run) -> None:
    def app(role: str) -> App:
        app = App(logins.url(role), pool_size=6)

        @app.task
        async def send(to: str) -> str:
            return to

        return app

    async def story() -> None:
        async with app("enqueuer") as producer:
            job = await producer.enqueue(NewJob(task="send", payload='{"to":"a"}'))
        async with app("worker") as worker:
            async with worker.run_in_background(concurrency=2):
                (found,) = await settled(await worker.open(), job.id)
            assert found.result_text == '"a"'

    run(story())


def test_the_worker_role_suffices_for_a_worker(store: Store, run: Run) -> None:
    async def story() -> None:
        worker = store("worker", history=3600.0)
        await worker.open()
        await worker.jobs.enqueue_many(
            [NewJob(task="t", serial="q"), NewJob(task="t"), NewJob(task="t"), NewJob(task="t")]
        )
        first, second, third, fourth = await claim(worker, 4)
        heartbeats = worker.heartbeats()
        assert not (await heartbeats.beat([first.lease], 30.0)).lost
        assert await worker.settle([(first.lease, COMPLETED)]) == [Verdict.SETTLED]
        assert await worker.settle([(first.lease, COMPLETED)], repeat=True) == [Verdict.ALREADY_SETTLED]
        assert await heartbeats.release([second.lease]) == []
        assert await heartbeats.reset_lease(third.lease)
        assert await heartbeats.abandon(fourth.lease.token)
        assert await heartbeats.reset_stalled(0.0) == await heartbeats.reset_worker("nobody") == []
        await heartbeats.maintain()
        assert await worker.next_due(None) == 0.0
        await worker.wait(0.01)
        assert worker.is_listening
        await worker.timetable.register([("every", "spec")])
        tick = Tick(identifier="every", at=WHEN, job=NewJob(task="t"), spec="spec")
        assert [entered.is_own for entered in await worker.timetable.schedule([tick, tick])] == [True, False]
        assert [item.identifier for item in await worker.timetable.known_items()] == ["every"]
        await heartbeats.close()
        await worker.close()

    run(story())


def test_a_reader_reads_and_cannot_change_anything(store: Store, run: Run) -> None:
    async def story() -> None:
        enqueuer, reader = store("enqueuer"), store("reader")
        job = await enqueuer.jobs.enqueue(NewJob(task="t"))
        assert (await reader.jobs.get(job.id)) == job
        assert [found.id for found in await reader.inspect.list(JobFilter(states=tuple(State)))] == [job.id]
        assert (await reader.inspect.counts())[State.QUEUED] == 1
        assert isinstance(list(await reader.timetable.known_items()), list)
        for refused in (reader.admin.cancel(job.id), reader.jobs.enqueue(NewJob(task="t")), reader.claim(ask())):
            with pytest.raises(StoreRefused, match=r"permission denied for function .*`stowhand migrate --roles`"):
                await refused
        await enqueuer.close()
        await reader.close()

    run(story())


def test_the_reader_role_suffices_for_every_page(store: Store, run: Run) -> None:
    async def story() -> None:
        enqueuer, reader, worker = store("enqueuer"), store("reader", read_only=True), store("worker")
        for number in range(5):
            await enqueuer.jobs.enqueue(NewJob(task=f"t{number}", serial="q" if number == 1 else None))
        await take(worker)
        await reader.open()
        for name, question in QUESTIONS.items():
            same = (await question(reader), await question(worker))
            assert same[0] == same[1] or name == "oldest due", name  # of that one time goes on
        assert list(await reader.inspect.throughput(WHEN, WHEN)) == []
        for one in (enqueuer, reader, worker):
            await one.close()

    run(story())


def test_an_admin_can_administer_but_not_claim(store: Store, run: Run) -> None:
    async def story() -> None:
        worker, admin = store("worker"), store("admin")
        ids = await admin.jobs.enqueue_many([NewJob(task="t")] * 6 + [NewJob(task="t", key="k")])
        assert (await admin.admin.cancel(ids[0])).result is ActionResult.DONE
        assert (await admin.admin.retry(ids[0])).result is ActionResult.DONE
        assert (await admin.admin.remove(ids[0])).result is ActionResult.DONE
        assert (await admin.admin.remove_key("k")).result is ActionResult.DONE
        assert [job.id for job in await admin.admin.complete_jobs([ids[1]])] == [ids[1]]
        assert [job.state for job in await admin.admin.permanently_fail_jobs([ids[2]])] == [State.FAILED]
        assert [job.priority for job in await admin.admin.reschedule_jobs([ids[3]], Reschedule(priority=-1))] == [-1]
        (held,) = await claim(worker, worker="gone.1.x")
        assert [job.id for job in await admin.admin.force_unlock_workers(["gone.1.x"])] == [held.record.id]
        assert (await admin.inspect.counts())[State.QUEUED] == 3
        with pytest.raises(StoreRefused, match=r"permission denied for function claim"):
            await claim(admin)
        await worker.close()
        await admin.close()

    run(story())


def test_only_a_worker_gets_the_token_of_a_lease(logins: Logins, store: Store, run: Run) -> None:
    async def story() -> None:
        worker, enqueuer = store("worker"), store("enqueuer")
        await worker.jobs.enqueue(NewJob(task="t", key="k"))
        lease = await take(worker)
        with psycopg.connect(logins.url("enqueuer"), autocommit=True) as connection:
            result = connection.execute(
                "select id, token, settled_token from stowhand.enqueue('t', _key := 'k', _mode := 'unsafe_dedupe')"
            ).fetchall()
            assert result == [(lease.job_id, None, None)]
            result = connection.execute(
                'select token from stowhand.enqueue_jobs(\'[{"task": "t", "key": "k", "key_mode": "unsafe_dedupe"}]\')'
            ).fetchall()
            assert result == [(None,)]
        assert (
            await enqueuer.jobs.enqueue(NewJob(task="t", key="k", key_mode=KeyMode.UNSAFE_DEDUPE))
        ).id == lease.job_id
        for role in ("reader", "admin", "worker"):
            with psycopg.connect(logins.url(role), autocommit=True) as connection:
                for column, table in (("token", "live"), ("settled_token", "history")):
                    with pytest.raises(psycopg.errors.InsufficientPrivilege):
                        connection.execute(f"select {column} from stowhand.{table}".encode())
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    connection.execute("select * from stowhand.dead_tokens")
        await worker.close()
        await enqueuer.close()

    run(story())


@pytest.mark.parametrize("role", ["enqueuer", "worker", "admin"])
def test_no_role_can_set_the_time(store: Store, run: Run, role: str) -> None:
    async def story() -> None:
        pinned = store(role, pinned=lambda: WHEN)
        with pytest.raises(StoreError, match="Only the owner of schema stowhand may set the time"):
            await pinned.jobs.enqueue(NewJob(task="t"))
        with pytest.raises(StoreError, match="Only the owner"):
            await pinned.jobs.enqueue_many([NewJob(task="t")])
        await pinned.close()

    run(story())


def test_a_login_without_a_role_gets_an_explanation_and_can_use_a_wrapper(
    logins: Logins, store: Store, run: Run
) -> None:
    async def story() -> None:
        stranger = store("stranger")
        for refused in (
            stranger.open,
            lambda: stranger.jobs.enqueue(NewJob(task="t")),
            stranger.inspect.counts,
            stranger.schema.install,
        ):
            with pytest.raises(StoreRefused, match=r"permission denied for .*`stowhand migrate --roles`"):
                await refused()
        with psycopg.connect(logins.url("stranger")) as connection, pytest.raises(StoreError, match="--roles"):
            stranger.transactions.enqueue_in(connection, NewJob(task="t"))
        await stranger.close()

    run(story())
    exec_all(
        logins.owner,
        "create or replace function public.confirm(order_id bigint) returns void language sql security definer"
        " set search_path = pg_catalog as"
        " $$ select stowhand.add_job('confirm', json_build_object('order', order_id)) $$",
        "revoke execute on function public.confirm from public",
        f"grant execute on function public.confirm to {logins.name('stranger')}",
    )
    with psycopg.connect(logins.url("stranger"), autocommit=True) as connection:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("select stowhand.add_job('confirm')")
        connection.execute("select public.confirm(7)")
    with psycopg.connect(logins.owner, autocommit=True) as connection:
        assert connection.execute("select payload from stowhand.jobs").fetchall() == [({"order": 7},)]
        connection.execute("drop function public.confirm")


def test_a_schema_without_roles_grants_them_nothing(logins: Logins, postgres_server: Databases, run: Run) -> None:
    """Roles belong to the whole server: another database that has them must not open this one."""
    url = postgres_server.create_database()
    try:
        for _ in range(2):
            install(url)
        with psycopg.connect(url) as connection:
            may = connection.execute(
                "select bool_or(has_function_privilege(r.rolname, p.oid, 'execute')) from pg_proc p, pg_roles r"
                " where p.pronamespace = 'stowhand'::regnamespace and r.rolname = any(%s)",
                (list(role_names("stowhand").values()),),
            ).fetchone()
        assert may == (False,)
    finally:
        postgres_server.drop_database(url)


def test_names_of_roles_fit_for_any_schema_name() -> None:
    for schema in ("s" * 63, "ß" * 31, "s" * 54, "jobs"):
        names = list(role_names(schema).values())
        assert len({name.encode()[:63] for name in names}) == 4
        assert max(len(name.encode()) for name in names) <= 63
    assert role_names("jobs")["worker"] == "jobs_worker"


def test_the_page_on_roles_grants_and_removes_as_printed(postgres_server: Databases, logins: Logins) -> None:
    page = (DOCS / "how-to" / "grant-roles.md").read_text()
    grants, removal = re.findall(r"^```sql\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    with psycopg.connect(logins.owner) as connection:
        connection.execute("create role web; create role worker; create role ada")
        connection.execute(grants.encode())
        connection.execute("set role ada; select from stowhand.jobs; reset role")
        connection.execute("drop role ada; drop role web; drop role worker")
        for name in (logins.name(role) for role in ROLE_KINDS):
            connection.execute(f"drop role {name}".encode())
        connection.execute(removal.encode())
        connection.rollback()  # roles belong to the whole server


REFUSED_BUILT_IN = {
    "add_job": "select {s}.add_job('jobs:purge_completed', '{{}}')",
    "add_job with a key": "select {s}.add_job('jobs:purge_completed', '{{}}', job_key := 'k')",
    "add_job of jsonb": "select {s}.add_job('jobs:purge_completed', '{{}}'::jsonb)",
    "add_jobs": "select {s}.add_jobs(array[('jobs:purge_completed',null,null,null,null,null,null,null,null)"
    "::{s}.job_spec])",
    "enqueue": "select {s}.enqueue('jobs:purge_completed')",
    "enqueue_many": "select {s}.enqueue_many(array['a','jobs:purge_completed'],array['{{}}','{{}}']::json[],"
    "null,null,null,null,null,null,null)",
    "enqueue_jobs": 'select {s}.enqueue_jobs(\'[{{"task": "jobs:purge_completed"}}]\')',
    "enqueue_text": 'select {s}.enqueue_text(\'{{"task": "jobs:purge_completed"}}\')',
    "on_failure": 'select {s}.enqueue_jobs(\'[{{"task": "t", "on_failure": {{"task": "jobs:purge_completed"}}}}]\')',
    "flow_create": "select {s}.flow_create('f', '{{i}}', '{{}}', '{{}}', '{{}}', array['jobs:purge_completed'],"
    " null,null,null,null,null,null,null,null,null,null)",
}


@pytest.mark.parametrize("way", REFUSED_BUILT_IN)
def test_an_enqueuer_cannot_enqueue_a_purge(logins: Logins, way: str) -> None:
    statement = REFUSED_BUILT_IN[way].format(s="stowhand").encode()
    for role in ("enqueuer", "worker", "admin"):
        with psycopg.connect(logins.url(role)) as connection:
            with pytest.raises(psycopg.Error, match="is built in") as refused:
                connection.execute(statement)
            assert refused.value.sqlstate == "GWBID"


def test_only_administrators_and_workers_can_enqueue_a_purge(logins: Logins, store: Store, run: Run) -> None:
    statement = "select (stowhand.enqueue_built_in('jobs:purge_completed', _key := 'k')).task"
    for role, may in (("admin", True), ("worker", True), ("enqueuer", False), ("reader", False)):
        with psycopg.connect(logins.url(role)) as connection:
            if may:
                assert connection.execute(statement.encode()).fetchone() == ("jobs:purge_completed",)
            else:
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    connection.execute(statement.encode())

    async def story() -> None:
        worker = store("worker")
        at = (await worker.timetable.now()).replace(second=0, microsecond=0)
        await worker.timetable.schedule(
            [Tick(identifier="p", at=at, job=NewJob(task="jobs:purge_completed"), spec="s")]
        )
        await worker.close()

    run(story())
