"""Cost of serial keys: python benchmarks/serial.py --help

Jobs that do nothing in one queue, in three, in fifty; drained by one worker process and by several. Beside the rate:
what the server committed and wrote for each job, and the processor time of the workers and of the server. Several
checkouts of this project, each with its ``.venv``, take turns (A B, B A, …) on one durable server; the figures are
medians.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import click
import psutil
import psycopg

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]
sys.path = [place for place in sys.path if Path(place) != Path(__file__).parent]  # its peers/ would hide a module

from benchmarks.report import by_column, save  # noqa: E402
from tests.support.binaries import find_postgres  # noqa: E402
from tests.support.servers import PostgresServer  # noqa: E402

WORKER = """
import asyncio, os, sys
from stowhand import App
app = App(os.environ["SERIAL_URL"])

@app.task
async def tick(number: int) -> None: ...

async def fill(serials: int, jobs: int) -> None:
    await app.open(install=True)
    async with app:
        await app.enqueue_many(tick.options(serial=f"serial-{n % serials}").new_job(n) for n in range(jobs))

"""
DRAIN = """
async def drain(concurrency: int) -> None:
    async with app:
        print("ready", flush=True)
        sys.stdin.readline()
        worker = app.worker(concurrency=concurrency)
        asyncio.get_running_loop().add_reader(sys.stdin, worker.stop)
        await worker.run()

