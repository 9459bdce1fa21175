"""Type checkers complain about wrong arguments, and about nothing else: they are run on programs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.checkers import OF_PYRIGHT, expected, for_pyright, under_mypy, under_pyright

PROGRAM = """
from __future__ import annotations
import sqlite3
from typing import Any
import psycopg
from datetime import timedelta
from stowhand import App, Context, JobHandle, as_completed, gather
from stowhand.tasks.sync_job_handle import SyncJobHandle
from collections.abc import Sequence
from stowhand.jobs.job import Job, State
from stowhand.protocols.queue_store import JobFilter, Reschedule

app = App("sqlite:///queue.db", history=timedelta(days=1))

class Engine:
    # As SQLAlchemy's: there is nothing to commit.
    def dispose(self) -> None: ...

@app.task
async def paid(connection: psycopg.AsyncConnection[Any], other: psycopg.Connection[Any]) -> None:
    one: JobHandle[str] = await send.enqueue_in(connection, "x")
    two: JobHandle[str] = send.enqueue_in(other, "x")

@app.task
async def send(to: str, copies: int = 1) -> str:
    return to

@app.task(serial="slow", queue="bulk", timeout=timedelta(minutes=5))
def resize(context: Context, path: str, *, width: int) -> None: ...

async def right(connection: sqlite3.Connection) -> None:
    job: JobHandle[str] = await send.enqueue("x", copies=2)
    record: Job = job.job
    said: str = await job.result(timeout="5s")
    state: State = (await job.wait()).state
    await (await resize.enqueue("p", width=3)).result()
    at_once: str = await send.enqueue_and_wait("x", copies=2)
    in_time: str = await send.options(priority=1).enqueue_and_wait("x", timeout=5)
    elsewhere: str = await (await app.job(1, send)).result()
    every: list[str] = await gather([job, job])
    first: list[str] = [await one.result() async for one in as_completed([job])]
    waited: str = app.sync.enqueue(send, "x").result()
    plainly: str = app.sync.enqueue_and_wait(send, "x", timeout=1)
    await send.options(serial="q", queue="mail", delay=timedelta(hours=1), key="k", key_mode="replace").enqueue("x")
    await resize.enqueue("photo.png", width=3)
    inside: JobHandle[str] = send.enqueue_in(connection, "x")
    many: list[JobHandle[str]] = await send.enqueue_many([{"to": "x"}])
    errors: list[str | Exception] = await gather(many, return_exceptions=True)
    ids: list[int] = await app.enqueue_many(send.new_job(str(n)) for n in range(3))
    again: SyncJobHandle[str] = app.sync.enqueue(send, "x", copies=1)
    later: SyncJobHandle[None] = app.sync.enqueue(resize.options(delay=3), "x", width=1)
    direct: str = await send("x")
    app.cron("0 4 * * *", send, {"to": "x"})
    app.cron("0 4 * * *", resize, {"path": "x", "width": 3}, queue="mail", serial="s")
    app.worker(queues=["mail"], exclude_queues=("bulk",), exclude_tasks=["send"])
    Reschedule(queue="bulk")
    await send.options(delay="5m").enqueue("x")
    found: Job | None = app.sync.get(1)
    counts: dict[State, int] = app.sync.counts()
    newest: Sequence[Job] = app.sync.list()
    failed: Sequence[Job] = app.sync.list(JobFilter(states=(State.FAILED,)))
    awaited: Sequence[Job] = await (await app.open()).inspect.list()

async def wrong(context: Context) -> None:
    await send.enqueue()  # E call-arg
    await send.enqueue(1)  # E arg-type
    await send.enqueue("x", 1, 2)  # E call-arg
    await send.enqueue("x", cc="y")  # E call-arg
    await resize.enqueue(context, "x", width=1)  # E misc arg-type
    await resize.enqueue("x")  # E call-arg
    resize("x", width=1)  # E arg-type call-arg
    send.options(seral="x")  # E call-arg
    send.options(priority="high")  # E typeddict-item arg-type
    send.new_job(3)  # E arg-type
    app.sync.enqueue(send, 3)  # E call-overload
    app.sync.get("one")  # E arg-type
    app.sync.list("failed")  # E arg-type
    app.sync.get(1).id  # E union-attr
    send.enqueue_in(Engine(), "x")  # E call-overload
    app.task(timout=3)  # E call-overload
    app.task(group="heavy")  # E call-overload
    app.worker(groups=["heavy"])  # E call-arg
    app.cron("0 4 * * *", send, work_queue="mail")  # E call-arg
    number: int = await (await send.enqueue("x")).result()  # E assignment
    await send.enqueue_and_wait(3)  # E call-overload
    await send.enqueue_and_wait("x", cc=1)  # E call-overload
    (await send.enqueue("x")).result + 1  # E operator
    app.sync.enqueue_and_wait(send, 3)  # E call-overload
