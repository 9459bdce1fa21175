"""An application's life with its App: connecting, an embedded worker, the synchronous face."""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from stowhand.app.app import App, use_worker_store
from stowhand.app.portal import Portal
from stowhand.errors import ConfigurationError, InvalidJob, SchemaMissing, StoreError
from stowhand.jobs import limits
from stowhand.jobs.job import Job, NewJob, State
from stowhand.protocols.operator import PURGE_TASK, Ages
from stowhand.protocols.options import WorkerOptions
from stowhand.protocols.queue_store import ActionResult, JobFilter, QueueStore
from stowhand.protocols.store import StoreOptions
from stowhand.retry import constant, exponential
from stowhand.testing import MemoryStore
from stowhand.worker.resetter import ResetterOptions
from tests.conftest import Run
from tests.support import subprocesses


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/queue.db"


@pytest.fixture
def app(url: str) -> Iterator[App]:
    app = App(url)
    yield app
    app.sync.close()


def add_send(app: App, done: list[Any] | None = None) -> Any:
    @app.task
    async def send(to: str) -> str:
        if done is not None:
            done.append(to)
        return to

    return send


async def settled(store: QueueStore, *ids: int) -> list[Job]:
    """The jobs, once each is over, or waits for another attempt."""
    while True:
        jobs = [job for one in ids if (job := await store.jobs.get(one)) is not None]
        if all(job.state.terminal or job.state is State.ERRORED for job in jobs):
            return jobs
        await asyncio.sleep(0.01)


def test_enqueueing_never_installs_and_says_what_to_do(app: App, run: Run) -> None:
    send = add_send(app)
    for _ in range(2):
        with pytest.raises(SchemaMissing):
            run(lambda: send.enqueue("x"))


def test_each_event_loop_has_connections_of_its_own(app: App, run: Run) -> None:
    send = add_send(app)

    async def once() -> tuple[int, QueueStore]:
        async with app:
            store = await app.open()
            assert await app.open() is store
            return (await send.enqueue("x")).id, store

    app.sync.install()
    first, second = run(once()), run(once())
    assert first[1] is not second[1]
    assert first[0] != second[0]


def test_a_worker_in_the_background_works_leaves_signals_alone_and_stops_with_the_block(app: App, run: Run) -> None:
    done: list[str] = []
    send = add_send(app, done)

    def handlers() -> list[object]:
        return [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]

    async def scenario() -> None:
        before = handlers()
        async with app.run_in_background(concurrency=2, lease=timedelta(seconds=9)) as worker:
            assert worker.options.lease == 9.0
            assert worker.options.tasks == ("send", PURGE_TASK)
            job = await send.enqueue("x")
            [ended] = await settled(await app.open(), job.id)
            assert (ended.state, ended.result_text, done) == (State.COMPLETED, '"x"', ["x"])
            assert handlers() == before
        assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        await app.close()

    run(scenario())


def test_bad_rows_fail_alone_with_a_readable_reason(app: App, url: str, run: Run) -> None:
    done: list[str] = []
    send = add_send(app, done)
    bad = [
        '{"to":1e5000}',
        '{"to":',
        '{"to":"\\u0000"}',
        '{"to":7}',
        "[]",
        '{"to":"x","cc":"y"}',
        "[" * 200 + "]" * 200,
    ]

    app.sync.install()

    async def scenario() -> None:
        async with app:
            store = await app.open()
            ids = [(await send.enqueue(f"good {number}")).id for number in range(len(bad) + 1)]
            with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
                for one, payload in zip(ids, bad, strict=False):
                    connection.execute(f"update {live_table(connection)} set payload = ? where id = ?", (payload, one))
                connection.commit()
            async with app.run_in_background(concurrency=3):
                jobs = await settled(store, *ids)
        *failed, good = jobs
        assert good.state is State.COMPLETED
        assert done == [f"good {len(bad)}"]
        for job, payload in zip(failed, bad, strict=True):
            mismatched = payload in ('{"to":7}', "[]", '{"to":"x","cc":"y"}')  # another version may take these
            assert (job.state, job.attempts) == (State.ERRORED if mismatched else State.FAILED, 1), payload
            assert (job.last_error or "").startswith("payload of task 'send': "), payload
            assert "Traceback" not in (job.last_error or "")

    run(scenario())


def live_table(connection: sqlite3.Connection) -> str:
    tables = [name for (name,) in connection.execute("select name from sqlite_master where type = 'table'")]
    with_payload = [
        table
        for table in tables
        if {"payload", "run_at"} <= {column[1] for column in connection.execute(f"pragma table_info({table})")}
    ]
    live: str = min(with_payload, key=lambda name: ("history" in name, name))
    return live