asyncio.run({"fill": fill, "drain": drain}[sys.argv[1]](*map(int, sys.argv[2:])))
"""
"""The end of a worker program that has an ``app`` and a function ``fill``."""
COUNTED = """
select xact_commit + xact_rollback, pg_snapshot_xmax(pg_current_snapshot())::text::bigint,
    (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint, (pg_control_checkpoint()).next_multixact_id::text::bigint
from pg_stat_database where datname = %s
"""
CASES = ((1, 1, 1), (1, 1, 4), (1, 4, 4), (3, 1, 4), (3, 4, 4), (50, 1, 4), (50, 4, 4))
"""Queues, worker processes, jobs at once in each."""
FIGURES = ("jobs/s", "commits", "xids", "WAL bytes", "multixacts", "worker us", "server us")


class Figures(NamedTuple):
    """Figures of one run. All but the rate and the multixacts are per job."""

    rate: float
    commits: float
    xids: float
    wal: float
    multixacts: float
    worker: float
    server: float


def measure(server: PostgresServer, tree: Path, case: tuple[int, int, int], jobs: int) -> Figures:
    """Fill and drain a new database."""
    serials, processes, concurrency = case
    url = server.create_database()
    program = [str(tree / ".venv/bin/python"), "-c", WORKER + DRAIN]
    environment = os.environ | {"SERIAL_URL": url, "STOWHAND_LOG_LEVEL": "error"}
    subprocess.run([*program, "fill", str(serials), str(jobs)], env=environment, check=True, cwd=tree)
    with ExitStack() as stack:
        workers = start_workers(stack, [*program, "drain", str(concurrency)], environment, processes, cwd=tree)
        before, spent, server_spent = count(server, url), sum(map(processor, workers)), server_time(server)
        began = time.perf_counter()
        tell(workers)
        took = drained(url, began)
        spent = sum(map(processor, workers)) - spent
        server_spent = server_time(server) - server_spent
        for worker in workers:
            worker.communicate("\n")
    commits, xids, wal, multixacts = (after - then for after, then in zip(count(server, url), before, strict=True))
    per_job = (
        commits / jobs,
        xids / jobs,
        wal / jobs,
        float(multixacts),
        spent / jobs * 1e6,
        server_spent / jobs * 1e6,
    )
    return Figures(jobs / took, *per_job)


def start_workers(
    stack: ExitStack, command: list[str], environment: dict[str, str], number: int, *, cwd: Path = ROOT
) -> list[subprocess.Popen[str]]:
    """Start worker processes that wait for a line on their input. Wait until all are ready."""
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    workers = [
        stack.enter_context(subprocess.Popen(command, env=environment, cwd=cwd, text=True, **pipes))
        for _ in range(number)
    ]
    for worker in workers:
        assert worker.stdout is not None
        worker.stdout.readline()
    return workers


def tell(workers: Sequence[subprocess.Popen[str]]) -> None:
    """Let workers go on."""
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("\n")
        worker.stdin.flush()


def drained(url: str, began: float) -> float:
    """Return the seconds until no job is left. It checks every tenth of a second: a few commits among thousands."""
    with psycopg.connect(url, autocommit=True) as connection:
        while True:
            row = connection.execute("select exists (select from stowhand.live)").fetchone()
            took = time.perf_counter() - began
            if row is not None and not row[0]:
                return took
            time.sleep(0.1)


def count(server: PostgresServer, url: str) -> tuple[int, ...]:
    """Read the counts after a checkpoint, so that page images count in every run. The reading is not counted."""
    name = url.split("/")[-1].split("?")[0]
    with psycopg.connect(server.admin_url, autocommit=True) as connection:
        connection.execute("checkpoint")
        row = connection.execute(COUNTED, (name,)).fetchone()
        assert row is not None
        return tuple(map(int, row))


def processor(worker: subprocess.Popen[str]) -> float:
    """Return the processor seconds so far."""
    times = psutil.Process(worker.pid).cpu_times()
    return float(times.user + times.system)


def server_time(server: PostgresServer) -> float:
    """Return the seconds of all live processes. The workers' connections are open at both readings."""
    total = 0.0
    for process in psutil.Process(server.pid).children(recursive=True):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += float(times.user + times.system)
    return total


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--tree", "trees", multiple=True, type=click.Path(path_type=Path, exists=True), help="A checkout; this one."
)
@click.option("--jobs", default=2000, show_default=True, help="In each run.")
@click.option("--runs", default=5, show_default=True, help="Of each case.")
@click.option("--case", "cases", multiple=True, help="queues:processes:jobs at once, as 1:1:4; all.")
@click.option("--json", "file", type=click.Path(path_type=Path), help="Where the figures of all runs are written.")
def main(trees: tuple[Path, ...], jobs: int, runs: int, cases: tuple[str, ...], file: Path | None) -> None:
    """Drain jobs with serial keys."""
    trees = tuple(tree.resolve() for tree in trees) or (ROOT,)
    here: dict[str, list[Figures]] = {}
    wanted = [(int(a), int(b), int(c)) for a, b, c in (one.split(":") for one in cases)] or CASES
    print(f"{'queues':>6} {'procs':>5} {'at once':>7}  " + " ".join(f"{name:>10}" for name in FIGURES), "  tree")
    with PostgresServer(find_postgres()[0], durable=True, shared_buffers="256MB", autovacuum="off") as server:
        for case in wanted:
            found: dict[Path, list[Figures]] = {tree: [] for tree in trees}
            for run in range(runs):
                for tree in trees if run % 2 == 0 else reversed(trees):
                    found[tree].append(measure(server, tree, case, jobs))
            of = "1 queue" if case[0] == 1 else f"{case[0]} queues"
            by = "1 process" if case[1] == 1 else f"{case[1]} processes"
            name = f"{of}, {by}, {case[2]} at once"
            here |= {name if tree == trees[0] else f"{name}, {tree.name}": each for tree, each in found.items()}
            for tree, figures in found.items():
                medians = [statistics.median(column) for column in zip(*figures, strict=True)]
                shown = " ".join(f"{value:>10,.{2 if value < 100 else 0}f}" for value in medians)
                print(f"{case[0]:>6} {case[1]:>5} {case[2]:>7}  {shown}   {tree.name}", flush=True)
    save(by_column("serial", FIGURES, here), file)


if __name__ == "__main__":
    main()
