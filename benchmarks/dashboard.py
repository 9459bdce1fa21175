"""Cost of the dashboard's pages on a full PostgreSQL server: python benchmarks/dashboard.py --help

One durable server with a million jobs that wait, a hundred thousand that have failed, and ten million that are over.
Every question that a page asks, then every page (``Board.answer``, nothing cached), is asked again and again:
milliseconds, half of them and 95 of 100, and the bytes of the page. ``--viewers``: a worker drains while so many pages
are open, each in a browser of its own, in turn with drains while none is (``--only drain``: this alone, and the server
is not filled). Everything is made here, and nothing is left behind.
"""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from pathlib import Path

import click
import psutil
import psycopg

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]
sys.path = [place for place in sys.path if Path(place) != Path(__file__).parent]  # its peers/ would hide this package

from benchmarks.drain import TASKS as DRAINED  # noqa: E402
from benchmarks.drain import _spent as spent  # noqa: E402
from benchmarks.drain import drain  # noqa: E402
from benchmarks.sites import PostgresSite, install  # noqa: E402
from stowhand.clock import wall_clock  # noqa: E402
from stowhand.errors import StoreTooSlow  # noqa: E402
from stowhand.jobs.job import State  # noqa: E402
from stowhand.protocols.queue_store import QueueStore  # noqa: E402
from stowhand.protocols.search import Search  # noqa: E402
from stowhand.protocols.store import StoreOptions  # noqa: E402
from stowhand.stores.url import open_store  # noqa: E402
from stowhand.web.access import VISIT_COOKIE  # noqa: E402
from stowhand.web.board import Board  # noqa: E402
from stowhand.web.reader import Reader  # noqa: E402
from stowhand.web.request import Request, Right, Visitor  # noqa: E402
from tests.support.binaries import find_postgres  # noqa: E402
from tests.support.servers import PostgresServer  # noqa: E402

MAX_PAGE_MILLISECONDS, MAX_PAGE_BYTES = 100.0, 60_000
"""Milliseconds that a page may take, 95 of 100 times; bytes that it may have."""
ROWS_PER_INSERT = 250_000
TASKS, QUEUES, WORKERS, HELD = 60, 200, 50, 40
EVERYTHING = Visitor("", frozenset(Right))
Question = Callable[[QueueStore], Awaitable[object]]