def test_a_worker_that_ends_by_itself_is_reported_at_once_and_raised_at_the_end(run: Run) -> None:
    class Broken(MemoryStore):
        async def claim(self, request: Any) -> Any:
            raise KeyError("a mistake of ours")

    app = App(store=Broken())
    add_send(app)
    reported: list[dict[str, Any]] = []
    events = asyncio.Event()

    async def scenario() -> None:
        def on_error(_: object, context: dict[str, Any]) -> None:
            reported.append(context)
            events.set()

        asyncio.get_running_loop().set_exception_handler(on_error)
        async with app.run_in_background():
            await events.wait()

    with pytest.raises(BaseException) as caught:  # noqa: PT011 - a group or the error itself, as the worker has it
        run(scenario())
    assert "a mistake of ours" in repr(caught.value)
    assert "embedded worker failed" in reported[0]["message"]


def test_a_worker_needs_a_connection_and_a_task(run: Run) -> None:
    async def scenario() -> None:
        app = App(store=MemoryStore())
        with pytest.raises(ConfigurationError, match="not connected on this event loop; use 'async with app:'"):
            app.worker()
        async with app:
            with pytest.raises(ConfigurationError, match="no task is declared; name the modules"):
                app.worker()
            add_send(app)
            with pytest.raises(ConfigurationError, match="worker: no option 'concurency'; did you mean 'concurrency'"):
                app.worker(concurency=3)  # type: ignore[call-arg]
            assert app.worker(tasks=["send"]).options.tasks == ("send",)

    run(scenario())


def test_a_url_that_cannot_be_is_the_apps_and_no_options_mistake(run: Run) -> None:
    with pytest.raises(ConfigurationError, match=r"^App: There is no store for mysql://"):
        run(App("mysql://h/d").open())


def test_contradictory_and_unknown_options_are_refused_when_the_app_is_made() -> None:
    with pytest.raises(ConfigurationError, match="store excludes a URL"):
        App("sqlite:///x.db", store=MemoryStore())
    with pytest.raises(ConfigurationError, match="App: no option 'shema'; did you mean 'schema'"):
        App(shema="x")  # type: ignore[call-arg]


