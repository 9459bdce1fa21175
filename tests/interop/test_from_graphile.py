"""Schemas in which the original has worked are moved into ours: jobs, keys, serial keys, flags, attempts, last
ticks."""

from __future__ import annotations

import asyncio
import json
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import psycopg
import pytest

from stowhand.cron.crontab import parse_crontab
from stowhand.cron.scheduler import Scheduler
from stowhand.errors import SchemaError
from stowhand.jobs.job import NewJob, State
from stowhand.protocols.operator import PURGE_TASK
from stowhand.protocols.queue_store import JobFilter
from stowhand.protocols.store import StoreOptions
from stowhand.stores.postgres.queue import PostgresStore
from tests.cli.conftest import Stowhand
from tests.interop.original import Original
from tests.support.databases import Databases, Setup

pytestmark = pytest.mark.xdist_group("interop")
T = TypeVar("T")
VERSIONS = ["0.13.0", "0.16.6", "0.18.0"]
"""The two layouts, and the newest."""
JOBS = """
select graphile_worker.add_job('plain');
select graphile_worker.add_job('full', '{"a": [1, 2.50]}', queue_name := 'mail', run_at := '2031-02-03T04:05:06Z',
  max_attempts := 7, job_key := 'k1', priority := -3, flags := array['b', 'a']);
select graphile_worker.add_job('fails', job_key := 'k2', queue_name := 'mail');
select graphile_worker.add_job('fails', max_attempts := 1);
select graphile_worker.add_job('full', '[1]', job_key := 'k3');
select graphile_worker.add_job('full', '[2]', job_key := 'k3');
"""
SHOWN = """select id::bigint, task_identifier, payload::text, queue_name, priority::int, run_at, attempts::int,
  max_attempts::int, last_error, key, revision::int, created_at, updated_at from {jobs} order by id"""


@cache
def worked(version: str) -> Setup:
    def setup(url: str) -> None:
        original = Original(version)
        original.migrate(url)
        execute(url, JOBS)
        original.work(url)

    return setup


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def theirs(version: str, postgres_server: Databases) -> Iterator[str]:
    """A database in which that version has worked: six calls, five jobs, of which two have failed."""
    url = postgres_server.create_database(postgres_server.template(worked(version)))
    yield url
    postgres_server.drop_database(url)


