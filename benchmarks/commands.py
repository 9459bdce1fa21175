"""Duration of each operator command on a full store, process start included: python benchmarks/commands.py --help

One durable PostgreSQL (or a SQLite file) with jobs that wait, some that have failed, and a week of finished ones. Every
command is a process of its own, of which the time and the processor time count: of the process alone, without the
server's. Figures are medians. Everything is made here, and nothing is left behind.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Protocol

import click
import psycopg

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]
sys.path = [place for place in sys.path if Path(place) != Path(__file__).parent]  # its peers/ would hide this package

from benchmarks.sites import PostgresSite, SqliteSite, install  # noqa: E402
from tests.support.binaries import find_postgres  # noqa: E402
from tests.support.servers import PostgresServer  # noqa: E402

MAX_COMMAND_SECONDS, MAX_START_SECONDS = 1.0, 0.25
"""Seconds that a command may take, and one that has nothing to do."""
FAILED_JOBS = 20_000
ACTED_ON = 2_000
ROWS_PER_INSERT = 250_000


class Site(Protocol):
    """Full store to measure."""

    url: str

    def fill(self, waiting: int, finished: int) -> None:
        """Write jobs, among them some thousands of failed ones."""

    def ids(self, state: str, count: int) -> list[int]:
        """Return ids of jobs in this state, with and without a queue."""


class OnPostgres:
    """Database of a server that is started for it."""

    def __init__(self, url: str) -> None:
        self.url = url
        asyncio.run(install(PostgresSite(url, history=True)))

    def fill(self, waiting: int, finished: int) -> None:
        """Write jobs into the tables directly, and analyze them, as autovacuum does."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(
                """insert into stowhand.live (task, payload, serial, priority, run_at, state, attempts,
                     last_error, finished_at, created_at)
                   select 'task_' || g %% 20, json_build_object('number', g, 'to', 'someone-' || g || '@mail.example'),
                     q.name, g %% 3, now() - g * interval '1 ms',
                     case when f.failed then 'failed' else 'queued' end, case when f.failed then 25 else 0 end,
                     case when f.failed then 'TimeoutError: no answer within 30 s' end,
                     case when f.failed then now() - g * interval '1 ms' end, now() - g * interval '1 ms'
                   from generate_series(1, %(waiting)s + %(failed)s) as g
                     cross join lateral (select case when g %% 4 = 0 then 'queue_' || g %% 400 end) as q(name)
                     cross join lateral (select g > %(waiting)s) as f(failed)""",
                {"waiting": waiting, "failed": FAILED_JOBS},
            )
            connection.execute("select stowhand.make_days(now() - interval '8 days', 10)")
            for made in range(0, finished, ROWS_PER_INSERT):
                connection.execute(
                    """insert into stowhand.history (id, task, payload, serial, priority, run_at, state, attempts,
                         max_attempts, resets, revision, settled_token, epoch, worker, started_at, finished_at,
                         created_at, updated_at, cancel_requested)
                       select -g, 'task_' || g %% 20,
                         json_build_object('number', g, 'to', 'someone-' || g || '@mail.example'),
                         case when g %% 4 = 0 then 'queue_' || g %% 400 end, g %% 3, f.at, 'completed', 1, 25, 0, 0,
                         gen_random_uuid(), 1, 'worker-somewhere-12345-0123456789ab.' || g %% 8, f.at, f.at, f.at, f.at,
                         false
                       from generate_series(%(from)s::int, %(to)s::int) as g cross join lateral (
                         select now() - interval '7 days' * g / %(finished)s::int) as f(at)""",
                    {"from": made + 1, "to": min(made + ROWS_PER_INSERT, finished), "finished": finished},
                )
            connection.execute("vacuum analyze")
            connection.execute("checkpoint")

    def ids(self, state: str, count: int) -> list[int]:
        """Return ids of jobs in this state."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            found = connection.execute(
                "select id from stowhand.live where state = %s order by id desc limit %s", (state, count)
            )
            return [row[0] for row in found]


class OnSqlite:
    """SQLite file."""

    def __init__(self, file: Path) -> None:
        self.url, self._file = f"sqlite:///{file}", file
        asyncio.run(install(SqliteSite(file)))

    def fill(self, waiting: int, finished: int) -> None:
        """Write jobs into the tables directly, in one transaction for each table."""
        given = {"waiting": waiting, "failed": FAILED_JOBS, "finished": finished, "now": time.time_ns() // 1000}
        with closing(sqlite3.connect(self._file, timeout=10.0)) as connection:
            with connection:
                connection.execute(
                    """with recursive g(n) as (select 1 union all select n + 1 from g where n < :waiting + :failed)
                       insert into stowhand_jobs (task, payload, serial, priority, run_at, max_attempts, created_at,
                         updated_at, state, attempts, last_error, finished_at)
                       select 'task_' || n % 20, json_object('number', n, 'to', 'someone-' || n || '@mail.example'),
                         iif(n % 4 = 0, 'queue_' || n % 400, null), n % 3, :now - n * 1000, 25, :now, :now,
                         iif(n > :waiting, 'failed', 'queued'), iif(n > :waiting, 25, 0),
                         iif(n > :waiting, 'TimeoutError: no answer within 30 s', null),
                         iif(n > :waiting, :now - n * 1000, null)
                       from g""",
                    given,
                )
            with connection:
                connection.execute(
                    """with recursive g(n) as (select 1 union all select n + 1 from g where n < :finished)
                       insert into stowhand_history (id, task, payload, state, serial, priority, run_at, attempts,
                         max_attempts, resets, revision, created_at, updated_at, started_at, finished_at,
                         cancel_requested, epoch, settled_token)
                       select -n, 'task_' || n % 20, json_object('number', n, 'to', 'someone-' || n || '@mail.example'),
                         'completed', iif(n % 4 = 0, 'queue_' || n % 400, null), n % 3, :now, 1, 25, 0, 0, :now, :now,
                         :now, :now - n * (7 * 86400000000 / :finished), 0, 1, lower(hex(randomblob(16)))
                       from g""",
                    given,
                )
            connection.execute("pragma wal_checkpoint(truncate)")

    def ids(self, state: str, count: int) -> list[int]:
        """Return ids of jobs in this state."""
        with closing(sqlite3.connect(self._file, timeout=10.0)) as connection:
            found = connection.execute(
                "select id from stowhand_jobs where state = ? order by id desc limit ?", (state, count)
            )
            return [row[0] for row in found]


@click.command()
@click.option("--sqlite", is_flag=True, help="On a SQLite file, instead of on a PostgreSQL server.")
@click.option("--waiting", default=200_000, show_default=True)
@click.option("--finished", default=2_700_000, show_default=True)
@click.option("--runs", default=5, show_default=True)
@click.option("--only", multiple=True, help="Commands that begin so; may be repeated.")
@click.option("--keep", is_flag=True, help="When all is measured, say where the store is, and wait for Enter.")
def main(sqlite: bool, waiting: int, finished: int, runs: int, only: tuple[str, ...], keep: bool) -> None:
    """Measure the duration of operator commands."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that everything is stopped on the way out
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="commands-")))
        empty = OnSqlite(scratch / "empty.db")
        site = OnSqlite(scratch / "full.db") if sqlite else _postgres(stack)
        began = time.monotonic()
        site.fill(waiting, finished)
        click.echo(f"filled in {time.monotonic() - began:.0f} s: {waiting} waiting, {finished} finished", err=True)
        click.echo(f"{'':36}{'seconds':>10}{'processor':>12}{'at most':>10}   load {os.getloadavg()[0]:.1f}")
        for name, most, command in _commands(site, empty):
            if not only or name.startswith(only):
                click.echo(_line(name, most, [_timed(command()) for _ in range(runs + 1)][1:]))
        if keep:
            input(f"{site.url} ")