def test_without_a_url_the_settings_say_where(url: str, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.setenv("STOWHAND_CONNECTION", url)
    app = App()

    async def scenario() -> str:
        async with app:
            return (await app.open()).description

    with pytest.raises(SchemaMissing):
        run(scenario())
    app.sync.install()
    assert "queue.db" in run(scenario())
    app.sync.close()


def test_an_app_without_a_url_adopts_its_workers_store_and_one_with_a_url_keeps_its_own(url: str, run: Run) -> None:
    nameless, named = App(), App(url)

    async def where(app: App) -> str:
        use_worker_store(app, url.replace("queue.db", "workers.db"), StoreOptions())
        try:
            return (await app.open(install=True)).description
        finally:
            await app.close()

    assert "workers.db" in run(where(nameless))
    assert "queue.db" in run(where(named))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"url": "sqlite:///:memory:"}, "is memory://"),
        ({"url": ":memory:"}, "is memory://"),
        ({"url": "memory:"}, "is memory://"),
        ({"url": "memory://", "read_only": True}, "read_only: a store in memory"),
        ({"url": MemoryStore()}, r"write App\(store=…\)"),
        ({"url": Path("jobs.db")}, "App\\('sqlite:///jobs.db'\\)"),
        ({"url": 5}, "got an int as the URL"),
        ({"url": "postgresql+asyncpg:///shop"}, r"leave out '\+asyncpg', as in postgresql://"),
        ({"url": "sqlite:///a.db", "history": True}, "history: got a bool"),
        ({"url": "sqlite:///a.db", "failed_retention": False}, "failed_retention: got a bool"),
        ({"url": "sqlite:///a.db", "pool_size": True}, "pool_size: got a bool"),
        ({"url": "sqlite:///a.db", "prepared_statements": 1}, "prepared_statements: got an int"),
        ({"url": "sqlite:///a.db", "schema": None}, "schema: got a NoneType"),
        ({"url": "sqlite:///a.db", "max_attempts": 0}, "max_attempts: got 0"),
        ({"url": "sqlite:///a.db", "synchronous": "OFF"}, "must be one of FULL, NORMAL"),
        ({"url": "sqlite:///a.db", "preset": "sevice"}, "preset: got 'sevice', must be one of default, service"),
        ({"store": "sqlite:///a.db"}, "store= takes a store object, not a URL"),
        ({"store": MemoryStore}, "store=MemoryStore is not a store of jobs"),
        ({"include": "shop"}, "use a list"),
        ({"include": ["shop/tasks.py"]}, "write a module"),
    ],
)
def test_invalid_arguments_of_an_app_are_refused_at_once_with_advice(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        App(**arguments)


def test_a_store_in_memory_is_one_for_all_loops_and_its_jobs_are_worked_off(run: Run) -> None:
    app = App("memory://")
    done: list[str] = []
    send = add_send(app, done)
    app.sync.enqueue(send, "from a script")

    async def scenario() -> None:
        async with app.run_in_background():
            job = await send.enqueue("from a loop")
            await settled(await app.open(), job.id)

    run(scenario())
    app.sync.close()
    assert done == ["from a script", "from a loop"]


def test_a_job_made_by_hand_must_suit_the_task_that_is_declared_here(app: App, run: Run) -> None:
    add_send(app)
    app.sync.install()
    wrong = NewJob(task="send", payload='{"to":7}')
    calls: list[Any] = [
        lambda: app.enqueue(wrong),
        lambda: app.add_jobs([NewJob(task="elsewhere"), wrong]),
        lambda: app.enqueue_many([NewJob(task="elsewhere"), wrong]),
    ]

    async def scenario() -> None:
        for call in calls:
            with pytest.raises(InvalidJob, match="payload of task 'send': argument 'to'"):
                await call()
        await app.enqueue(NewJob(task="elsewhere", payload='{"to":7}'))
        assert sum((await (await app.open()).inspect.counts()).values()) == 1
        await app.close()

    run(scenario())


@pytest.mark.parametrize(
    "wait",
    [
        lambda: WorkerOptions(lease=True),
        lambda: exponential(base=True),
        lambda: constant(True),
        lambda: limits.check(NewJob(task="x", delay=True)),
        lambda: ResetterOptions(interval=True),
    ],
)
def test_a_bool_is_not_a_duration(wait: Any) -> None:
    with pytest.raises((ConfigurationError, InvalidJob), match="bool"):
        wait()


# -- the synchronous face ------------------------------------------------------------------------


def test_scripts_enqueue_without_an_event_loop(app: App, run: Run) -> None:
    send = add_send(app)
    app.sync.install()
    job = app.sync.enqueue(send.options(serial="q"), "x")
    assert (job.payload, job.serial) == ({"to": "x"}, "q")
    assert app.sync.add_job("other", [1], key="k").key == "k"
    assert len(set(app.sync.enqueue_many(send.new_job(str(number)) for number in range(1_234)))) == 1_234
    with pytest.raises(InvalidJob, match="missing argument 'to'"):
        app.sync.enqueue(send)


def portals() -> set[threading.Thread]:
    """The threads of synchronous faces, also of other tests' apps."""
    return {thread for thread in threading.enumerate() if thread.name == "stowhand sync"}


def test_many_threads_share_one_portal(app: App) -> None:
    others = portals()
    send = add_send(app)
    app.sync.install()
    with ThreadPoolExecutor(8) as threads:
        ids = list(threads.map(lambda number: app.sync.enqueue(send, str(number)).id, range(40)))
    assert len(set(ids)) == 40
    assert len(portals() - others) == 1


def test_app_sync_refuses_objects_that_are_not_tasks(app: App) -> None:
    face: Any = app.sync
    wrong: list[tuple[Any, ...]] = [
        (face.enqueue, "greet"),
        (face.enqueue_in, object(), print),
        (face.enqueue_and_wait, 3),
    ]
    for call, *given in wrong:
        with pytest.raises(InvalidJob, match=r"^enqueue\w*\(.*task, …\): (an? \w+|'greet') is not a task; .*add_job\("):
            call(*given)


def test_closing_app_sync_cancels_its_running_calls() -> None:
    ended: list[str] = []

    async def go_on() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("in order")

    async def begin() -> asyncio.Task[None]:
        task = asyncio.create_task(go_on())
        await asyncio.sleep(0)
        return task

    async def farewell() -> None:
        ended.append("farewell")

    portal = Portal(farewell)
    task = portal.run(begin, "")
    portal.close()
    assert task.cancelled()
    assert ended == ["farewell", "in order"]


def test_the_synchronous_face_may_be_closed_twice_and_used_again(app: App) -> None:
    others = portals()
    send = add_send(app)
    app.sync.install()
    assert app.sync.enqueue(send, "x").id > 0
    app.sync.close()
    app.sync.close()
    assert portals() <= others
    assert app.sync.enqueue(send, "y").id > 1


def test_a_generator_is_iterated_in_the_calling_thread_and_its_error_writes_nothing(app: App) -> None:
    send = add_send(app)
    app.sync.install()
    seen: set[str] = set()

    def jobs() -> Iterator[NewJob]:
        for number in range(700):
            seen.add(threading.current_thread().name)
            yield send.new_job(str(number))
        raise ZeroDivisionError("the query failed")

    with pytest.raises(ZeroDivisionError, match="the query failed"):
        app.sync.enqueue_many(jobs())
    assert seen == {threading.current_thread().name}
    assert sum(app.sync.counts().values()) == 0


def test_an_invalid_job_ends_a_generator_that_would_go_on_for_ever(app: App) -> None:
    app.sync.install()

    def endless() -> Iterator[NewJob]:
        number = 0
        while True:
            number += 1
            yield NewJob(task="x" * (129 if number == 1_000 else 3))

    with pytest.raises(InvalidJob, match="job 1000 of the batch: task: 129 characters"):
        app.sync.enqueue_many(endless())


def test_what_cannot_be_iterated_is_refused_and_leaves_nothing_behind(app: App) -> None:
    app.sync.install()
    with pytest.raises(TypeError, match="not iterable"):
        app.sync.enqueue_many(7)  # type: ignore[arg-type]
    assert app.sync._portal.run(tasks_of_the_loop, "") == 1
    app.sync.close()


async def tasks_of_the_loop() -> int:
    return len(asyncio.all_tasks())


def test_the_synchronous_face_asks_and_acts_as_the_store_does(app: App) -> None:
    send = add_send(app)
    app.sync.install()
    job = app.sync.enqueue(send, "x")
    assert app.sync.get(job.id) == job.job
    assert app.sync.list() == app.sync.list(JobFilter(task="send")) == [job.job]
    explained = app.sync.explain(job.id)
    assert explained is not None
    assert explained.job.id == job.id
    assert app.sync.cancel(job.id).result is ActionResult.DONE
    assert app.sync.counts()[State.CANCELED] == 1
    assert app.sync.retry(job.id).result is ActionResult.DONE
    assert [one.state for one in app.sync.permanently_fail_jobs([job.id], "no")] == [State.FAILED]
    assert app.sync.purge(Ages(failed=0.0), dry_run=True).failed == 1
    assert app.sync.get(999) is None


PROGRAM = """
import sys
from stowhand import App

app = App(sys.argv[1])

@app.task
def send(to: str) -> None: ...

app.sync.install()
app.sync.enqueue(send, "x")
"""


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_a_program_that_closes_nothing_ends_without_a_word(
    url: str, request: pytest.FixtureRequest, store: str
) -> None:
    where = url if store == "sqlite" else request.getfixturevalue("postgres_url")
    words = [subprocesses.PYTHON, "-W", "always::ResourceWarning", "-c", PROGRAM, where]
    ended = subprocesses.run(words, capture_output=True, text=True, check=True, timeout=60)
    assert (ended.stdout, ended.stderr) == ("", "")


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_after_a_fork_the_child_starts_a_portal_of_its_own(app: App) -> None:
    send = add_send(app)
    app.sync.install()
    app.sync.enqueue(send, "parent")
    child = multiprocessing.get_context("fork").Process(target=lambda: app.sync.enqueue(send, "child"), daemon=True)
    child.start()
    child.join(30)
    assert child.exitcode == 0
    assert sum(app.sync.counts().values()) == 2


# -- inside the caller's transaction -------------------------------------------------------------


def test_a_job_enqueued_in_a_transaction_commits_and_rolls_back_with_it(app: App, url: str) -> None:
    send = add_send(app)
    app.sync.install()
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
        connection.execute("begin immediate")
        job = send.options(key="k").enqueue_in(connection, "x")
        assert (job.payload, job.key) == ({"to": "x"}, "k")
        connection.rollback()
        assert sum(app.sync.counts().values()) == 0
        with pytest.raises(InvalidJob, match="argument 'to'"):
            send.enqueue_in(connection, 3)
        connection.execute("begin immediate")
        send.enqueue_in(connection, "y")
        connection.commit()
    assert app.sync.counts()[State.QUEUED] == 1


def test_an_app_that_only_reads_opens_its_store_read_only(url: str, run: Run) -> None:
    async def enqueue() -> None:
        app = App(url)
        await app.open(install=True)
        await app.close()
        async with App(url, read_only=True) as app:
            with pytest.raises(StoreError, match="readonly"):
                await app.enqueue(NewJob(task="t"))

    run(enqueue())
