"""Cost and precision of limits: python benchmarks/limits.py --help

drain    jobs that do nothing, without limits; beside tasks with limits; with a limit that never binds; and the same
         with keys. Rate, WAL bytes and processor time per job, as in serial.py. The cases take turns.
parked   claims of a free job while 100,000 jobs wait behind 1,000 full keys: while they are parked, and afterwards.
use      how much of a limit of 10 is used by jobs of 100 ms and of 1 s, over two processes, and the time from the end
         of a job to the next start.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import time
import uuid
from contextlib import ExitStack
from pathlib import Path

import click
import psycopg

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]
sys.path = [place for place in sys.path if Path(place) != Path(__file__).parent]  # its peers/ would hide a module

from benchmarks.serial import DRAIN, FIGURES, Figures, count, drained, processor, server_time, start_workers, tell  # noqa: E402
from stowhand.jobs.job import NewJob  # noqa: E402
from stowhand.jobs.task_limits import LimitValues, TaskDeclarations, TaskLimits  # noqa: E402
from stowhand.protocols.operator import WorkerList  # noqa: E402
from stowhand.protocols.store import ClaimRequest  # noqa: E402
from stowhand.stores.postgres.queue import PostgresStore  # noqa: E402
from tests.support.binaries import find_postgres  # noqa: E402
from tests.support.servers import PostgresServer  # noqa: E402

WORKER = """
import asyncio, os, sys, time
from stowhand import App
from stowhand.limits import Concurrency, Rate
app = App(os.environ["LIMITS_URL"])
case = os.environ["LIMITS_CASE"]
limits = {
    "never binds": [Concurrency(100_000)],
    "never binds, keys": [Concurrency(100_000, key="number")],
    "use": [Concurrency(10)],
}
for number in range(5):
    others = [Concurrency(3), Rate(10)] if case == "beside limits" else None
    app.task(name=f"other {number}", limits=others)(lambda: None)

@app.task(limits=limits.get(case))
async def tick(number: int) -> None:
    if case == "use":
        began = time.time()
        await asyncio.sleep(float(os.environ["LIMITS_SECONDS"]))
        print(began, time.time(), flush=True)

async def fill(jobs: int) -> None:
    await app.open(install=True)
    async with app:
        await app.enqueue_many(tick.new_job(n % 100) for n in range(jobs))