INSERT_LIVE_JOBS = """
insert into stowhand.live (task, payload, serial, priority, run_at, state, attempts, last_error, finished_at,
  created_at, key, flags, last_worker)
select 'app.tasks.task_' || floor(sqrt(g %% (%(tasks)s * %(tasks)s)))::int,
  json_build_object('number', g, 'to', 'someone-' || g || '@mail.example'), q.name, g %% 3, now() - g * interval '1 ms',
  case when f.failed then 'failed' when g %% 50 = 0 then 'errored' else 'queued' end,
  case when f.failed then 25 when g %% 50 = 0 then 1 else 0 end,
  case when f.failed or g %% 50 = 0 then
    'TimeoutError: no answer from host-' || g %% 97 || ' within 30 s'
    || repeat(e'\\n  File "app/tasks.py", line 7', 20) end,
  case when f.failed then now() - g * interval '20 ms' end, now() - g * interval '1 ms',
  case when g %% 10 = 0 then 'order:' || g end, case when g %% 100 = 0 then array['slow', 'gpu'] end,
  'worker-somewhere-12345-0123456789ab.' || g %% 8
from generate_series(%(from)s::int, %(to)s::int) as g
  cross join lateral (select case when g %% 4 = 0 then 'queue_' || g %% (2 * %(serials)s) end) as q(name)
  cross join lateral (select g > %(waiting)s) as f(failed)
"""
START_JOBS = """
update stowhand.live l set state = 'processing', token = gen_random_uuid(), attempts = attempts + 1,
  worker = 'worker-somewhere-12345-0123456789ab.' || l.id %% %(workers)s, lease_until = now() + interval '1 day',
  started_at = now() - l.id * interval '1 ms', serial = null
where l.id in (select id from stowhand.live where state = 'queued' and key is null order by id limit %(running)s)
"""
INSERT_ATTEMPTS = """
insert into stowhand.tries (job_id, place, round, number, worker, started_at, ended_at, outcome, error_class, error)
select l.id, n, 1, n, 'worker-somewhere-12345-0123456789ab', l.finished_at, l.finished_at,
  'error',
  (array['TimeoutError', 'app.errors.NoSuchOrder', 'ValueError'])[1 + l.id %% 3], left(l.last_error, 300)
from stowhand.live l cross join generate_series(1, 3) n where l.state = 'failed'
"""
INSERT_HISTORY = """
insert into stowhand.history (id, task, payload, serial, priority, run_at, state, attempts, max_attempts, resets,
  revision, settled_token, epoch, worker, started_at, finished_at, created_at, updated_at, cancel_requested)
overriding system value
select g, 'app.tasks.task_' || floor(sqrt(g %% (%(tasks)s * %(tasks)s)))::int,
  json_build_object('number', g, 'to', 'someone-' || g || '@mail.example'),
  case when g %% 4 = 0 then 'queue_' || g %% (2 * %(serials)s) end, g %% 3, f.at,
  case when g %% 1000 = 0 then 'canceled' else 'completed' end, 1, 25, 0, 0, gen_random_uuid(), 1,
  'worker-somewhere-12345-0123456789ab.' || g %% 8, f.at, f.at, f.at, f.at, false
from generate_series(%(from)s::int, %(to)s::int) as g cross join lateral (
  select now() - interval '10 days' * (%(finished)s::int - g) / %(finished)s::int) as f(at)
"""
INSERT_WORKERS = """
insert into stowhand.workers (name, host, pid, version, tasks, concurrency, stopping, started_at, seen_at, app_version)
select 'worker-somewhere-12345-0123456789ab.' || g, 'host-' || g %% 7, g, '1.0.0',
  array(select 'app.tasks.task_' || t from generate_series(0, %(tasks)s - 5) t), 24, false, now() - interval '1 hour',
  now() + interval '1 day', '2026.11.' || g %% 2 from generate_series(0, %(workers)s - 1) g
"""
INSERT_THROUGHPUT = """
insert into stowhand.throughput (seconds, begins, task, writer, tally)
select 60, date_trunc('minute', now()) - m * interval '1 minute', 'app.tasks.task_' || t, '',
  jsonb_build_object('ok', 100 + m %% 7, 'failed', m %% 3, 'retry', 2, 'w20', 90, 'w30', 10, 'r10', 80, 'r24', 20)
from generate_series(1, 2880) m cross join generate_series(0, %(tasks)s - 1) t
union all
select 3600, date_trunc('hour', now()) - (48 + h) * interval '1 hour', 'app.tasks.task_' || t, '',
  jsonb_build_object('ok', 6000, 'failed', h %% 9, 'w20', 5000, 'w30', 1000, 'r10', 4000, 'r24', 2000)
from generate_series(1, 24 * 30) h cross join generate_series(0, %(tasks)s - 1) t
"""
QUESTIONS: dict[str, Question] = {
    "amounts": lambda store: store.inspect.amounts(),
    "oldest due": lambda store: store.inspect.oldest_due(),
    "figures": lambda store: store.inspect.figures(),
    "throughput, an hour": lambda store: store.inspect.throughput(*lately(hours=1)),
    "throughput, 7 days of all tasks": lambda store: store.inspect.throughput(
        *lately(days=7), step=7200, by_task=False
    ),
    "throughput, 90 days of all tasks": lambda store: store.inspect.throughput(
        *lately(days=90), step=86_400, by_task=False
    ),
    "failures": lambda store: store.inspect.failures(),
    "queues": lambda store: store.inspect.serials(),
    "tasks": lambda store: store.inspect.tasks(),
    "workers": lambda store: store.inspect.workers(),
    "held": lambda store: store.inspect.held(),
    "app versions": lambda store: store.inspect.app_versions(),
    "pauses": lambda store: store.inspect.pauses(),
    "search: the newest": lambda store: store.inspect.search(Search()),
    "search: completed": lambda store: store.inspect.search(Search(states=(State.COMPLETED,))),
    "search: queued": lambda store: store.inspect.search(Search(states=(State.QUEUED,))),
    "search: failed": lambda store: store.inspect.search(Search(states=(State.FAILED,))),
    "search: failed, an error": lambda store: store.inspect.search(
        Search(states=(State.FAILED,), error="host-13 within")
    ),
    "search: running": lambda store: store.inspect.search(Search(states=(State.PROCESSING,))),
    "search: canceled": lambda store: store.inspect.search(Search(states=(State.CANCELED,))),
    "search: a key of a few": lambda store: store.inspect.search(Search(key="order:777770")),
    "search: an error that no job has": lambda store: store.inspect.search(Search(error="no such thing")),
    "search: a task that no job has": lambda store: store.inspect.search(Search(task="nobodys")),
    "search: queued of a task that is rare": lambda store: store.inspect.search(
        Search(states=(State.QUEUED,), task="app.tasks.task_0")
    ),
}
PAGES = {
    "overview": ("/", {}),
    "jobs": ("/jobs", {}),
    "jobs, failed": ("/jobs", {"state": ["failed"]}),
    "jobs, completed": ("/jobs", {"state": ["completed"]}),
    "jobs, of a task": ("/jobs", {"task": ["app.tasks.task_7"]}),
    "jobs, an error that no job has": ("/jobs", {"error": ["no such thing"]}),
    "job": ("/job", {"id": ["JOB"]}),
    "job, failed": ("/job", {"id": ["FAILED"]}),
    "queues": ("/queues", {}),
    "tasks": ("/tasks", {}),
    "failures": ("/failures", {}),
    "workers": ("/workers", {}),
}


