"""What flows keep in the schema: found by indexes, no burden to others, created once whatever becomes of replies."""

from __future__ import annotations

import asyncio
import uuid
from datetime import UTC, datetime

import psycopg
import pytest

from stowhand.errors import OutcomeUnknown, StoreRefused
from stowhand.flows.engine import NewFlowJob
from stowhand.flows.queue import QueueEngine
from stowhand.jobs.job import NewJob, State
from stowhand.jobs.lifecycle import COMPLETED, AttemptOutcome, Settlement
from stowhand.protocols.attempt import Attempt
from stowhand.protocols.flow_shape import FlowShape, Limiter, Queue
from stowhand.protocols.flow_tables import NewFlow, RateLimitRequest
from stowhand.protocols.queue_store import ActionResult
from stowhand.protocols.store import ClaimRequest, StoreOptions
from stowhand.stores.postgres.queue import PostgresStore
from stowhand.stores.postgres.queue.context import ROLE_KINDS
from tests.conftest import Run
from tests.stores.postgres.conftest import Sql
from tests.stores.postgres.verbs import wait_until_closed
from tests.support.databases import Databases
from tests.support.logins import Logins, with_roles
from tests.support.proxy import Proxy

KEPT = ("jobs", "lookups", "limits", "waits")


@pytest.fixture
def url(postgres_url: str) -> str:
    return postgres_url


def new(name: str, *lookups: tuple[str, str]) -> NewFlow:
    step = NewJob(task="demo/first", key=f"flow:demo:{name}", payload=f'{{"id":"{name}","flow":"demo"}}')
    return NewFlow(id=name, step=step, lookups=lookups)


async def work_off(store: PostgresStore) -> None:
    while claims := await store.claim(ClaimRequest(worker="w", token=str(uuid.uuid4()), limit=500, lease=30.0)):
        await store.settle([(claim.lease, COMPLETED) for claim in claims])


def walked(url: str, *tables: str) -> int:
    """Rows that were read by walking over these tables, by connections that are closed."""
    with psycopg.connect(url, autocommit=True) as connection:
        wait_until_closed(connection)
        row = connection.execute(
            "select coalesce(sum(seq_tup_read), 0)::int from pg_stat_user_tables where relname = any(%s)",
            (list(tables),),
        ).fetchone()
    assert row is not None
    return int(row[0])


def test_a_step_is_found_by_its_key_however_long_the_history_is(url: str, run: Run, sql: Sql) -> None:
    async def story() -> None:
        store = PostgresStore(url)
        tables = store.flows
        await store.jobs.enqueue_many(NewJob(task="t", payload="{}") for _ in range(2000))
        await tables.create("demo", [new(f"n{number}", ("n", str(number % 7))) for number in range(2000)])
        await work_off(store)
        await store.close()
        sql("analyze stowhand.history, stowhand.live, stowhand.flow_jobs, stowhand.flow_lookups")
        before = walked(url, "history_default", "live", "flow_jobs", "flow_lookups")
        for number in range(50):
            (found,) = await tables.latest([f"flow:demo:n{number}"])
            assert found is not None
            assert await tables.exists([f"n{number}", "none"]) == {f"n{number}"}
        assert await tables.delete("demo", "n1", ["flow:demo:n1"])
        await store.close()
        assert walked(url, "history_default", "live", "flow_jobs", "flow_lookups") == before

    run(story())


def test_the_history_of_other_jobs_is_not_in_the_index_of_flows(url: str, run: Run, sql: Sql) -> None:
    async def story() -> None:
        store = PostgresStore(url)
        await store.jobs.enqueue_many(NewJob(task="t", key=f"other:{number}") for number in range(2000))
        await work_off(store)
        await store.close()

    run(story())
    ((size,),) = sql("select pg_relation_size('stowhand.history_default_key_id_idx')")
    assert size <= 8192