def _postgres(stack: ExitStack) -> OnPostgres:
    server = stack.enter_context(PostgresServer(find_postgres()[0], durable=True, shared_buffers="256MB"))
    return OnPostgres(server.create_database())


def _commands(site: Site, empty: Site) -> Iterator[tuple[str, float, Callable[[], Sequence[str]]]]:
    """Return the name, the time limit in seconds and the arguments of each command.

    Commands that change jobs get new ones.
    """
    there = ("-c", site.url)
    yield "--version", MAX_START_SECONDS, lambda: ["--version"]
    yield "jobs list, of an empty store", MAX_START_SECONDS, lambda: ["jobs", "list", "-c", empty.url]
    job = str(site.ids("queued", 1)[0])
    for words in ("stats", "top --once", "doctor", "serials list", "jobs list", "jobs list --newest"):
        yield words, MAX_COMMAND_SECONDS, lambda words=words: [*words.split(), *there]  # type: ignore[misc]
    yield "jobs list --state completed", MAX_COMMAND_SECONDS, lambda: ["jobs", "list", "--state", "completed", *there]
    yield "jobs show", MAX_COMMAND_SECONDS, lambda: ["jobs", "show", job, *there]
    yield "jobs explain", MAX_COMMAND_SECONDS, lambda: ["jobs", "explain", job, *there]
    for act, state in (("cancel", "queued"), ("retry", "failed"), ("remove", "queued"), ("complete", "queued")):

        def of_many(act: str = act, state: str = state) -> Sequence[str]:
            return ["jobs", act, *there, *map(str, site.ids(state, ACTED_ON))]

        yield f"jobs {act}, {ACTED_ON} ids", MAX_COMMAND_SECONDS, of_many


def _timed(arguments: Sequence[str]) -> tuple[float, float]:
    """Run a command. Return its seconds and its seconds of processor time."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    program = [sys.executable, "-m", "stowhand", *arguments]
    spent, began = _spent(), time.monotonic()
    done = subprocess.run(program, env=environment, capture_output=True, text=True, check=False, timeout=120.0)
    took = time.monotonic() - began
    if done.returncode not in (0, 1):  # doctor finds that nobody works
        raise RuntimeError(f"stowhand {' '.join(arguments)[:80]} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return took, _spent() - spent


def _spent() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _line(name: str, most: float, timed: Sequence[tuple[float, float]]) -> str:
    seconds, processor = (statistics.median(column) for column in zip(*timed, strict=True))
    verdict = "" if seconds <= most else "   NOT MET"
    return f"{name:<36}{seconds:>10.3f}{processor:>12.3f}{most:>10.2f}{verdict}"


if __name__ == "__main__":
    main()
