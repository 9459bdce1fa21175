"""Workers on a lent store: wake-ups, cancellation and stop, for jobs and for records of a table."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pydantic
import pytest
import trustme

from stowhand.app.app import App
from stowhand.clock import stopwatch
from stowhand.errors import ConfigurationError, LogRefused, StoreUnreachable
from stowhand.events import Events, JobEnded
from stowhand.jobs.conditions import Where
from stowhand.jobs.execution_log import ExecutionLogEntry
from stowhand.jobs.job import Job, NewJob, State
from stowhand.jobs.lease import Unreadable
from stowhand.protocols.attempt import Attempt
from stowhand.protocols.options import WorkerOptions
from stowhand.protocols.store import ClaimRequest
from stowhand.remote import HttpOptions, HttpStore
from stowhand.remote.server.lender import ServerOptions, running
from stowhand.remote.wire import Verb
from stowhand.retry import wait
from stowhand.table import TableOptions, TableStore
from stowhand.testing import MemoryStore
from stowhand.worker.worker import Worker
from tests.conftest import Run
from tests.remote.server.tokens import make_token
from tests.support.http_proxy import Fault, HttpProxy
from tests.support.jobs_table import jobs_table
from tests.support.memory_rows import raw_of, rows_of
from tests.support.shared_server import SharedServer

OWN = ("path text not null", "size bigint not null")
TABLE = jobs_table("uploads", *OWN, dialect="sqlite", state="text default 'queued'")


@pytest.fixture(scope="module")
def shared_server() -> Iterator[SharedServer]:
    with SharedServer() as shared_server:
        yield shared_server


@pytest.fixture
def uploads(tmp_path: Path) -> Path:
    """A table of an application's own, with three rows."""
    path = tmp_path / "app.db"
    with closing(sqlite3.connect(path)) as file, file:
        file.execute(TABLE)
        file.executemany("INSERT INTO uploads (path, size) VALUES (?, ?)", [("a", 1), ("b", 20), ("c", 3)])
    return path


@asynccontextmanager
async def lent(shared_server: SharedServer, store: Any, **options: Any) -> AsyncIterator[HttpStore]:
    url = await asyncio.to_thread(shared_server.lend, store)
    try:
        async with HttpStore(url, HttpOptions(**options)) as remote:
            yield remote
    finally:
        await asyncio.to_thread(shared_server.withdraw, url)


async def until(reached: Callable[[], object], seconds: float = 25.0) -> None:
    end = stopwatch() + seconds
    while not reached():
        assert stopwatch() < end, "it did not come to that"
        await asyncio.sleep(0.005)


def test_an_idle_worker_is_woken_at_once_with_few_requests_and_stops_during_a_poll(
    shared_server: SharedServer, run: Run
) -> None:
    async def go() -> None:
        store, ended = MemoryStore(), asyncio.Event()

        async def handle(ctx: Attempt[Job], job: Job) -> None:
            ended.set()

        async with lent(shared_server, store) as remote:
            worker = Worker(remote, handle, WorkerOptions(poll_interval=60.0))
            running = asyncio.create_task(worker.run())
            await until(lambda: remote.is_listening)
            before = -1
            while before != len(shared_server.seen):  # what it asks before its poll
                before = len(shared_server.seen)
                await asyncio.sleep(0.1)
            await asyncio.sleep(0.5)
            assert len(shared_server.seen) - before <= 1
            await store.jobs.enqueue(NewJob(task="t"))
            await ended.wait()
            began = stopwatch()
            worker.stop()
            await running
            assert stopwatch() - began < 15, "it waited for its poll"
            assert (await store.inspect.counts())[State.COMPLETED] == 1
            assert len(remote._proofs) == 0

    run(go())


