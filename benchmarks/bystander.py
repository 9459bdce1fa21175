"""Latency of an unrelated query while a backlog is drained beside it: python benchmarks/bystander.py --help

One connection reads a row of a table that has nothing to do with jobs, and updates another durably, one after the other
with pauses; in the same database one worker process drains, with and without a snapshot that somebody holds (dead rows
then stay). Beside the queues stand: nothing else at all, and two busy processes (one of the system, one backend) that
touch no data, which is what the loss of the processor alone does. Everybody in turn; milliseconds.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import click
import psycopg

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "src")]
sys.path = [place for place in sys.path if Path(place) != Path(__file__).parent]  # its peers/ would hide this package

from benchmarks.contenders import POSTGRES, STATE, install  # noqa: E402
from benchmarks.course import Course, wait_until  # noqa: E402
from benchmarks.grounds import PostgresGround  # noqa: E402
from benchmarks.report import ALONE, BATCHED, OURS, save  # noqa: E402
from benchmarks.trials import Table  # noqa: E402
from tests.support.binaries import find_postgres  # noqa: E402
from tests.support.servers import PostgresServer  # noqa: E402

TABLE_ROWS = 100_000
CREATE_TABLE = f"""
    create table bystander as select g as id, 0::bigint as balance from generate_series(1, {TABLE_ROWS}) g;
    alter table bystander add primary key (id)
"""
SELECT = "select balance from bystander where id = %s"
UPDATE = "update bystander set balance = balance + 1 where id = %s"
PAUSE_SECONDS = 0.002
GOAL = "goal: p50 <= 1.05x"
BUSY_QUERY = "select count(*) from generate_series(1, 1000000000000)"


class Bystander:
    """A database with a table that has nothing to do with jobs, and a connection that uses it."""

    def __init__(self, url: str) -> None:
        self.url = url
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(CREATE_TABLE.encode())
            connection.execute("vacuum analyze bystander")

    def watch(self, seconds: float, going: Callable[[], bool]) -> dict[str, list[float]]:
        """Return the milliseconds of each query in this many seconds, or until the work beside it ends."""
        took: dict[str, list[float]] = {"select": [], "update": []}
        with psycopg.connect(self.url, autocommit=True) as connection:
            for number in range(20):  # statements are prepared, caches are warm
                self._ask(connection, number)
            until, number = time.monotonic() + seconds, 0
            while time.monotonic() < until and going():
                number += 1
                for name, milliseconds in self._ask(connection, number):
                    took[name].append(milliseconds)
        return took

    def _ask(self, connection: psycopg.Connection[Any], number: int) -> list[tuple[str, float]]:
        found = []
        for name, statement in (("select", SELECT), ("update", UPDATE)):
            time.sleep(PAUSE_SECONDS)
            began = time.perf_counter()
            connection.execute(statement, (1 + number * 7919 % TABLE_ROWS,), prepare=True)
            found.append((name, 1000 * (time.perf_counter() - began)))
        return found

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Keep a repeatable-read transaction open during the block."""
        with psycopg.connect(self.url) as connection:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.execute("select from bystander limit 1")
            yield
            connection.rollback()

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Run two processes that only compute: one of the system and one of the server."""
        with (
            subprocess.Popen([sys.executable, "-c", "while True: pass"]) as burning,
            psycopg.connect(self.url, autocommit=True) as connection,
        ):

            def burn() -> None:
                with self._cancelled():
                    connection.execute(BUSY_QUERY)

            thread = threading.Thread(target=burn, daemon=True)
            thread.start()
            try:
                yield
            finally:
                burning.kill()
                connection.cancel_safe()
                thread.join()

    @contextmanager
    def _cancelled(self) -> Iterator[None]:
        try:
            yield
        except psycopg.errors.QueryCanceled:
            return


@click.command()
@click.option("--runs", default=3, show_default=True)
@click.option("--jobs", default=100_000, show_default=True, help="The backlog that is drained beside it.")
@click.option("--seconds", default=3.0, show_default=True, help="At most, of each case.")
@click.option("--json", "file", type=click.Path(path_type=Path), help="Where the figures of all runs are written.")
def main(runs: int, jobs: int, seconds: float, file: Path | None) -> None:
    """Measure the latency of unrelated queries during a drain."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that everything is stopped on the way out
    there = install({"stowhand", "graphile"})
    STATE.mkdir(parents=True, exist_ok=True)
    table = Table()
    with ExitStack() as stack:
        server = stack.enter_context(PostgresServer(find_postgres()[0], durable=True, shared_buffers="256MB"))
        alone = Bystander(server.create_database())
        courses = []
        for contender in POSTGRES:
            if contender.name in (OURS, BATCHED) and contender.family in there:
                url = server.create_database()
                probes = Path(tempfile.mkdtemp(prefix="stowhand-bench-"))
                stack.callback(shutil.rmtree, probes, ignore_errors=True)
                courses.append((Course(contender, PostgresGround(url, server), probes), Bystander(url)))
        for _ in range(runs):
            _add(table, ALONE, alone.watch(seconds, lambda: True))
            with alone.busy():
                _add(table, "two busy processes", alone.watch(seconds, lambda: True))
            for course, bystander in courses:
                for held, condition in (("", nullcontext()), (", snapshot held", bystander.snapshot())):
                    _beside(table, course, bystander, jobs, seconds, condition, held)
    click.echo("\n".join(table.lines()))
    save(table.runs, file)


def _beside(
    table: Table,
    course: Course,
    bystander: Bystander,
    jobs: int,
    seconds: float,
    condition: AbstractContextManager[None],
    held: str,
) -> None:
    course.fill(jobs)
    with condition, course.workers(1) as workers:
        wait_until(lambda: course.begun > jobs // 50, 60.0, workers)
        first, began = course.begun, time.monotonic()
        took = bystander.watch(seconds, lambda: course.begun < 0.95 * jobs)
        rate = (course.begun - first) / (time.monotonic() - began)
    _add(table, course.contender.name + held, took)
    table.add("drain beside it, jobs/s", course.contender.name + held, rate)


def _add(table: Table, case: str, took: dict[str, list[float]]) -> None:
    for name, found in took.items():
        each = sorted(found)
        table.add(f"{name} beside a drain, p50, ms", case, each[len(each) // 2], GOAL)
        table.add(f"{name} beside a drain, p99, ms", case, each[int(len(each) * 0.99)])


if __name__ == "__main__":
    main()