"""


def test_a_checker_complains_about_wrong_arguments_and_about_nothing_else(tmp_path: Path) -> None:
    found, wanted = under_mypy(PROGRAM, tmp_path), expected(PROGRAM)
    assert found.keys() == wanted.keys(), found
    for number, kinds in found.items():
        assert kinds <= wanted[number], found


FACES = for_pyright("""
from __future__ import annotations
import sqlite3
from collections.abc import Sequence
from typing import Any
import psycopg
from stowhand import App, Context, Job, JobHandle, NewJob, State
from stowhand.protocols.operator import QueueChange
from stowhand.protocols.queue_store import Answer
from stowhand.query import JobFilter, Search
from stowhand.tasks.sync_job_handle import SyncJobHandle

app = App("sqlite:///queue.db")

class Engine:
    # As SQLAlchemy's: there is nothing to commit.
    def dispose(self) -> None: ...

@app.task
async def send(to: str, copies: int = 1) -> str:
    return to

@app.task(serial="slow")
def resize(context: Context, path: str, *, width: int) -> None:
    context.enqueue_after(send, "x", copies=2)
    context.enqueue_after(resize.options(delay=3), "x", width=1)
    context.enqueue_after(send.new_job("x"))
    context.enqueue_after(send, 3)  # E call-overload reportCallIssue reportArgumentType
    context.enqueue_after(resize, "x")  # E call-overload reportCallIssue reportArgumentType
    context.enqueue_after("send", "x")  # E call-overload reportCallIssue reportArgumentType

@app.task(cron="0 7 * * mon", serial="reports")
def weekly(days: int = 7) -> None: ...

@app.task(cron=lambda date: date.day == 1)
async def monthly(context: Context) -> None: ...

app.task(cron=5)  # E call-overload reportCallIssue reportArgumentType
app.task(crom="0 7 * * mon")  # E call-overload reportCallIssue
weekly("x")  # E arg-type reportArgumentType

async def right(
    connection: sqlite3.Connection, pg: psycopg.Connection[Any], later: psycopg.AsyncConnection[Any]
) -> None:
    a: JobHandle[str] = await app.enqueue(send, "x", copies=2)
    b: JobHandle[None] = await app.enqueue(resize.options(delay=3), "x", width=1)
    c: JobHandle[Any] = await app.enqueue(send.new_job("x"))
    d: str = await app.enqueue_and_wait(send, "x", copies=2)
    e: str = await app.enqueue_and_wait(send, "x", timeout="5s")
    f: JobHandle[str] = app.enqueue_in(connection, send, "x", copies=2)
    g: JobHandle[str] = app.enqueue_in(pg, send.options(priority=1), to="x")
    h: JobHandle[str] = await app.enqueue_in(later, send, "x")
    i: JobHandle[Any] = app.enqueue_in(connection, NewJob(task="elsewhere"))
    j: JobHandle[Any] = await app.enqueue_in(later, send.new_job("x"))
    k: list[int] = await app.enqueue_many(send.new_job(str(n)) for n in range(3))
    l: Job = await app.add_job("send", {"to": "x"}, priority=1)
    m: Sequence[Job] = await app.add_jobs([send.new_job("x")])
    n: JobHandle[str] = await app.job(1, send)
    o: Job | None = await app.get(1)
    p: Sequence[Job] = await app.list()
    q: Sequence[Job] = await app.list(JobFilter(states=(State.FAILED,)))
    r: dict[State, int] = await app.counts()
    s: Sequence[Job] = (await app.search(Search(task="send"))).jobs
    t: list[Answer] = [await app.retry(1), await app.cancel(1), await app.remove(1)]
    u: QueueChange = await app.pause_queue("mail")
    v: QueueChange = await app.resume_queue("mail")