def test_a_cancellation_in_the_store_reaches_a_remote_handler(shared_server: SharedServer, run: Run) -> None:
    async def go() -> None:
        store, began = MemoryStore(), asyncio.Event()

        async def handle(ctx: Attempt[Job], job: Job) -> None:
            began.set()
            await asyncio.Event().wait()

        async with lent(shared_server, store) as remote:
            worker = Worker(remote, handle, WorkerOptions(lease=30.0, heartbeat_interval=0.2, once=True))
            job = await store.jobs.enqueue(NewJob(task="t"))
            running = asyncio.create_task(worker.run())
            await began.wait()
            await store.admin.cancel(job.id)
            await running
            result = await store.jobs.get(job.id)
            assert result is not None
            assert result.state is State.CANCELED

    run(go())


def test_progress_of_a_remote_handler_is_recorded_with_the_job(shared_server: SharedServer, run: Run) -> None:
    async def go() -> None:
        store, seen = MemoryStore(), asyncio.Event()

        async def handle(ctx: Attempt[Job], job: Job) -> None:
            ctx.progress(0.4, "page 40 of 100")
            await seen.wait()

        async with lent(shared_server, store) as remote:
            worker = Worker(remote, handle, WorkerOptions(once=True))
            await store.jobs.enqueue(NewJob(task="t"))
            running = asyncio.create_task(worker.run())
            await until(lambda: [row.progress for row in rows_of(store)] == [0.4], 60.0)
            assert [row.progress_text for row in rows_of(store)] == ["page 40 of 100"]
            seen.set()
            await running
            assert [(row.state, row.progress) for row in rows_of(store)] == [(State.COMPLETED, None)]

    run(go())


def test_a_remote_worker_declares_the_queues_of_its_tasks(shared_server: SharedServer, run: Run) -> None:
    store = MemoryStore()
    url = shared_server.lend(store)
    app = App(url)

    @app.task(queue="mail")
    async def send() -> None: ...

    async def go() -> None:
        async with app.run_in_background():
            await until(lambda: raw_of(store).execute("SELECT 1 FROM stowhand_task_queues").fetchone())
        await app.close()
        assert (await store.jobs.enqueue(NewJob(task="send"))).queue == "mail"

    run(go())
    shared_server.withdraw(url)


@dataclass
class Upload:
    id: int
    path: str
    size: int
    queued_at: datetime


class StructUpload(msgspec.Struct):
    id: int
    path: str


class ModelUpload(pydantic.BaseModel):
    id: int
    path: str
    queued_at: datetime


def options(**given: Any) -> TableOptions[Any]:
    return TableOptions(name="uploads", table_name="uploads", **given)


@pytest.mark.parametrize("record", [None, Upload, StructUpload, ModelUpload], ids=str)
def test_records_of_a_lent_table_are_of_the_type_that_the_worker_names(
    shared_server: SharedServer, run: Run, uploads: Path, record: type[Any] | None
) -> None:
    async def go() -> None:
        async with lent(shared_server, TableStore(f"sqlite:///{uploads}", options()), record=record) as remote:
            small = (Where("size", "<", 10),)
            request = ClaimRequest(worker="w", token=TOKEN, limit=9, lease=30.0, conditions=small)
            claims = await remote.claim(request)
            assert [claim.lease.job_id for claim in claims] == [1, 3]
            first = claims[0].record
            if record is None:
                assert (first["path"], first["size"]) == ("a", 1)
            else:
                assert isinstance(first, record)
                assert (first.id, first.path) == (1, "a")
            if isinstance(first, Upload | ModelUpload):
                assert isinstance(first.queued_at, datetime)

    run(go())


TOKEN = "11111111-1111-4111-8111-111111111111"


def test_a_record_that_cannot_be_read_here_fails_alone(shared_server: SharedServer, run: Run, uploads: Path) -> None:
    class Odd(msgspec.Struct):
        id: int
        path: int

    async def go() -> None:
        async with lent(shared_server, TableStore(f"sqlite:///{uploads}", options()), record=Odd) as remote:
            claims = await remote.claim(ClaimRequest(worker="w", token=TOKEN, limit=9, lease=30.0))
            assert all(isinstance(claim.record, Unreadable) and "path" in claim.record.error for claim in claims)
            assert len(claims) == 3

    run(go())


