"""Sites of conditions: stores, and functions to make their tables full, old or busy.

Rows are written straight into the tables, as enqueueing writes them, because nobody wants to wait for ten million.
Worker processes import this module for the task ``nap``.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Protocol

import psycopg

from benchmarks import probe
from stowhand.app.app import App
from stowhand.app.own_store import ResolvedStore
from stowhand.app.settings.settings import StoreSettings
from stowhand.protocols.queue_store import QueueStore
from stowhand.protocols.store import SECONDS_PER_DAY, StoreOptions
from stowhand.stores.url import open_store

app = App()
NAP_SECONDS = 0.010


@app.task(name="nap")
async def nap(number: int = 0) -> None:  # noqa: ARG001  a payload of the usual size
    """Sleep ten milliseconds. Record when it ended and how long it took."""
    began = time.monotonic()
    await asyncio.sleep(NAP_SECONDS)
    probe.own_probe().hit(began)


class Site(Protocol):
    """Store with new tables."""

    settings: StoreSettings

    def fill(self, jobs: int, *, task: str = "noop") -> int:
        """Add due jobs. Return the id of the first; the others follow it."""

    def left(self, first: int) -> bool:
        """Return whether a job with this id or a later one is still in the table."""


def new_store(site: Site) -> QueueStore:
    """Return a store that is not open."""
    return open_store(site.settings.url, site.settings.options)


async def install(site: Site) -> None:
    """Install new tables."""
    store = new_store(site)
    try:
        await store.schema.install()
    finally:
        await store.close()


class PostgresSite:
    """PostgreSQL database."""

    def __init__(self, url: str, *, history: bool = False) -> None:
        connection = ResolvedStore(url, "the benchmark")
        self.settings = StoreSettings(
            connection=connection, options=StoreOptions(history=SECONDS_PER_DAY if history else None)
        )
        self.url = url

    def fill(
        self,
        jobs: int,
        *,
        task: str = "noop",
        serials: int = 0,
        serial: str = "q",
        priority: int = 0,
        due_in: float = 0,
        vacuum: bool = True,
    ) -> int:
        """Add due jobs, spread over ``queues`` serial keys. There are no statistics, as right after a burst."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            if vacuum:
                connection.execute("vacuum stowhand.live")  # the dead rows of an earlier run are none of this one's
            row = connection.execute(
                """with filled as (
                     insert into stowhand.live (task, payload, serial, priority, run_at)
                     select %(task)s, json_build_object('number', g), q.name, %(priority)s,
                       now() + %(due_in)s * interval '1 second'
                     from generate_series(1, %(jobs)s) as g cross join lateral (
                       select case when %(serials)s > 0 then %(serial)s || g %% greatest(%(serials)s, 1) end) as q(name)
                     returning id)
                   select min(id) from filled""",
                {
                    "task": task,
                    "jobs": jobs,
                    "queues": serials,
                    "queue": serial,
                    "priority": priority,
                    "due_in": due_in,
                },
            ).fetchone()
            connection.execute("checkpoint")
        assert row is not None
        return int(row[0])

    def fill_history(self, rows: int, seconds: float) -> int:
        """Add this many finished jobs of the last 20 hours, or as many as the time allows."""
        until, made = time.monotonic() + seconds, 0
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("select stowhand.make_days(now() - interval '1 day', 4)")
            while made < rows and time.monotonic() < until:
                chunk = min(250_000, rows - made)
                connection.execute(
                    """insert into stowhand.history (id, task, payload, priority, run_at, state, attempts, max_attempts,
                         resets, revision, settled_token, epoch, worker, started_at, finished_at, created_at,
                         updated_at, cancel_requested)
                       select g - %(rows)s::bigint, 'noop', '{"number": 12345}', 0, f.at, 'completed', 1, 25, 0, 0,
                         gen_random_uuid(), 1, 'worker-somewhere-12345-0123456789ab.1', f.at, f.at, f.at, f.at, false
                       from generate_series(%(made)s::int, %(made)s::int + %(chunk)s::int - 1) as g cross join lateral (
                         select now() - interval '20 hours' * (%(rows)s::int - g) / %(rows)s::int) as f(at)""",
                    {"rows": rows, "made": made, "chunk": chunk},
                )
                made += chunk
            connection.execute("checkpoint")
        return made

    def look_empty(self, jobs: int) -> None:
        """Run this many jobs, and let the server take statistics of the empty table."""
        self.fill(jobs)
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("delete from stowhand.live")
            connection.execute("analyze stowhand.live")

    def clear(self) -> None:
        """Delete waiting jobs."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("truncate stowhand.live")

    def left(self, first: int) -> bool:
        """Return whether a job with this id or a later one is still in the table."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("set enable_seqscan = off")
            row = connection.execute("select exists (select from stowhand.live where id >= %s)", (first,)).fetchone()
        return bool(row and row[0])

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Keep a repeatable-read transaction open during the block."""
        with psycopg.connect(self.url) as connection:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.execute("select from stowhand.live limit 1")
            yield
            connection.rollback()

    @contextmanager
    def feeder(self, begun: Callable[[], int], backlog: int) -> Iterator[None]:
        """Run a producer in a thread that keeps this many jobs waiting. The table is filled before."""
        over = threading.Event()

        def feed() -> None:
            fed = backlog
            with psycopg.connect(self.url, autocommit=True) as connection:
                while not over.wait(0.005):
                    lacking = min(backlog - (fed - begun()), 5000)
                    if lacking > 500:
                        connection.execute(
                            """insert into stowhand.live (task, payload)
                               select 'noop', json_build_object('number', g) from generate_series(1, %s) as g""",
                            (lacking,),
                        )
                        fed += lacking

        thread = threading.Thread(target=feed, name="feeder", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


class SqliteSite:
    """SQLite file with the default durability, FULL."""

    def __init__(self, file: Path) -> None:
        connection = ResolvedStore(f"sqlite:///{file}", "the benchmark")
        self.settings = StoreSettings(connection=connection, options=StoreOptions(history=None))
        self._file = file

    def fill(self, jobs: int, *, task: str = "noop") -> int:
        """Add due jobs in one transaction."""
        now = time.time_ns() // 1000
        with closing(sqlite3.connect(self._file, timeout=10.0)) as connection, connection:
            (last,) = connection.execute("select coalesce(max(seq), 0) from sqlite_sequence").fetchone()
            connection.execute(
                """with recursive g(n) as (select 1 union all select n + 1 from g where n < :jobs)
                   insert into stowhand_jobs (task, payload, priority, run_at, max_attempts, created_at, updated_at)
                   select :task, json_object('number', n), 0, :now, 25, :now, :now from g""",
                {"jobs": jobs, "task": task, "now": now},
            )
        return int(last) + 1

    def left(self, first: int) -> bool:
        """Return whether a job with this id or a later one is still in the table."""
        with closing(sqlite3.connect(self._file, timeout=10.0)) as connection:
            row = connection.execute("select exists (select 1 from stowhand_jobs where id >= ?)", (first,)).fetchone()
        return bool(row[0])