def right_without_a_loop(connection: sqlite3.Connection) -> None:
    a: SyncJobHandle[str] = app.sync.enqueue(send, "x", copies=2)
    b: SyncJobHandle[None] = app.sync.enqueue(resize.options(delay=3), "x", width=1)
    c: SyncJobHandle[Any] = app.sync.enqueue(send.new_job("x"))
    d: str = app.sync.enqueue_and_wait(send, "x", copies=2)
    e: str = app.sync.enqueue_and_wait(send, "x", timeout="5s")
    f: SyncJobHandle[str] = app.sync.enqueue_in(connection, send, "x", copies=2)
    g: SyncJobHandle[Any] = app.sync.enqueue_in(connection, send.new_job("x"))
    h: SyncJobHandle[str] = send.enqueue_sync("x", copies=2)
    i: SyncJobHandle[None] = resize.options(delay=3).enqueue_sync("x", width=1)
    j: str = send.enqueue_sync("x").result(timeout="5s")
    k: list[int] = app.sync.enqueue_many([send.new_job("x")])
    l: Job = app.sync.add_job("send", {"to": "x"}, priority=1)
    m: Sequence[Job] = app.sync.add_jobs([send.new_job("x")])
    n: SyncJobHandle[str] = app.sync.job(1, send)
    o: Job | None = app.sync.get(1)
    p: Sequence[Job] = app.sync.list()
    q: Sequence[Job] = app.sync.list(JobFilter(states=(State.FAILED,)))
    r: dict[State, int] = app.sync.counts()
    s: Sequence[Job] = app.sync.search(Search(task="send")).jobs
    t: list[Answer] = [app.sync.retry(1), app.sync.cancel(1), app.sync.remove(1)]
    u: QueueChange = app.sync.pause_queue("mail")
    v: QueueChange = app.sync.resume_queue("mail")

async def wrong(connection: sqlite3.Connection) -> None:
    await app.enqueue(send)  # E call-overload reportCallIssue
    await app.enqueue(send, 3)  # E call-overload reportCallIssue reportArgumentType
    await app.enqueue(send, "x", cc="y")  # E call-arg reportCallIssue
    await app.enqueue(resize, "x")  # E call-overload reportCallIssue
    await app.enqueue("send", "x")  # E call-overload reportCallIssue reportArgumentType
    await app.enqueue(send.new_job("x"), "x")  # E call-overload reportCallIssue reportArgumentType
    await app.enqueue_and_wait(send, 3)  # E call-overload reportCallIssue reportArgumentType
    app.enqueue_in(connection, send, 3)  # E call-overload reportCallIssue reportArgumentType
    app.enqueue_in(connection, "send", "x")  # E call-overload reportCallIssue reportArgumentType
    app.enqueue_in(Engine(), send, "x")  # E call-overload reportCallIssue reportArgumentType
    a: int = await (await app.enqueue(send, "x")).result()  # E assignment reportAssignmentType
    b: JobHandle[str] = app.enqueue(send, "x")  # E assignment reportAssignmentType
    c: JobHandle[str] = send.enqueue("x")  # E assignment reportAssignmentType
    d: Job | None = app.get(1)  # E assignment reportAssignmentType
    await app.get("one")  # E arg-type reportArgumentType
    (await app.get(1)).id  # E union-attr reportOptionalMemberAccess
    await app.list("failed")  # E arg-type reportArgumentType
    await app.counts(1)  # E call-arg reportCallIssue
    await app.search("send")  # E arg-type reportArgumentType
    await app.retry()  # E call-arg reportCallIssue
    await app.cancel("one")  # E arg-type reportArgumentType
    await app.remove(1, 2)  # E call-arg reportCallIssue
    await app.pause_queue(3)  # E arg-type reportArgumentType
    await app.resume_queue()  # E call-arg reportCallIssue

def wrong_without_a_loop(connection: sqlite3.Connection, later: psycopg.AsyncConnection[Any]) -> None:
    send.enqueue_sync()  # E call-arg reportCallIssue
    send.enqueue_sync(3)  # E arg-type reportArgumentType
    send.enqueue_sync("x", cc="y")  # E call-arg reportCallIssue
    app.sync.enqueue(send, 3)  # E call-overload reportCallIssue reportArgumentType
    app.sync.enqueue("send", "x")  # E call-overload reportCallIssue reportArgumentType
    app.sync.enqueue_in(connection, send, 3)  # E call-overload reportCallIssue reportArgumentType
    app.sync.enqueue_in(later, send, "x")  # E call-overload reportCallIssue reportArgumentType
    app.sync.enqueue_and_wait(send, 3)  # E call-overload reportCallIssue reportArgumentType
    a: int = send.enqueue_sync("x").result()  # E assignment reportAssignmentType
    app.sync.get("one")  # E arg-type reportArgumentType
    app.sync.list("failed")  # E arg-type reportArgumentType
    app.sync.search("send")  # E arg-type reportArgumentType
    app.sync.cancel("one")  # E arg-type reportArgumentType
    app.sync.remove(1, 2)  # E call-arg reportCallIssue
    app.sync.pause_queue(3)  # E arg-type reportArgumentType
    app.sync.resume_queue()  # E call-arg reportCallIssue