def lately(**span: float) -> tuple[datetime, datetime]:
    """Return the period that ends now."""
    return wall_clock() - timedelta(**span), wall_clock()


def fill(url: str, waiting: int, finished: int, failed: int) -> None:
    """Write jobs into the tables directly, and analyze them, as autovacuum does."""
    given = {"tasks": TASKS, "queues": QUEUES, "workers": WORKERS, "waiting": finished + waiting, "finished": finished}
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("select stowhand.make_days(now() - interval '11 days', 13)")
        for first in range(1, finished, ROWS_PER_INSERT):
            connection.execute(
                INSERT_HISTORY, given | {"from": first, "to": min(first + ROWS_PER_INSERT - 1, finished)}
            )
        connection.execute(f"alter sequence stowhand.live_id_seq restart {finished + 1}")
        last = finished + waiting + failed
        for first in range(finished + 1, last, ROWS_PER_INSERT):
            connection.execute(INSERT_LIVE_JOBS, given | {"from": first, "to": min(first + ROWS_PER_INSERT - 1, last)})
        connection.execute(START_JOBS, given | {"running": WORKERS * HELD})
        for statement in (INSERT_ATTEMPTS, INSERT_WORKERS, INSERT_THROUGHPUT):
            connection.execute(statement, given)
        connection.execute("insert into stowhand.app_versions values ('2026.11.0', now(), now())")
        connection.execute("insert into stowhand.pauses values ('app.tasks.task_3', now())")
        for _ in range(13):  # totals of what is there are made at each maintenance
            connection.execute("select stowhand.fold_throughput(now())")
        connection.execute("vacuum analyze")
        connection.execute("checkpoint")


async def timed(call: Callable[[], Awaitable[object]], runs: int, postmaster: int) -> tuple[float, float, float]:
    """Milliseconds: half of the times and 95 of 100 at most; and of processors, the server's and ours, a call.

    The first call is not counted. What waits for a processor waits in the first two, not in the third.
    """
    await call()
    taken, before = [], spent(postmaster) + time.process_time()
    for _ in range(runs):
        began = time.perf_counter()
        await call()
        taken.append(1000 * (time.perf_counter() - began))
    taken.sort()
    used = 1000 * (spent(postmaster) + time.process_time() - before) / runs
    return statistics.median(taken), taken[min(int(0.95 * runs), runs - 1)], used


