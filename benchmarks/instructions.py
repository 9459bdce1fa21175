"""Costs of a job, in counts that do not depend on the load of the machine: python benchmarks/instructions.py

Instructions of a worker process per job (valgrind's callgrind), and buffers, WAL bytes, transactions and statements of
the server per job. A run of few jobs is subtracted from a run of many, so that start and end of the process do not
count. ``--side`` names other checkouts with their own ``.venv``; the last lines are ratios to the first side.

Needs Debian's valgrind on PATH. Repeatable within about 4 %: how jobs are batched depends on timing.
"""

from __future__ import annotations

import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path

import click
import psycopg

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "src")]
sys.path = [place for place in sys.path if Path(place) != Path(__file__).parent]  # its peers/ would hide a module

from tests.support.binaries import find_postgres  # noqa: E402
from tests.support.servers import PostgresServer  # noqa: E402

HERE = Path(__file__).parents[1]
TASKS = """\
from stowhand import App

app = App()


@app.task(name="noop")
async def noop(number: int = 0):
    pass


async def fill(count):
    async with app:
        await app.enqueue_many(noop.new_job(number=number) for number in range(count))
"""
FEW_JOBS, MANY_JOBS = 200, 2_200
COLLECTED_PATTERN = re.compile(r"Collected : (\d+)")
STATEMENT_PATTERN = re.compile(r"LOG:  (?:execute [^:]*|statement): ")
READ_TOTALS = """
    select (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint, xact_commit + xact_rollback, blks_hit + blks_read
    from pg_stat_database where datname = %s
"""


@dataclass(frozen=True)
class Costs:
    """Costs of one run, or of one job."""

    instructions: float
    wal: float = 0.0
    commits: float = 0.0
    buffers: float = 0.0
    statements: float = 0.0

    def per_job(self, few: Costs) -> Costs:
        """Return the cost of one of the jobs by which this run is larger."""
        return Costs(
            *((many - one) / (MANY_JOBS - FEW_JOBS) for many, one in zip(self.values, few.values, strict=True))
        )

    @property
    def values(self) -> list[float]:
        return [getattr(self, field.name) for field in fields(self)]


class Server:
    """Totals of a server that works for one database at a time."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server

    def totals(self, database: str) -> list[float]:
        """Return WAL bytes, transactions, buffers and statements so far. No client of the database may be connected."""
        with psycopg.connect(self._server.admin_url, autocommit=True) as connection:
            connection.execute("select pg_stat_force_next_flush()")
            row = connection.execute(READ_TOTALS, [database]).fetchone()
        assert row is not None
        return [*map(float, row), float(len(STATEMENT_PATTERN.findall(self._server.log())))]


def run(side: Path, folder: Path, url: str, jobs: int) -> float:
    """Enqueue and run jobs in a worker under callgrind. Return its instructions."""
    environment = {
        **os.environ,
        "STOWHAND_CONNECTION": url,
        "PYTHONPATH": f"{side}/src:{folder}",
        "PYTHONHASHSEED": "0",
    }
    python = str(side / ".venv" / "bin" / "python")
    fill = f"import asyncio, cost_tasks; asyncio.run(cost_tasks.fill({jobs}))"
    subprocess.run([python, "-c", fill], env=environment, check=True)
    worker = [python, "-m", "stowhand.cli", "worker", "--app", "cost_tasks:app", "--once", "--log-level", "error"]
    command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={folder}/callgrind.out", *worker]
    ended = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    found = COLLECTED_PATTERN.search(ended.stderr)
    assert found is not None, ended.stderr
    return float(found[1])


def on_sqlite(side: Path, folder: Path) -> Costs:
    """Cost of a job in a file."""
    totals = {}
    for jobs in (FEW_JOBS, MANY_JOBS):
        url = f"sqlite:///{folder}/{side.name}-{jobs}-{len(list(folder.iterdir()))}.db"
        migrate(side, url)
        totals[jobs] = Costs(run(side, folder, url, jobs))
    return totals[MANY_JOBS].per_job(totals[FEW_JOBS])


def on_postgres(side: Path, folder: Path, server: PostgresServer) -> Costs:
    """Cost of a job in a database of its own."""
    totals, counts = {}, Server(server)
    for jobs in (FEW_JOBS, MANY_JOBS):
        url = server.create_database()
        database = url.partition("?")[0].rpartition("/")[2]
        migrate(side, url)
        before = counts.totals(database)
        instructions = run(side, folder, url, jobs)
        spent = [after - first for first, after in zip(before, counts.totals(database), strict=True)]
        totals[jobs] = Costs(instructions, *spent)
    return totals[MANY_JOBS].per_job(totals[FEW_JOBS])


def migrate(side: Path, url: str) -> None:
    """Install the schema of a checkout."""
    environment = {**os.environ, "STOWHAND_CONNECTION": url, "PYTHONPATH": f"{side}/src"}
    command = [str(side / ".venv" / "bin" / "python"), "-m", "stowhand.cli", "migrate"]
    subprocess.run(command, env=environment, check=True, capture_output=True)


@contextmanager
def scratch() -> Iterator[Path]:
    """Provide a folder with the module of the task."""
    with tempfile.TemporaryDirectory(prefix="stowhand-costs-") as folder:
        (Path(folder) / "cost_tasks.py").write_text(TASKS)
        yield Path(folder)


@click.command()
@click.option("--side", "sides", multiple=True, type=click.Path(path_type=Path), help="Another checkout.")
@click.option("--store", type=click.Choice(["postgres", "sqlite"]), multiple=True, default=["postgres", "sqlite"])
@click.option("--rounds", default=3, show_default=True)
def main(sides: tuple[Path, ...], store: tuple[str, ...], rounds: int) -> None:
    """Count in turns. Print medians per job, and ratios to the first side."""
    if shutil.which("valgrind") is None:
        raise click.ClickException("valgrind is not on PATH; install Debian's package valgrind")
    checkouts = [*(side.resolve() for side in sides), HERE]
    names = [field.name for field in fields(Costs)]
    settings = {"autovacuum": "off", "full_page_writes": "off", "log_statement": "all"}
    click.echo(f"{'':<44}" + "".join(f"{name:>14}" for name in names))
    with PostgresServer(find_postgres()[0], **settings) as server, scratch() as folder:
        for place in store:
            found: dict[Path, list[Costs]] = {side: [] for side in checkouts}
            for number in range(rounds):
                for side in checkouts if number % 2 == 0 else reversed(checkouts):
                    is_postgres = place == "postgres"
                    cost = on_postgres(side, folder, server) if is_postgres else on_sqlite(side, folder)
                    found[side].append(cost)
            medians = {
                side: [statistics.median(each) for each in zip(*(run.values for run in runs), strict=True)]
                for side, runs in found.items()
            }
            for side, values in medians.items():
                click.echo(f"{place + ' ' + str(side):<44}" + "".join(f"{value:>14,.3f}" for value in values))
            first = medians[checkouts[0]]
            for side in checkouts[1:]:
                ratios = [value / base if base else 1.0 for value, base in zip(medians[side], first, strict=True)]
                click.echo(f"{'  ratio to the first side':<44}" + "".join(f"{ratio:>14.3f}" for ratio in ratios))


if __name__ == "__main__":
    main()