"""
CLAIM = "select id from stowhand.claim('w', %s, 100, 600, null, null, false)"
CASES = ("plain", "beside limits", "never binds", "never binds, keys")


class Program:
    """Worker processes on a new database, for one case."""

    def __init__(self, server: PostgresServer, case: str, jobs: int, *, seconds: float = 0.0) -> None:
        self._server = server
        self.url = server.create_database()
        self._command = [sys.executable, "-c", WORKER + DRAIN]
        self._environment = os.environ | {
            "LIMITS_URL": self.url,
            "LIMITS_CASE": case,
            "LIMITS_SECONDS": str(seconds),
            "STOWHAND_LOG_LEVEL": "error",
            "STOWHAND_HISTORY": "none",
        }
        subprocess.run([*self._command, "fill", str(jobs)], env=self._environment, check=True)

    def start(self, stack: ExitStack, number: int, concurrency: int) -> list[subprocess.Popen[str]]:
        """Start workers that wait for a line on their input."""
        return start_workers(stack, [*self._command, "drain", str(concurrency)], self._environment, number)


def measure_drain(server: PostgresServer, case: str, jobs: int) -> Figures:
    """Fill and drain a new database with one process."""
    program = Program(server, case, jobs)
    with ExitStack() as stack:
        (worker,) = program.start(stack, 1, 100)
        before, spent, server_spent = count(server, program.url), processor(worker), server_time(server)
        began = time.perf_counter()
        tell([worker])
        took = drained(program.url, began)
        spent, server_spent = processor(worker) - spent, server_time(server) - server_spent
        worker.communicate("\n")
    commits, xids, wal, multixacts = (
        after - then for after, then in zip(count(server, program.url), before, strict=True)
    )
    costs = (commits / jobs, xids / jobs, wal / jobs, float(multixacts))
    return Figures(jobs / took, *costs, spent / jobs * 1e6, server_spent / jobs * 1e6)


def measure_use(server: PostgresServer, seconds: float) -> tuple[float, float]:
    """Return the used share of a limit of 10, and the median of milliseconds from an end to the next start."""
    jobs = max(int(10 * 12 / seconds / 4), 120)
    program = Program(server, "use", jobs, seconds=seconds)
    with ExitStack() as stack:
        workers = program.start(stack, 2, 10)
        tell(workers)
        drained(program.url, time.perf_counter())
        lines = [line for worker in workers for line in worker.communicate("\n")[0].splitlines()]
    runs = sorted(tuple(map(float, line.split())) for line in lines)
    starts, ends = sorted(run[0] for run in runs), sorted(run[1] for run in runs)
    # The k-th end frees a slot for the start number k + 10.
    gaps = [start - end for start, end in zip(starts[10:], ends, strict=False)]
    used = sum(end - start for start, end in runs[10:-10])
    whole = 10 * (starts[-10] - starts[10])
    return used / whole, statistics.median(gaps) * 1000


async def measure_parked(url: str, jobs: int, keys: int) -> dict[str, float]:
    """Return milliseconds of claims of a free job: with an empty store, while jobs are parked, and afterwards."""
    store = PostgresStore(url)
    await store.schema.install()
    await store.open()

    async def claim(limit: int = 1) -> tuple[int, float]:
        began = time.perf_counter()
        claims = await store.claim(ClaimRequest(worker="w", token=str(uuid.uuid4()), limit=limit, lease=600.0))
        return len(claims), (time.perf_counter() - began) * 1000

    async def claim_free() -> float:
        times = []
        for _ in range(200):
            await store.jobs.enqueue(NewJob(task="free", queue="default"))
            number, took = await claim()
            assert number == 1
            times.append(took)
        return statistics.median(times)

    figures = {"empty": await claim_free()}
    heartbeats = store.heartbeats()
    assert isinstance(heartbeats, WorkerList)
    limits = TaskDeclarations(
        {"busy": "default"},
        {"busy": TaskLimits(key_limit="busy", key="key")},
        {"busy": LimitValues(key_concurrency=1)},
    )
    await heartbeats.declare_tasks(limits)
    await store.jobs.enqueue_many(NewJob(task="busy", payload=f'{{"key": {n % keys}}}') for n in range(jobs))
    times = []
    with psycopg.connect(url, autocommit=True) as connection:
        while True:
            began = time.perf_counter()
            rows = connection.execute(CLAIM, (uuid.uuid4(),)).fetchall()
            times.append((time.perf_counter() - began) * 1000)
            if not rows:
                break
        figures |= {"while parking, median": statistics.median(times), "while parking, longest": max(times)}
        row = connection.execute("select count(*) from stowhand.live where absorbed").fetchone()
        assert row is not None
        figures["parked jobs"] = row[0]
    figures["parked"] = await claim_free()
    await heartbeats.close()
    await store.close()
    return figures


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--only", type=click.Choice(["drain", "parked", "use"]), multiple=True, help="A part; all.")
@click.option("--jobs", default=20_000, show_default=True, help="In each run of drain.")
@click.option("--runs", default=9, show_default=True, help="Of each case of drain.")
def main(only: tuple[str, ...], jobs: int, runs: int) -> None:
    """Measure limits on a PostgreSQL server of this run."""
    with PostgresServer(find_postgres()[0], durable=True, shared_buffers="256MB", autovacuum="off") as server:
        if not only or "drain" in only:
            figures: dict[str, list[Figures]] = {case: [] for case in CASES}
            for run in range(runs):
                for case in CASES if run % 2 == 0 else reversed(CASES):
                    figures[case].append(measure_drain(server, case, jobs))
            print(f"{'case':<20} " + " ".join(f"{name:>10}" for name in FIGURES) + "   jobs/s / plain")
            for case, rows in figures.items():
                medians = [statistics.median(column) for column in zip(*rows, strict=True)]
                ratio = statistics.median(
                    row.rate / plain.rate for row, plain in zip(rows, figures["plain"], strict=True)
                )
                shown = " ".join(f"{value:>10,.{2 if value < 100 else 0}f}" for value in medians)
                print(f"{case:<20} {shown}   {ratio:.2f}", flush=True)
        if not only or "use" in only:
            for seconds in (0.1, 1.0):
                share, gap = measure_use(server, seconds)
                print(
                    f"limit of 10, jobs of {seconds:g} s: {share:.1%} in use; end to next start {gap:.1f} ms",
                    flush=True,
                )
        if not only or "parked" in only:
            for name, value in asyncio.run(measure_parked(server.create_database(), 100_000, 1_000)).items():
                print(f"100,000 jobs behind 1,000 full keys: {name}: {value:,.2f}", flush=True)


if __name__ == "__main__":
    main()
