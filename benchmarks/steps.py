"""Cost of durable steps on PostgreSQL: python benchmarks/steps.py --help

steps    steps per second of one worker process, WAL bytes per step (a value of 100 bytes, no full-page images), and the
         median of one step alone, beside the median of a commit of one row on the same server
asleep   blocks that a claim reads while many jobs are asleep, against none, and against as many plain jobs with a delay
map      a workflow over many children against as many plain jobs with results, and the memory of its worker
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import click
import psycopg

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]
sys.path = [place for place in sys.path if Path(place) != Path(__file__).parent]  # its peers/ would hide a module

from tests.support.binaries import find_postgres  # noqa: E402
from tests.support.servers import PostgresServer  # noqa: E402

PROGRAM = """
import asyncio, os, resource, statistics, sys, time
from stowhand import App, Context
app = App(os.environ["STEPS_URL"])
VALUE = "x" * 98
times = []

async def value() -> str:
    return VALUE

@app.task
async def many(ctx: Context, count: int) -> None:
    for number in range(count):
        began = time.perf_counter()
        await ctx.step(f"s{number}", value)
        times.append(time.perf_counter() - began)

@app.task
async def child(number: int) -> int:
    return number

@app.task
async def parent(ctx: Context, count: int, collect: bool) -> int:
    return len(await ctx.map("all", child, range(count)))

async def run(jobs, concurrency: int) -> float:
    await app.open(install=True)
    async with app:
        began = time.perf_counter()
        await app.enqueue_many(jobs)
        worker = app.worker(concurrency=concurrency, once=True)
        await worker.run()
        return time.perf_counter() - began

async def main() -> None:
    case, count, jobs = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    await app.open(install=True)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    match case:
        case "steps":
            took = await run((many.new_job(count) for _ in range(jobs)), 100)
        case "map":
            took = await run([parent.new_job(count, False)], 100)
        case "plain":
            took = await run((child.new_job(number) for number in range(count)), 100)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(took, statistics.median(times) if times else 0, (peak - before) / 1024)

asyncio.run(main())
"""
WAL = "select (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint"
CLAIM = (
    "explain (analyze, buffers, format json)"
    " select * from stowhand.claim('w', gen_random_uuid(), 10, 60, null::text[], null::text[], false)"
)


def run(url: str, case: str, count: int, jobs: int = 1) -> tuple[float, float, float]:
    """Return the seconds that a worker took, the median of a step, and the growth of its memory in MB."""
    environment = os.environ | {"STEPS_URL": url, "STOWHAND_LOG_LEVEL": "error"}
    command = [sys.executable, "-c", PROGRAM, case, str(count), str(jobs)]
    text = subprocess.run(command, env=environment, check=True, text=True, stdout=subprocess.PIPE).stdout
    took, step, memory = map(float, text.split())
    return took, step, memory


def ask(url: str, statement: str) -> int:
    """Return the number that a statement returns."""
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(statement.encode()).fetchone()
    assert row is not None
    return int(row[0])


def measure_steps(server: PostgresServer) -> None:
    """Print steps per second, WAL bytes per step, and the median of one step alone."""
    for _ in range(3):
        url = server.create_database()
        run(url, "steps", 1)
        before = ask(url, WAL)
        took, _, _ = run(url, "steps", 100, 200)
        wal = ask(url, WAL) - before
        print(f"200 workflows of 100 steps: {20_000 / took:,.0f} steps/s, {wal / 20_000:,.0f} WAL bytes a step")
        _, step, _ = run(url, "steps", 1000)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("create table one (value text)")
            times = []
            for _ in range(500):
                began = time.perf_counter()
                connection.execute("insert into one values ('x')")
                times.append(time.perf_counter() - began)
        commit = statistics.median(times)
        print(f"one step alone: {step * 1000:.2f} ms; one committed insert: {commit * 1000:.2f} ms")


def measure_asleep(server: PostgresServer, jobs: int) -> None:
    """Print the blocks that a claim reads: alone, beside plain jobs that are not due, and beside jobs asleep."""

    def blocks(connection: psycopg.Connection) -> int:
        connection.execute("select stowhand.add_job('free') from generate_series(1, 10)")
        row = connection.execute(CLAIM.encode()).fetchone()
        assert row is not None
        return int(row[0][0]["Plan"]["Shared Hit Blocks"] + row[0][0]["Plan"]["Shared Read Blocks"])

    cases = {
        "no other jobs": None,
        f"{jobs:,} plain jobs with a delay": "null",
        f"{jobs:,} jobs asleep": "'time:sleep'",
    }
    for case, waits_for in cases.items():
        url = server.create_database()
        run(url, "steps", 1)
        with psycopg.connect(url, autocommit=True) as connection:
            if waits_for is not None:
                connection.execute(
                    "insert into stowhand.live (task, run_at, waits_for)"
                    f" select 'many', now() + interval '1 day', {waits_for} from generate_series(1, {jobs})".encode()
                )
            connection.execute("vacuum analyze stowhand.live")
            counts = [blocks(connection) for _ in range(40)]
        print(f"blocks of a claim of 10 jobs, {case}: {statistics.median(counts[1:])}, first {counts[1]}")


def measure_map(server: PostgresServer, children: int) -> None:
    """Print the time of a map over children and of plain jobs, in turns."""
    ratios = []
    for number in range(5):
        times = {}
        for case in ("map", "plain") if number % 2 else ("plain", "map"):
            times[case], _, memory = run(server.create_database(), case, children)
            print(f"{case}: {times[case]:.2f} s, memory + {memory:.0f} MB")
        ratios.append(times["map"] / times["plain"])
    print(f"map / plain: {statistics.median(ratios):.2f}")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--only", type=click.Choice(["steps", "asleep", "map"]), help="A part; all.")
@click.option("--children", default=10_000, show_default=True)
@click.option("--asleep", default=100_000, show_default=True)
def main(only: str | None, children: int, asleep: int) -> None:
    """Measure durable steps on a PostgreSQL server of this run."""
    settings = {"shared_buffers": "256MB", "autovacuum": "off", "full_page_writes": "off"}
    with PostgresServer(find_postgres()[0], durable=True, **settings) as server:
        if only in (None, "steps"):
            measure_steps(server)
        if only in (None, "asleep"):
            measure_asleep(server, asleep)
        if only in (None, "map"):
            measure_map(server, children)


if __name__ == "__main__":
    main()