""")


RESULTS = for_pyright("""
from __future__ import annotations
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any
from stowhand import App, Context, Failure, Job
from stowhand.tasks.task import ConfiguredTask, ContextTask, Task
from stowhand.testing import Jobs, MemoryStore

app = App("sqlite:///queue.db")

@app.task
async def count(path: str) -> int:
    return len(path)

@app.task(timeout=5)
async def look(context: Context, path: str) -> list[str]:
    return [path]

@app.task
def weigh(path: str) -> float:
    return 1.5

@app.task(serial="q")
def sort(context: Context, path: str) -> None: ...

class Shelf:
    async def put(self, path: str) -> bool:
        return True

put = app.task(name="put")(Shelf().put)

async def right() -> None:
    a: Task[[str], int, Coroutine[Any, Any, int]] = count
    b: ContextTask[[str], list[str], Coroutine[Any, Any, list[str]]] = look
    c: ConfiguredTask[[str], int] = count.options(delay=3)
    d: ConfiguredTask[[str], list[str]] = look.options(delay=3).options(priority=1)
    e: ConfiguredTask[[str], float] = weigh.options(delay=3)
    f: ConfiguredTask[[str], None] = sort.options(delay=3)
    g: ConfiguredTask[[str], bool] = put.options(delay=3)
    h: int = await count("x")
    l: list[str] = await (await look.enqueue("x")).result(timeout=3)
    m: float = await weigh.enqueue_and_wait("x")
    n: bool = await put.options(delay=3).enqueue_and_wait("x", timeout="5s")
    i: float = weigh("x")
    j: ConfiguredTask[..., object] = look
    k: ConfiguredTask[[str], int | None] = count

async def wrong() -> None:
    a: ConfiguredTask[[str], str] = count.options(delay=3)  # E assignment reportAssignmentType
    b: ConfiguredTask[[str], str] = look.options(delay=3)  # E assignment reportAssignmentType
    c: ConfiguredTask[[str], Coroutine[Any, Any, int]] = count  # E assignment reportAssignmentType
    d: ConfiguredTask[[int], float] = weigh.options(delay=3)  # E arg-type assignment reportAssignmentType
    e: int = count("x")  # E assignment reportAssignmentType
    g: str = await (await look.enqueue("x")).result()  # E assignment reportAssignmentType
    h: str = await weigh.enqueue_and_wait("x")  # E assignment reportAssignmentType
    await weigh.enqueue_and_wait(3)  # E call-overload reportCallIssue reportArgumentType
    f: str = weigh("x")  # E assignment reportAssignmentType

def patience(attempt: int, error: BaseException | None) -> timedelta | float:
    return timedelta(minutes=5) if isinstance(error, OSError) else 1.5

def steady(attempt: int) -> str:
    return "5m"

def worded(attempt: str) -> float:
    return 1.0

def many(attempt: int, error: BaseException | None, third: int) -> float:
    return 1.0

@app.task(retry_on=OSError, give_up_on=(LookupError, FileNotFoundError), backoff=patience)
async def a() -> None: ...

@app.task(retry_on=[OSError], backoff=steady)
async def b() -> None: ...

@app.task(backoff=lambda attempt: 2.0 * attempt)
async def c() -> None: ...

app.task(retry_on="OSError")  # E arg-type reportArgumentType reportCallIssue
app.task(give_up_on=(LookupError, 3))  # E arg-type reportArgumentType reportCallIssue
app.task(backoff=worded)  # E arg-type reportArgumentType reportCallIssue
app.task(backoff=many)  # E arg-type reportArgumentType reportCallIssue

@app.task
async def tell(payload: Failure) -> None: ...

@app.task(unique="arguments", unique_period="1h", on_failure=tell, expires=timedelta(minutes=5))
async def d(to: str) -> None: ...

@app.task(unique=lambda to: to.lower(), unique_period=3600, on_failure="tell", expires="5m")
async def e(to: str) -> None: ...

@app.task(on_failure=tell.options(serial="mail"), expires=None)
async def f(to: str) -> None: ...