def test_a_worker_keeps_the_terms_of_a_lent_table_and_writes_its_logs(
    shared_server: SharedServer, run: Run, uploads: Path
) -> None:
    refused: list[LogRefused] = []

    async def handle(ctx: Attempt[Any], record: Any) -> None:
        entry = ExecutionLogEntry(key="step", command=("make", record["path"]), start_time=datetime.now(UTC))
        number = await ctx.store.add_execution_log_entry(entry)
        done = msgspec.structs.replace(entry, exit_code=0, out="x" * 70_000, duration_ms=5)
        await ctx.store.update_execution_log_entry(number, done)
        try:
            await ctx.store.update_execution_log_entry(number + 1, done)
        except LogRefused as error:
            refused.append(error)

    async def go() -> None:
        table = TableStore(f"sqlite:///{uploads}", options(stalled_max_age=12, max_num_retries=1, retry_after=7))
        ended: list[JobEnded] = []
        async with lent(shared_server, table) as remote:
            assert remote.terms is not None
            assert remote.terms.backoff is not None
            assert (remote.terms.lease, wait(remote.terms.backoff, 1, None), remote.terms.polls) == (12, 7, True)
            events = Events()
            events.on(JobEnded, ended.append)
            worker = Worker(remote, handle, WorkerOptions(once=True, lease=30.0), events=events)
            assert worker.options.lease == 12
            await worker.run()
        assert sorted(event.job_id for event in ended) == [1, 2, 3]

    run(go())
    with closing(sqlite3.connect(uploads)) as file:
        rows = file.execute("SELECT state, num_failures, execution_logs FROM uploads").fetchall()
    assert [row[:2] for row in rows] == [("completed", 0)] * 3
    entries = [msgspec.json.decode(row[2]) for row in rows]
    assert [(one[0]["key"], one[0]["command"], one[0]["exitCode"], one[0]["durationMs"]) for one in entries] == [
        ("step", ["make", path], 0, 5) for path in "abc"
    ]
    assert all(len(one) == 1 and 60_000 < len(one[0]["out"]) < 66_000 for one in entries)
    assert len(refused) == 3


def test_a_worker_made_before_its_store_is_open_keeps_the_terms_of_the_table(
    shared_server: SharedServer, run: Run, uploads: Path
) -> None:
    """At module level, say. With a lease longer than the table's it would beat too rarely, and lose the record."""
    starts: list[int] = []

    async def handle(ctx: Attempt[Any], record: Any) -> None:
        starts.append(record["id"])

    async def go() -> None:
        table = TableStore(f"sqlite:///{uploads}", options(stalled_max_age=6.0, max_num_retries=0))
        url = await asyncio.to_thread(shared_server.lend, table)
        try:
            remote = HttpStore(url)
            worker = Worker(remote, handle, WorkerOptions(once=True))
            assert worker.options.lease == 30
            await worker.run()
            assert worker.options.lease == 6.0
            assert worker.options.every_beat == pytest.approx(2)
            await remote.close()
        finally:
            await asyncio.to_thread(shared_server.withdraw, url)

    run(go())
    assert sorted(starts) == [1, 2, 3]