async def ask(url: str, runs: int, only: tuple[str, ...], postmaster: int) -> None:
    """Measure every query, on a read-only store."""
    store = open_store(url, StoreOptions(read_only=True))
    await store.open()
    click.echo(f"{'question':44}{'p50 ms':>10}{'p95 ms':>10}{'processor ms':>14}   load {os.getloadavg()[0]:.1f}")
    for name, question in QUESTIONS.items():
        if not only or name.startswith(only):
            try:
                half, most, used = await timed(lambda question=question: question(store), runs, postmaster)  # type: ignore[misc]
            except StoreTooSlow as error:
                click.echo(f"{name:44} {error}")
                continue
            click.echo(f"{name:44}{half:10.1f}{most:10.1f}{used:14.1f}{_slow_mark(most)}")
    await store.close()


async def show(url: str, runs: int, only: tuple[str, ...], postmaster: int) -> None:
    """Measure every page for a visitor with all rights, with empty caches."""
    store = open_store(url, StoreOptions(read_only=True))
    await store.open()

    async def opened() -> QueueStore:
        return store

    reader = Reader(opened)
    board = Board(reader)
    ids = {
        "JOB": (await store.inspect.search(Search(limit=1))).jobs[0].id,
        "FAILED": (await store.inspect.search(Search(states=(State.FAILED,), limit=1))).jobs[0].id,
    }
    click.echo(f"{'page':44}{'p50 ms':>10}{'p95 ms':>10}{'processor ms':>14}{'bytes':>10}")
    for name, (path, query) in PAGES.items():
        given = {field: [str(ids.get(value, value)) for value in values] for field, values in query.items()}
        asked = Request(path=path, query=given, who=EVERYTHING, known=True)
        if only and not name.startswith(only):
            continue

        async def look(asked: Request = asked) -> bytes:
            reader.forget()
            reply = await board.answer(asked)
            assert reply.status == 200, (reply.status, reply.body)
            assert isinstance(reply.body, bytes)
            return reply.body

        half, most, used = await timed(look, runs, postmaster)
        size = len(await look())
        size_mark = "   large" if size > MAX_PAGE_BYTES else ""
        late = f"{_slow_mark(most)}{size_mark}"
        click.echo(f"{name:44}{half:10.1f}{most:10.1f}{used:14.1f}{size:10}{late}")
    board.close()
    await store.close()


