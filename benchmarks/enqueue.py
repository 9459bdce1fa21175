"""Cost of an enqueue, by one caller and by many at the same time: python benchmarks/enqueue.py --help

On one durable PostgreSQL server that is started for it. Beside rates: processor time of this client and of the server's
backends, WAL and commits a job. `bare` is the least that a caller alone can have with our driver, as in peers/bare.py:
one row into a table with one index. `--beside` names another checkout, with its own `.venv`: both take turns.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import perf_counter, process_time

import click
import psutil
import psycopg

HERE = Path(__file__).resolve()
WARM_UP_JOBS = 100
"""Jobs before those that count: connections are there, statements are prepared."""
COLUMNS = ("jobs/s", "client us", "server us", "WAL B", "commits")
TABLE = """
    drop table if exists bare;
    create table bare (
        id bigint generated always as identity primary key, task text not null, payload jsonb not null,
        priority int not null default 0, run_at timestamptz not null default now(), attempts int not null default 0
    );
    create index on bare (priority, run_at, id)
"""
INSERT = "insert into bare (task, payload) values (%s, %s::text::jsonb) returning id"
READ_POSITION = """select pg_current_wal_insert_lsn() - '0/0', pg_snapshot_xmax(pg_current_snapshot())::text::bigint,
  array(select pid from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid())"""


@click.command()
@click.option("--callers", default="1,2,4,8,50", show_default=True, help="At the same time; separated by commas.")
@click.option("--seconds", default=2.0, show_default=True, help="Of each measurement.")
@click.option("--bulk", default=100_000, show_default=True, help="Jobs of one enqueue_many; 0: none.")
@click.option("--runs", default=5, show_default=True, help="Rounds; the figures are medians.")
@click.option("--beside", type=click.Path(exists=True, path_type=Path), help="Another checkout, in turn with this one.")
@click.option("--json", "file", type=click.Path(path_type=Path), help="Where the figures of all runs are written.")
def main(callers: str, seconds: float, bulk: int, runs: int, beside: Path | None, file: Path | None) -> None:
    """Measure bare inserts, enqueues by several numbers of callers, and one bulk. Print a line for each."""
    sys.path[:0] = [str(HERE.parents[1]), str(HERE.parents[1] / "src")]
    sys.path[:] = [place for place in sys.path if Path(place or ".").resolve() != HERE.parent]  # it hides modules
    from benchmarks.report import by_column, save
    from tests.support.binaries import find_postgres
    from tests.support.servers import PostgresServer

    what = ["bare", *(f"callers {number}" for number in callers.split(",")), *([f"bulk {bulk}"] if bulk else [])]
    checkouts = {"": HERE.parents[1]} | ({"beside ": beside.resolve()} if beside else {})
    found: dict[str, list[list[float]]] = {}
    with PostgresServer(find_postgres()[0], durable=True, shared_buffers="256MB") as server:
        urls = {name: server.create_database() for name in checkouts}
        for run in range(runs):
            for kind in what:
                for name in list(checkouts)[:: -1 if run % 2 else 1]:
                    if kind == "bare" and name:
                        continue
                    row = _drive(checkouts[name], urls[name], kind, seconds)
                    found.setdefault(f"{name}{kind}", []).append(row)
    click.echo(f"{'':<28}" + "".join(f"{column:>12}" for column in COLUMNS))
    for kind in what:
        for name in checkouts:
            if rows := found.get(f"{name}{kind}"):
                medians = [statistics.median(column) for column in zip(*rows, strict=True)]
                click.echo(f"{name + kind:<28}" + "".join(f"{figure:>12,.4g}" for figure in medians))
    save(by_column("enqueue", COLUMNS, found), file)


def _drive(checkout: Path, url: str, kind: str, seconds: float) -> list[float]:
    """Run one measurement in a process of that checkout."""
    python = checkout / ".venv" / "bin" / "python"
    command = [str(python if python.exists() else sys.executable), str(HERE), "drive", url, kind, str(seconds)]
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise click.ClickException(done.stderr[-3000:])
    row: list[float] = json.loads(done.stdout)
    return row


class Meter:
    """Counts between two times, on connections that are open at both."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True)
        (self._lsn, self._xid, self._backends), self._at = self._look(), (perf_counter(), process_time())

    def figures(self, jobs: int) -> list[float]:
        """Return the figures in the order of COLUMNS."""
        took, spent = perf_counter() - self._at[0], process_time() - self._at[1]
        lsn, xid, backends = self._look()
        server = sum(cpu - self._backends.get(pid, 0.0) for pid, cpu in backends.items())
        return [
            *(jobs / took, 1e6 * spent / jobs, 1e6 * server / jobs),
            *((lsn - self._lsn) / jobs, (xid - self._xid) / jobs),
        ]

    def _look(self) -> tuple[float, int, dict[int, float]]:
        row = self._connection.execute(READ_POSITION.encode()).fetchone()
        assert row is not None
        times = {pid: psutil.Process(pid).cpu_times() for pid in row[2] if psutil.pid_exists(pid)}
        return float(row[0]), row[1], {pid: each.user + each.system for pid, each in times.items()}


async def _measured(url: str, kind: str, seconds: float) -> list[float]:
    """Measure in this process, on an empty queue."""
    name, _, number = kind.partition(" ")
    if name == "bare":
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
            await connection.execute(TABLE)

            async def insert(place: int) -> None:
                await (await connection.execute(INSERT, ("noop", f'{{"number":{place}}}'))).fetchone()

            return await _by_callers(url, 1, seconds, insert)
    from stowhand import App

    app = App(url, history=None)

    @app.task(name="noop")
    async def noop(number: int) -> None: ...

    await app.open(install=True)
    async with app:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("truncate stowhand.live")
            connection.execute("checkpoint")
        if name == "callers":
            return await _by_callers(url, int(number), seconds, noop.enqueue)
        await app.enqueue_many(noop.new_job(place) for place in range(WARM_UP_JOBS))
        meter = Meter(url)
        await app.enqueue_many(noop.new_job(place) for place in range(int(number)))
        return meter.figures(int(number))


async def _by_callers(
    url: str, callers: int, seconds: float, enqueue: Callable[[int], Awaitable[object]]
) -> list[float]:
    """Enqueue by several callers. Each calls again when its call has returned."""

    async def call(until: float) -> int:
        count = 0
        while perf_counter() < until:
            await enqueue(count)
            count += 1
        return count

    for _ in range(WARM_UP_JOBS // callers + 1):
        await asyncio.gather(*map(enqueue, range(callers)))
    meter = Meter(url)
    counts = await asyncio.gather(*(call(perf_counter() + seconds) for _ in range(callers)))
    return meter.figures(sum(counts))


if __name__ == "__main__":
    if sys.argv[1:2] == ["drive"]:
        print(json.dumps(asyncio.run(_measured(sys.argv[2], sys.argv[3], float(sys.argv[4])))))
    else:
        main()