def execute(url: str, statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.rownumber is not None else []


def table_of(version: str, name: str) -> str:
    return f"graphile_worker.{'' if version < '0.16' else '_private_'}{name}"


def source_of(version: str) -> str:
    """Their jobs with the names of tasks and serial keys."""
    if version < "0.16":
        return "graphile_worker.jobs"
    return """(select j.*, t.identifier as task_identifier, q.queue_name from graphile_worker._private_jobs j
        join graphile_worker._private_tasks t on t.id = j.task_id
        left join graphile_worker._private_job_queues q on q.id = j.job_queue_id) j"""


def in_store(
    url: str, use: Callable[[PostgresStore], Awaitable[T]], schema: str = "graphile_worker", **options: Any
) -> T:
    async def go() -> T:
        store = PostgresStore(url, StoreOptions(schema=schema, **options))
        try:
            return await use(store)
        finally:
            await store.close()

    return asyncio.run(go())


def test_a_dry_run_counts_and_changes_nothing(theirs: str, version: str, call: Stowhand) -> None:
    before = execute(theirs, SHOWN.format(jobs=source_of(version)))
    shown = call("migrate", "-c", theirs, "-s", "graphile_worker", "--from-graphile", "graphile_worker")
    assert shown.code == 0, shown.err
    assert shown.out.splitlines() == [
        "Would move from schema graphile_worker to schema graphile_worker:",
        "  5 jobs: 4 waiting (1 of them were attempted), 1 permanently failed; with their ids",
        "  3 job keys, 1 jobs with flags",
        "  2 jobs of 1 named queues",
        "  0 crontab items, with their last ticks",
        "The old schema would be called graphile_worker_before_stowhand.",
    ]
    assert "Add --yes to do it" in shown.err
    assert execute(theirs, SHOWN.format(jobs=source_of(version))) == before


def test_every_job_is_moved_unchanged_and_continues(theirs: str, version: str, call: Stowhand) -> None:
    before = execute(theirs, SHOWN.format(jobs=source_of(version)))
    moved = call("migrate", "-c", theirs, "-s", "graphile_worker", "--from-graphile", "graphile_worker", "--yes")
    assert (moved.code, moved.out.splitlines()[0]) == (
        0,
        "Moved from schema graphile_worker to schema graphile_worker:",
    )
    assert execute(theirs, SHOWN.format(jobs="graphile_worker.jobs")) == before
    kept = source_of(version).replace("graphile_worker.", "graphile_worker_before_stowhand.")
    assert execute(theirs, SHOWN.format(jobs=kept)) == before, "theirs is kept"

    async def act(store: PostgresStore) -> None:
        await store.open()
        assert await store.schema.foreign_changes() == []
        jobs = {(job.task, job.key): job for job in await store.inspect.list()}
        assert {job: found.state for job, found in jobs.items()} == {
            ("plain", None): State.QUEUED,
            ("full", "k1"): State.QUEUED,
            ("fails", "k2"): State.ERRORED,
            ("fails", None): State.FAILED,
            ("full", "k3"): State.QUEUED,
        }
        assert jobs["full", "k1"].flags == ("a", "b")
        assert "no luck" in str(jobs["fails", "k2"].last_error)
        again = await store.jobs.enqueue(NewJob(task="full", key="k1"))
        assert again.id == jobs["full", "k1"].id, "the key names the same job"
        new = await store.jobs.enqueue(NewJob(task="new"))
        assert new.id > max(job.id for job in jobs.values())
        await store.admin.retry(jobs["fails", None].id)

    in_store(theirs, act)
    for task in ("plain", "full", "fails"):
        Path("tasks", f"{task}.py").write_text(f"async def {task}(payload): ...\n")
    done = call("worker", "-c", theirs, "-s", "graphile_worker", "--once")
    assert done.code == 0, done.err
    left = execute(theirs, "select task_identifier, key from graphile_worker.jobs order by id")
    assert set(left) - {("fails", "k2")} == {("new", None)}, "of one there is no task; the retry may be due or not"


def test_a_second_move_finds_that_it_was_done(theirs: str, call: Stowhand) -> None:
    command = ("migrate", "-c", theirs, "--from-graphile", "graphile_worker", "--yes")
    assert call(*command).code == 0
    again = call(*command)
    assert again.code == 4
    assert "has no tables of graphile-worker" in again.err
    assert "'graphile_worker_before_stowhand'" in again.err
    assert len(execute(theirs, "select id from stowhand.jobs")) == 5


def test_two_moves_at_once_move_every_job_once(theirs: str) -> None:
    async def both(store: PostgresStore) -> list[object]:
        moves = [store.from_graphile("graphile_worker").move() for _ in range(2)]
        return list(await asyncio.gather(*moves, return_exceptions=True))

    results = in_store(theirs, both, schema="stowhand")
    assert sorted(isinstance(one, SchemaError) for one in results) == [False, True], results
    assert len(execute(theirs, "select id from stowhand.jobs")) == 5


def test_jobs_added_during_the_move_are_moved_or_refused_and_never_left_behind(theirs: str, version: str) -> None:
    """Four sessions call the same function all the while; of each call that was answered there is a job in ours."""
    stopped, added = threading.Event(), [0, 0, 0, 0]

    def produce(place: int) -> None:
        with psycopg.connect(theirs, autocommit=True, prepare_threshold=None) as connection:
            while not stopped.is_set():
                with suppress(psycopg.Error):
                    connection.execute(b"select graphile_worker.add_job('meanwhile')")
                    added[place] += 1

    with ThreadPoolExecutor(4) as producers:
        running = [producers.submit(produce, place) for place in range(4)]
        try:
            wait_until(lambda: all(added))
            in_store(theirs, lambda store: store.from_graphile("graphile_worker").move())
            before = list(added)
            wait_until(lambda: all(now > then for now, then in zip(added, before, strict=True)))
        finally:
            stopped.set()
        for one in running:
            one.result()
    number = "select count(*) from {} where task_identifier = 'meanwhile'"
    assert execute(theirs, number.format("graphile_worker.jobs")) == [(sum(added),)]


def wait_until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_held_job_prevents_the_move(theirs: str, version: str, call: Stowhand) -> None:
    jobs = table_of(version, "jobs")
    execute(theirs, f"update {jobs} set locked_at = now(), locked_by = 'worker-1' where key = 'k1'")
    command = ("migrate", "-c", theirs, "--from-graphile", "graphile_worker")
    shown, refused = call(*command), call(*command, "--yes")
    assert (shown.code, refused.code) == (1, 4)
    for ended in (shown, refused):
        assert "worker worker-1 holds 1 job: stop it. If it is dead, unlock them: update" in ended.err
    assert execute(theirs, "select to_regnamespace('stowhand')") == [(None,)]
    unlock = refused.err.partition("unlock them: ")[2].splitlines()[0].rstrip(".")
    execute(theirs, unlock)
    assert call(*command, "--yes").code == 0


def test_a_lock_of_five_hours_ago_is_no_holder(theirs: str, version: str, call: Stowhand) -> None:
    jobs = table_of(version, "jobs")
    execute(
        theirs,
        f"update {jobs} set locked_at = now() - interval '5 hours', locked_by = 'dead', attempts = 1 where key = 'k1'",
    )
    assert call("migrate", "-c", theirs, "--from-graphile", "graphile_worker", "--yes").code == 0
    assert execute(theirs, "select attempts, locked_at from stowhand.jobs where key = 'k1'") == [(1, None)]


def test_jobs_beyond_our_limits_are_named_before_anything_is_written(theirs: str, call: Stowhand) -> None:
    execute(
        theirs,
        f"""select graphile_worker.add_job('plain', to_json(repeat('x', 1048577)));
        select graphile_worker.add_job('{PURGE_TASK}'); select graphile_worker.add_job(E'two\\nlines')""",
    )
    refused = call("migrate", "-c", theirs, "--from-graphile", "graphile_worker", "--yes")
    assert refused.code == 4
    assert "3 jobs are beyond the limits of a job (docs/reference/limits.md), or of a built-in task" in refused.err
    assert execute(theirs, "select to_regnamespace('stowhand')") == [(None,)]


@pytest.mark.parametrize("version", ["0.13.0"], indirect=True)
def test_jobs_join_a_schema_in_use_with_new_ids_unless_a_key_is_taken(theirs: str, call: Stowhand) -> None:
    async def add(store: PostgresStore) -> None:
        await store.schema.install()
        for key in (None, "k1"):
            await store.jobs.enqueue(NewJob(task="ours", key=key))

    in_store(theirs, add, schema="stowhand")
    command = ("migrate", "-c", theirs, "--from-graphile", "graphile_worker", "--yes")
    refused = call(*command)
    assert refused.code == 4
    assert "1 of their keys are those of live jobs in schema 'stowhand': k1" in refused.err
    assert len(execute(theirs, "select id from stowhand.jobs")) == 2
    in_store(theirs, lambda store: store.admin.remove_key("k1"), schema="stowhand")
    moved = call(*command)
    assert "with new ids, in their order" in moved.out, moved.err
    tasks = [task for (task,) in execute(theirs, "select task_identifier from stowhand.jobs order by id")]
    assert tasks == ["ours", "plain", "full", "fails", "fails", "full"]


@pytest.mark.parametrize(
    "statement",
    ["drop schema graphile_worker cascade", "alter table {jobs} drop column flags cascade"],
    ids=["nothing", "too old"],
)
@pytest.mark.parametrize("version", ["0.13.0"], indirect=True)
def test_a_schema_that_is_not_theirs_is_refused(theirs: str, version: str, statement: str) -> None:
    execute(theirs, statement.format(jobs=table_of(version, "jobs")))
    with pytest.raises(SchemaError, match=r"no tables of graphile-worker|before 0\.12"):
        in_store(theirs, lambda store: store.from_graphile("graphile_worker").look())


@pytest.mark.parametrize("version", VERSIONS[-1:], indirect=True)
def test_a_login_without_ownership_of_their_schema_is_refused(theirs: str, call: Stowhand) -> None:
    """Without that it would see no job at all: their tables have row security."""
    looker = f"looker_{uuid.uuid4().hex[:12]}"
    execute(theirs, f"create role {looker} login; grant usage on schema graphile_worker to {looker};"
                    f"grant select on all tables in schema graphile_worker to {looker}")  # fmt: skip
    try:
        refused = call("migrate", "-c", theirs, "--from-graphile", "graphile_worker")
        assert refused.code == 0, "the owner may"
        for more in ((), ("--yes",)):
            url = theirs.replace("postgres@", f"{looker}@", 1)
            refused = call("migrate", "-c", url, "--from-graphile", "graphile_worker", *more)
            assert refused.code == 4
            assert "cannot move schema 'graphile_worker': use the login that owns it" in refused.err
    finally:
        execute(theirs, f"drop owned by {looker}; drop role {looker}")


CRONTAB = "*/5 * * * * often ?fill=2h\n0 4 * * * nightly ?fill=2d\n"
ABSENT_SINCE, MOVED = "2028-03-01T00:07:20Z", datetime(2028, 3, 1, 1, 2, tzinfo=UTC)


def test_no_tick_of_a_crontab_is_repeated_or_lost(theirs: str, version: str, tmp_path: Path, call: Stowhand) -> None:
    """Theirs makes up for what it missed; then ours goes on from there."""
    crontab = tmp_path / "crontab"
    crontab.write_text(CRONTAB)
    since = datetime.fromisoformat(ABSENT_SINCE) - timedelta(days=2)
    for name in ("often", "nightly"):
        known = table_of(version, "known_crontabs")
        execute(theirs, f"insert into {known} (identifier, known_since) values ('{name}', '{since.isoformat()}')")
    Original(version).backfill(theirs, crontab, ABSENT_SINCE)
    assert call("migrate", "-c", theirs, "--from-graphile", "graphile_worker", "--yes").code == 0

    async def schedule(store: PostgresStore) -> list[tuple[str, str]]:
        await Scheduler(store, parse_crontab(CRONTAB)).run_once()
        jobs = await store.inspect.list(JobFilter(limit=1000))
        cron = [
            (job.task, json.loads(job.payload_text).get("_cron")) for job in jobs if job.task in ("often", "nightly")
        ]
        return [(task, str(one["ts"])) for task, one in cron]

    ticks = in_store(theirs, schedule, schema="stowhand", pinned=lambda: MOVED)
    assert len(ticks) == len(set(ticks)), "none is made twice"
    often = sorted(ts for task, ts in ticks if task == "often")
    first = datetime.fromisoformat(often[0])
    expected = [first + timedelta(minutes=5) * number for number in range(len(often))]
    assert [datetime.fromisoformat(ts) for ts in often] == expected, "none is lost"
    assert datetime.fromisoformat(often[-1]) == MOVED.replace(minute=0)
    assert len([task for task, _ in ticks if task == "nightly"]) == 2