app.task(unique="argument")  # E call-overload reportArgumentType
app.task(unique=3)  # E call-overload reportArgumentType
app.task(unique="arguments", unique_period=[])  # E call-overload reportArgumentType
app.task(on_failure=patience)  # E call-overload reportArgumentType
app.task(on_failure=3)  # E call-overload reportArgumentType
app.task(expires=[])  # E call-overload reportArgumentType
d.options(expires=7.5)
d.options(expires=[])  # E arg-type reportArgumentType
d.options(unique="arguments")  # E call-arg reportCallIssue
d.options(unique_period="1h")  # E call-arg reportCallIssue
d.options(on_failure=tell)  # E call-arg reportCallIssue

def in_a_test(jobs: Jobs) -> None:
    job: Job = jobs.assert_enqueued(d, to="x")
    ran: dict[str, int] = jobs.drain(raises=False).counts
    jobs.advance("1h")
    jobs.advance(timedelta(hours=1))
    jobs.advance([])  # E arg-type reportArgumentType
    jobs.assert_enqueued(patience, to="x")  # E arg-type reportArgumentType
    with app.using(MemoryStore()), app.immediate():
        pass
    with app.using("memory://"):  # E arg-type reportArgumentType
        pass
""")


NAMES = for_pyright("""
from __future__ import annotations
import stowhand
import stowhand.table
from stowhand import (
    App, Cancel, Context, Events, Fail, Failure, Job, JobHandle, NewJob, NonRetryable, Retry, Snooze, State,
    StowhandError, Task, Worker, WorkerOptions, __version__, as_completed, exponential, gather, resource, run_all,
)
from stowhand.errors import ConfigurationError, Poison
from stowhand.events import JobEnded
from stowhand.handler import Attempt, Handler
from stowhand.observe import LogListener, WorkerMetrics
from stowhand.outcomes import Complete, Outcome
from stowhand.query import JobFilter, ids_of
from stowhand.remote import HttpOptions, HttpStore
from stowhand.retry import constant
from stowhand.runner import Helpers
from stowhand.stores.api import Store, StoreOptions, open_store
from stowhand.table import Budget, Resetter, TableOptions, TableStore, Where, sql

from stowhand import TableStore as a  # E attr-defined reportAttributeAccessIssue
from stowhand import Poison as b  # E attr-defined reportAttributeAccessIssue
from stowhand.remote import HttpStor as c  # E attr-defined reportAttributeAccessIssue
from stowhand.observe import Trace as d  # E attr-defined reportAttributeAccessIssue

app = App("sqlite:///queue.db")

@app.task
async def send(to: str) -> None: ...

async def right() -> None:
    options: stowhand.table.TableOptions = TableOptions(name="x", table_name="y")
    worker: stowhand.Worker = app.worker()

async def wrong(context: Context, job: JobHandle[None]) -> None:
    send.delay("x")  # E attr-defined reportAttributeAccessIssue
    send.options(priority=1).apply_async("x")  # E attr-defined reportAttributeAccessIssue
    app.send_task("x")  # E attr-defined reportAttributeAccessIssue
    context.retry()  # E attr-defined reportAttributeAccessIssue
    job.get()  # E attr-defined reportAttributeAccessIssue
    stowhand.TableStore  # E attr-defined reportAttributeAccessIssue
""")


OUTCOMES = for_pyright("""
from __future__ import annotations
import sqlite3
import psycopg
from datetime import timedelta
from typing import Any
from stowhand import App, Cancel, Context, Fail, JobHandle, Retry, Snooze
from stowhand.outcomes import Outcome
from stowhand.tasks.sync_job_handle import SyncJobHandle

app = App("sqlite:///queue.db")

@app.task
async def poll(path: str) -> str | Retry:
    if not path:
        raise Retry("not yet", delay="5m")
    return Retry("not yet", delay=timedelta(minutes=5)) if path == "later" else path

@app.task(max_attempts=3)
def weigh(context: Context, path: str) -> float | Snooze | Fail | Cancel:
    if context.attempt > 1:
        raise Snooze("1h")
    return 1.5

@app.task
async def wait(path: str) -> None | Snooze:
    return Snooze(60)

@app.task
async def raises(path: str) -> list[str]:
    raise Cancel("no longer")

@app.task
async def untyped(path: str) -> Any:
    return path