@pytest.mark.parametrize("jobs", [1, 2500], ids=["one", "many"])
def test_a_creation_whose_reply_is_lost_is_done_once(url: str, run: Run, sql: Sql, jobs: int) -> None:
    async def story() -> None:
        with Proxy(url) as proxy:
            store = PostgresStore(proxy.url)
            proxy.lose_next_reply("flow", b"COMMIT\0" if jobs > 1 else b"flow_create")
            await store.flows.create("demo", [new(f"n{number}", ("k", "v")) for number in range(jobs)])
            assert proxy.lost.is_set()
            await store.close()

    run(story())
    assert sql("select count(*) from stowhand.live") == sql("select count(*) from stowhand.flow_jobs") == [(jobs,)]
    assert sql("select count(*) from stowhand.flow_lookups") == [(jobs,)]


def test_a_creation_without_a_reply_has_an_unknown_outcome(url: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        with Proxy(url) as proxy:
            store = PostgresStore(proxy.url)
            await store.flows.create("demo", [new("before")])  # what a first connection asks is answered
            monkeypatch.setattr(proxy, "_take_loss", lambda role, data: role == "flow")
            with pytest.raises(OutcomeUnknown, match="may or may not have been committed"):
                await store.flows.create("demo", [new("a")])
            assert proxy.lost.is_set()
            await store.close()

    run(story())


def test_a_limiter_with_many_concurrent_callers_allows_exactly_its_reservoir(url: str, run: Run) -> None:
    moment = datetime(2030, 1, 1, 12, 20, tzinfo=UTC)  # windows begin on the hour

    async def story() -> None:
        store = PostgresStore(url, StoreOptions(pinned=lambda: moment))
        tables = store.flows
        calls = [
            RateLimitRequest(limiter="l", part="p", holder=str(number), reservoir=7, interval=3600.0)
            for number in range(60)
        ]
        waits = await asyncio.gather(*(tables.spend(one) for one in calls))
        assert sum(wait == 0 for wait in waits) == 7
        late = sorted(round(wait / 3600 - min(wait for wait in waits if wait) / 3600) for wait in waits if wait)
        assert late == [window for window in range(8) for _ in range(7)][:53]
        await store.close()

    run(story())


@pytest.mark.xdist_group("roles")
def test_each_role_may_do_its_part_of_a_flow(postgres_server: Databases, run: Run) -> None:
    """Whoever enqueues creates jobs, a worker works on them, a reader looks, an administrator retries."""
    shape = FlowShape(name="demo", queues=(Queue("first", limiter=Limiter(reservoir=9, interval=60.0)),))

    async def story(logins: Logins) -> None:
        stores = {role: PostgresStore(logins.url(role)) for role in ROLE_KINDS}
        engines = {role: QueueEngine(store, shape) for role, store in stores.items()}
        for engine in engines.values():
            await engine.open()
        job_id = await engines["enqueuer"].create(NewFlowJob(values={"n": "1"}, lookups=(("n", "1"),)))
        worker, line = engines["worker"], shape.entry
        (claim,) = await worker.store(line, 60.0, 3.0).claim(
            ClaimRequest(worker="w", token=str(uuid.uuid4()), limit=1, lease=30.0)
        )
        job = worker.job(line, Attempt(claim, 0.0), claim.record)
        assert await worker.check_start(line, job) is None
        await worker.store(line, 60.0, 3.0).settle(
            [(claim.lease, Settlement(State.FAILED, AttemptOutcome.FAILED, error="no"))]
        )
        for role in ("worker", "reader", "admin"):
            assert (await engines[role].read([job_id], resolve_children=True))[0] is not None
            assert await engines[role].ids("n", "1") == [job_id]
            assert await engines[role].failed(None, after=None, limit=9) == [job_id]
            assert [each.failed for each in await engines[role].counts()] == [1]
        with pytest.raises(StoreRefused, match="permission denied"):
            await engines["reader"].delete(job_id)
        assert (await engines["admin"].retry([job_id]))[0].result is ActionResult.DONE
        assert await engines["worker"].delete(job_id)
        for engine, store in zip(engines.values(), stores.values(), strict=True):
            await engine.close()
            await store.close()

    with with_roles(postgres_server) as logins:
        run(story(logins))