@contextmanager
def viewers(url: str, count: int) -> Iterator[Callable[[], float]]:
    """Run a process that reads the event streams of this many open pages.

    Gives a function: the seconds of processors that the process and its sessions have used so far.
    """
    watching = psutil.Popen(
        [sys.executable, __file__, "--watch", url, "--viewers", str(count)], env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    try:
        time.sleep(3.0)
        with psycopg.connect(url, autocommit=True) as connection:
            sessions = connection.execute(
                "select pid from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
            ).fetchall()
        used = [watching, *(psutil.Process(pid) for (pid,) in sessions)]
        yield lambda: sum(one.cpu_times().user + one.cpu_times().system for one in used)
        assert watching.poll() is None
    finally:
        watching.terminate()
        watching.wait()


async def watch(url: str, count: int) -> None:
    """Read the streams until the process ends."""
    store = open_store(url, StoreOptions(read_only=True))
    await store.open()

    async def opened() -> QueueStore:
        return store

    board = Board(Reader(opened))

    async def look(path: str, browser: int) -> None:
        cookie = Request().cookies.new(VISIT_COOKIE, f"{browser:043}", None)[1].partition(";")[0]
        headers = {"accept": "text/event-stream", "cookie": cookie}
        while True:
            reply = await board.answer(Request(path=path, who=EVERYTHING, known=True, headers=headers))
            assert not isinstance(reply.body, bytes), reply.status
            async for _ in reply.body:
                pass

    paths = ("/", "/jobs", "/queues", "/tasks", "/workers")
    await asyncio.gather(*(look(paths[number % len(paths)], number) for number in range(count)))


def beside(server: PostgresServer, place: Path, count: int, jobs: int, rounds: int) -> None:
    """Measure drains with and without open pages in turn, each in a new database without dead rows."""
    (place / "drain_tasks.py").write_text(
        DRAINED.replace("HANDLER", '@app.task(name="noop")\nasync def noop(number: int = 0)')
    )
    found: dict[bool, list[Sequence[float]]] = {False: [], True: []}
    costs = []
    for number in range(rounds):
        for watched in (False, True) if number % 2 == 0 else (True, False):
            url = server.create_database()
            asyncio.run(install(PostgresSite(url, history=True)))
            with ExitStack() as stack:
                used = stack.enter_context(viewers(url, count)) if watched else time.monotonic
                before, began = used(), time.monotonic()
                found[watched].append(drain(ROOT, url, place, jobs=jobs, processes=1, postmaster=server.pid))
                if watched:
                    costs.append(1000 * (used() - before) / (time.monotonic() - began))
    click.echo(f"{'drain':44}{'jobs/s':>10}{'worker us':>12}{'server us':>12}   load {os.getloadavg()[0]:.1f}")
    for watched, runs in found.items():
        medians = [statistics.median(each) for each in zip(*runs, strict=True)]
        name = f"while {count} look" if watched else "while nobody looks"
        click.echo(f"{name:44}{medians[0]:10.1f}{medians[1]:12.1f}{medians[2]:12.1f}")
    ratios = [statistics.median(b[i] / a[i] for a, b in zip(found[False], found[True], strict=True)) for i in range(3)]
    click.echo(f"{'ratio':44}{ratios[0]:10.3f}{ratios[1]:12.3f}{ratios[2]:12.3f}")
    click.echo(f"{'looking, processor ms in a second':44}{statistics.median(costs):10.1f}")


@click.command()
@click.option("--waiting", default=1_000_000, show_default=True)
@click.option("--finished", default=10_000_000, show_default=True)
@click.option("--failed", default=100_000, show_default=True)
@click.option("--quick", is_flag=True, help="A twentieth of it: does it work?")
@click.option("--runs", default=40, show_default=True)
@click.option("--only", multiple=True, help="Questions and pages that begin so, or drain; repeatable.")
@click.option("--viewers", "count", default=10, show_default=True, help="Open pages beside a drain; 0: leave it out.")
@click.option("--jobs", default=200_000, show_default=True, help="Of a drain.")
@click.option("--rounds", default=5, show_default=True, help="Of drains.")
@click.option("--watch", "watched", hidden=True)
@click.option("--keep", is_flag=True, help="When all is measured, say where the store is, and wait for Enter.")
def main(
    waiting: int,
    finished: int,
    failed: int,
    quick: bool,
    runs: int,
    only: tuple[str, ...],
    count: int,
    jobs: int,
    rounds: int,
    watched: str | None,
    keep: bool,
) -> None:
    """Measure every query and every page."""
    if watched is not None:
        asyncio.run(watch(watched, count))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that everything is stopped on the way out
    if quick:
        waiting, finished, failed = waiting // 20, finished // 20, failed // 20
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dashboard-")))
        server = stack.enter_context(PostgresServer(find_postgres()[0], durable=True, shared_buffers="256MB"))
        url = server.create_database()
        asyncio.run(install(PostgresSite(url, history=True)))
        if only != ("drain",):
            began = time.monotonic()
            fill(url, waiting, finished, failed)
            click.echo(f"filled in {time.monotonic() - began:.0f} s: {waiting} waiting, {finished} finished", err=True)
            asyncio.run(ask(url, runs, only, server.pid))
            asyncio.run(show(url, runs, only, server.pid))
        if count and (not only or "drain" in only):
            beside(server, place, count, jobs, rounds)
        if keep:
            input(f"{url} ")


def _slow_mark(milliseconds: float) -> str:
    return "   slow" if milliseconds > MAX_PAGE_MILLISECONDS else ""


if __name__ == "__main__":
    main()