async def right(old: sqlite3.Connection, new: psycopg.AsyncConnection[Any]) -> None:
    a: str = await poll.enqueue_and_wait("x")
    b: str = await poll.options(delay=3).enqueue_and_wait("x", timeout="5s")
    c: JobHandle[str] = await poll.enqueue("x")
    d: str = await c.result()
    e: float = await (await weigh.enqueue("x")).result()
    f: JobHandle[None] = await wait.enqueue("x")
    g: list[str] = await raises.enqueue_and_wait("x")
    h: SyncJobHandle[str] = poll.enqueue_sync("x")
    i: list[JobHandle[float]] = await weigh.enqueue_many([{"path": "x"}])
    j: JobHandle[str] = poll.enqueue_in(old, "x")
    k: JobHandle[str] = await poll.enqueue_in(new, "x")
    l: str = app.sync.enqueue(poll, "x").result()
    m: float = app.sync.enqueue_and_wait(weigh, "x")
    n: float = await app.enqueue_and_wait(weigh.options(priority=1), "x", timeout=3)
    o: JobHandle[float] = await app.enqueue(weigh, "x")
    p: str = await (await app.job(1, poll)).result()
    q: str | Retry = await poll("x")
    r: int = await untyped.enqueue_and_wait("x")
    t: list[str] = await app.gather([c, c])

def right_values(outcome: Outcome) -> float | None:
    delay: float = Snooze("5m").delay
    match outcome:
        case Retry(error, delay=wait):
            return wait
        case Fail(error) | Cancel(error):
            print(error.upper())
    return delay

async def wrong() -> None:
    a: int = await poll.enqueue_and_wait("x")  # E assignment reportAssignmentType
    b: JobHandle[int] = await poll.enqueue("x")  # E assignment reportAssignmentType
    c: str = await poll("x")  # E assignment reportAssignmentType
    d: str = app.sync.enqueue_and_wait(weigh, "x")  # E assignment reportAssignmentType
    await poll.enqueue(3)  # E arg-type reportArgumentType
    await poll.enqueue()  # E call-arg reportCallIssue
    await app.enqueue(weigh, 3)  # E call-overload arg-type reportArgumentType reportCallIssue
    raise Retry("x", after=3)  # E call-arg reportCallIssue

def wrong_values(outcome: Retry) -> None:
    Retry("x", delay=[])  # E arg-type reportArgumentType
    Snooze()  # E call-arg reportCallIssue
    Snooze(None)  # E arg-type reportArgumentType
    Cancel(delay=3)  # E call-arg reportCallIssue
    number: int = outcome.delay  # E assignment reportAssignmentType
    outcome.delay = 3  # E misc reportAttributeAccessIssue
    raise outcome.error  # E misc reportGeneralTypeIssues
""")


@pytest.mark.parametrize("complaints", [under_mypy, pytest.param(under_pyright, marks=OF_PYRIGHT)])
def test_outcomes_are_no_part_of_the_type_of_a_result(
    complaints: Callable[[str, Path], dict[int, set[str]]], tmp_path: Path
) -> None:
    found, wanted = complaints(OUTCOMES, tmp_path), expected(OUTCOMES)
    assert found.keys() == wanted.keys(), found
    for number, kinds in found.items():
        assert kinds <= wanted[number], found


@pytest.mark.parametrize("complaints", [under_mypy, pytest.param(under_pyright, marks=OF_PYRIGHT)])
def test_a_task_keeps_what_awaiting_its_function_gives_and_knows_errors_and_backoffs(
    complaints: Callable[[str, Path], dict[int, set[str]]], tmp_path: Path
) -> None:
    found, wanted = complaints(RESULTS, tmp_path), expected(RESULTS)
    assert found.keys() == wanted.keys(), found
    for number, kinds in found.items():
        assert kinds <= wanted[number], found


@pytest.mark.parametrize("complaints", [under_mypy, pytest.param(under_pyright, marks=OF_PYRIGHT)])
def test_the_calls_of_both_faces_are_checked_against_the_task(
    complaints: Callable[[str, Path], dict[int, set[str]]], tmp_path: Path
) -> None:
    found, wanted = complaints(FACES, tmp_path), expected(FACES)
    assert found.keys() == wanted.keys(), found
    for number, kinds in found.items():
        assert kinds <= wanted[number], found


@pytest.mark.parametrize("complaints", [under_mypy, pytest.param(under_pyright, marks=OF_PYRIGHT)])
def test_a_public_name_has_one_import_path_and_no_other_attributes(
    complaints: Callable[[str, Path], dict[int, set[str]]], tmp_path: Path
) -> None:
    found, wanted = complaints(NAMES, tmp_path), expected(NAMES)
    assert found.keys() == wanted.keys(), found
    for number, kinds in found.items():
        assert kinds <= wanted[number], found