def test_opening_a_store_waits_for_a_starting_server(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tried: list[str] = []

    async def go() -> None:
        async with running(MemoryStore(), ServerOptions(port=0, tokens=tmp_path / "tokens.json"), Events()) as server:
            remote = HttpStore(server.url)
            ask = remote._http.get

            async def late(verb: Verb[Any, Any]) -> Any:
                tried.append(verb.path)
                if len(tried) < 3:
                    raise StoreUnreachable("connection refused")
                return await ask(verb)

            monkeypatch.setattr(remote._http, "get", late)
            await remote.open()
            await remote.close()
        gone = HttpStore("http://127.0.0.1:9")
        began = stopwatch()
        with pytest.raises(StoreUnreachable):
            await gone.open()
        assert stopwatch() - began > 1
        await gone.close()

    run(go())
    assert len(tried) == 3


def test_a_worker_waits_for_a_server_that_is_away_at_its_start(shared_server: SharedServer, run: Run) -> None:
    async def go() -> None:
        store, done = MemoryStore(), asyncio.Event()

        async def handle(ctx: Attempt[Job], job: Job) -> None:
            done.set()

        url = await asyncio.to_thread(shared_server.lend, store)
        with HttpProxy(url) as proxy:
            async with HttpStore(proxy.url) as remote:
                await store.jobs.enqueue(NewJob(task="t"))
                proxy.next("/v1/due", Fault.DROP)
                proxy.next("/v1/claim", Fault.DROP)
                worker = Worker(remote, handle)
                running = asyncio.create_task(worker.run())
                await done.wait()
                worker.stop()
                await running
        await asyncio.to_thread(shared_server.withdraw, url)

    run(go())


async def _nothing(ctx: Attempt[Any], record: Any) -> None:
    pass


def test_an_app_works_on_a_lent_store_without_scheduling(
    shared_server: SharedServer, run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokens = tmp_path / "tokens.json"
    token = make_token(tokens, "app")
    store, done = MemoryStore(), asyncio.Event()
    url = shared_server.lend(store, tokens)
    app = App(url, token=token)

    @app.task
    async def hello(name: str) -> str:
        done.set()
        return f"Hello, {name}"

    app.cron("* * * * *", "hello", {"name": "Ada"})

    async def go() -> None:
        async with app.run_in_background(poll_interval=60.0):
            job = await hello.enqueue("Ada")
            await done.wait()
            assert job.task == "hello"
        await app.close()

    run(go())
    shared_server.withdraw(url)
    assert "not scheduled, because the store is remote" in caplog.text


def test_tls_is_checked_against_the_certificates_that_are_named(run: Run, tmp_path: Path) -> None:
    authority, other = trustme.CA(), trustme.CA()
    for name, ca in (("ca", authority), ("other", other)):
        ca.cert_pem.write_to_path(str(tmp_path / f"{name}.pem"))
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "server.pem"))

    async def go() -> None:
        store = MemoryStore()
        serving = ServerOptions(port=0, tokens=tmp_path / "tokens.json", tls_cert=tmp_path / "server.pem")
        async with running(store, serving, Events()) as server:
            assert server.url.startswith("https://")
            async with HttpStore(server.url, HttpOptions(ca_file=tmp_path / "ca.pem")) as remote:
                assert (await remote.jobs.enqueue(NewJob(task="t"))).id == 1
            for untrusted in (HttpOptions(ca_file=tmp_path / "other.pem"), HttpOptions()):
                stranger = HttpStore(server.url, untrusted)
                with pytest.raises(StoreUnreachable, match="--ca-file"):
                    await stranger.open()
                await stranger.close()

    run(go())


def test_a_handler_of_a_lent_table_is_refused_progress(shared_server: SharedServer, run: Run, uploads: Path) -> None:
    """Also where the worker's parts were made before it knew what is lent."""

    async def go() -> None:
        lines: list[str] = []

        async def handle(ctx: Attempt[Any], record: Any) -> None:
            with pytest.raises(ConfigurationError) as refused:
                ctx.progress(0.4)
            lines.append(str(refused.value))

        async with lent(shared_server, TableStore(f"sqlite:///{uploads}", options())) as remote:
            unopened = HttpStore(remote.description)
            await Worker(unopened, handle, WorkerOptions(once=True)).run()
            await unopened.close()
        assert len(lines) == 3
        assert all(words.startswith("progress: this store keeps no progress") for words in lines)

    run(go())
