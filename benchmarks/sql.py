"""Cost of the schema's SQL on the server, compared with graphile-worker's: python benchmarks/sql.py --help

One durable PostgreSQL with a database for each contender, in turn (A B C, A B C, …), one connection each. Jobs a
second, and microseconds of the backend's processor time a job, which say more where the machine is shared. Medians.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import psutil
import psycopg
from psycopg.conninfo import conninfo_to_dict

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]
sys.path = [place for place in sys.path if Path(place) != Path(__file__).parent]  # its peers/ would hide this package

from benchmarks.contenders import NPM_PACKAGES, install  # noqa: E402
from benchmarks.report import Runs, by_column, save  # noqa: E402
from stowhand.jobs.job import NewJob  # noqa: E402
from stowhand.protocols.store import StoreOptions  # noqa: E402
from stowhand.stores.postgres.queue.context import PostgresContext  # noqa: E402
from stowhand.stores.postgres.queue.new_jobs import bulk_values, plain_values  # noqa: E402
from tests.support.binaries import find_postgres  # noqa: E402
from tests.support.servers import PostgresServer  # noqa: E402

Connection = psycopg.Connection[Any]
Measure = Callable[[Connection, int], int]
"""Runs about so many jobs, gives how many."""

PEER_NAME = "graphile-worker 0.13.0"
JOBS_PER_CLAIM, JOBS_PER_CALL = 100, 1000
ONE_BY_ONE, BULK = 20, 5
"""Of the jobs one in so many is committed by itself; and so many times as many are written by the thousand."""
ENQUEUE_LOOP = """
do $$ begin
  for n in 1..{jobs} loop
    perform {schema}.add_job('noop', json_build_object('number', n){rest});
  end loop;
end $$"""
ADD_JOB = {
    "add_job, plain": "",
    "add_job, keyed": ", job_key := 'key' || n",
    "add_job, in one of ten queues": ", queue_name := 'q' || n % 10",
}
COPY = "copy stowhand.live (task, payload, created_at, updated_at) from stdin"
INSERT = """
insert into stowhand.live (task, payload, run_at, max_attempts, priority, created_at, updated_at)
select 'noop', json_build_object('number', n), now(), 25, 0, now(), now() from generate_series(1, 1000) n"""
CLAIM_ONE = """
update stowhand.live set state = 'processing', attempts = attempts + 1, epoch = epoch + 1, token = %s, worker = 'w',
  lease_until = now() + interval '30 s', started_at = now() where id = %s"""


@dataclass(frozen=True)
class Contender:
    """Contender: a schema in its own database."""

    name: str
    url: str
    schema: str
    tables: str
    measures: dict[str, Measure]
    wal: bool


def in_a_loop(schema: str, rest: str) -> Measure:
    """Call ``add_job`` as a trigger or a migration does: all in one transaction."""

    def run(connection: Connection, jobs: int) -> int:
        connection.execute(ENQUEUE_LOOP.format(jobs=jobs, schema=schema, rest=rest).encode())
        return jobs

    return run


def one_by_one(connection: Connection, jobs: int) -> int:
    """Run the statement of ``App.enqueue``, and commit each."""
    statement = statements()["enqueue_plain"]
    for number in range(jobs // ONE_BY_ONE):
        values = plain_values(NewJob(task="noop", payload=f'{{"number":{number}}}'), None)
        connection.execute(statement, values, prepare=True)
    return jobs // ONE_BY_ONE


def claimed_by_id(connection: Connection, jobs: int) -> int:
    """Run one UPDATE for each, in a transaction that commits asynchronously, as claims do."""
    one_by_one(connection, jobs)
    connection.execute("set synchronous_commit = off")
    for (job,) in connection.execute("select id from stowhand.live order by id").fetchall():
        connection.execute(CLAIM_ONE.encode(), (uuid.uuid4(), job), prepare=True)
    connection.execute("reset synchronous_commit")
    return jobs // ONE_BY_ONE


def in_bulk(connection: Connection, jobs: int) -> int:
    """Call the function of ``App.enqueue_many``, a thousand jobs at a time."""
    statement = statements()["enqueue_many"]
    for _ in range(BULK * jobs // JOBS_PER_CALL):
        chunk = [NewJob(task="noop", payload=f'{{"number":{number}}}') for number in range(JOBS_PER_CALL)]
        connection.execute(statement, bulk_values(chunk, None), prepare=True)
    return BULK * jobs // JOBS_PER_CALL * JOBS_PER_CALL


def inserted(connection: Connection, jobs: int) -> int:
    """Write rows into the table by INSERT … SELECT, a thousand at a time."""
    for _ in range(BULK * jobs // JOBS_PER_CALL):
        connection.execute(INSERT)
    return BULK * jobs // JOBS_PER_CALL * JOBS_PER_CALL


def copied(connection: Connection, jobs: int) -> int:
    """Write rows into the table by COPY."""
    for _ in range(BULK * jobs // JOBS_PER_CALL):
        with connection.cursor().copy(COPY) as copy:
            copy.write("".join(f'noop\t{{"number":{n}}}\tnow\tnow\n' for n in range(JOBS_PER_CALL)))
    return BULK * jobs // JOBS_PER_CALL * JOBS_PER_CALL


def through_its_life(connection: Connection, jobs: int, *, keep: bool) -> int:
    """Enqueue in bulk, claim and settle a hundred at a time."""
    done = in_bulk(connection, jobs)
    claim = "select id from stowhand.claim('worker-somewhere-12345-0123456789ab.1', %s, %s, 30, '{noop}', null, false)"
    settle = "select count(*) from stowhand.settle_completed(%s::bigint[], %s::uuid[], %s)"
    for _ in range(done // JOBS_PER_CLAIM):
        token = uuid.uuid4()
        ids = sorted(row[0] for row in connection.execute(claim.encode(), (token, JOBS_PER_CLAIM)))
        connection.execute(settle.encode(), (ids, [token] * len(ids), keep))
    return done


def statements() -> dict[str, bytes]:
    """Return the statements of the package."""
    return PostgresContext("postgresql:///nowhere", StoreOptions()).statements


MEASURES: dict[str, Measure] = {
    "enqueue one by one": one_by_one,
    "enqueue and claim by id": claimed_by_id,
    "enqueue_many of 1000": in_bulk,
    "insert of 1000": inserted,
    "copy of 1000": copied,
}


def contenders(server: PostgresServer, beside: tuple[str, ...], peer: bool) -> Iterator[Contender]:
    """Return this checkout, the named checkouts and the peer."""
    trees = {"stowhand": ROOT} | {Path(tree).name: Path(tree) for tree in beside}
    for name, tree in trees.items():
        url = server.create_database()
        program = [str(tree / ".venv" / "bin" / "python"), "-m", "stowhand.cli", "migrate", "-c", url]
        subprocess.run(program, check=True, capture_output=True, cwd=tree)
        ours = {what: in_a_loop("stowhand", rest) for what, rest in ADD_JOB.items()}
        yield Contender(name, url, "stowhand", "stowhand.live, stowhand.history", ours | MEASURES, wal=True)
    if peer:
        url = server.create_database()
        install({"graphile-13"})
        place = conninfo_to_dict(url)
        program = ["node", str(NPM_PACKAGES["graphile-13"][0] / "node_modules/graphile-worker/dist/cli.js")]
        address = f"postgres://{place['user']}@/{place['dbname']}?host={place['host']}&port={place['port']}"
        subprocess.run([*program, "--schema-only", "-c", address], check=True, capture_output=True)
        theirs = {what: in_a_loop("graphile_worker", rest) for what, rest in ADD_JOB.items()}
        yield Contender(PEER_NAME, url, "graphile_worker", "graphile_worker.jobs", theirs, wal=False)


def rate_and_work(contender: Contender, measure: Measure, jobs: int) -> tuple[float, float]:
    """Return jobs per second, and processor microseconds of the backend for each."""
    with psycopg.connect(contender.url, autocommit=True) as connection:
        connection.execute(f"truncate {contender.tables}".encode())
        measure(connection, JOBS_PER_CALL)  # plans and caches
        connection.execute(f"truncate {contender.tables}".encode())
        connection.execute("checkpoint")
        backend = psutil.Process(connection.info.backend_pid)
        began, before = time.perf_counter(), sum(backend.cpu_times()[:2])
        done = measure(connection, jobs)
        took, work = time.perf_counter() - began, sum(backend.cpu_times()[:2]) - before
    return done / took, 1e6 * work / done


def wal_of(contender: Contender, jobs: int, *, keep: bool) -> tuple[float, float]:
    """Return the WAL bytes of a job over its whole life, page images included, and no second figure."""
    with psycopg.connect(contender.url, autocommit=True) as connection:
        connection.execute("alter table stowhand.live set (autovacuum_enabled = off)")
        connection.execute(f"truncate {contender.tables}".encode())
        through_its_life(connection, JOBS_PER_CALL, keep=keep)
        connection.execute("vacuum stowhand.live")
        connection.execute("checkpoint")
        begin = connection.execute("select pg_current_wal_insert_lsn()").fetchone()
        assert begin is not None
        done = through_its_life(connection, jobs, keep=keep)
        row = connection.execute("select pg_current_wal_insert_lsn() - %s::pg_lsn", begin).fetchone()
        assert row is not None
        return float(row[0]) / done, 0.0


@click.command()
@click.option("--jobs", default=20_000, show_default=True)
@click.option("--runs", default=5, show_default=True)
@click.option("--only", multiple=True, help="Measures whose names contain this.")
@click.option("--beside", multiple=True, type=click.Path(exists=True), help="Another work tree with a .venv.")
@click.option("--peer/--no-peer", default=True, show_default=True)
@click.option("--json", "file", type=click.Path(path_type=Path), help="Where the figures of all runs are written.")
def main(jobs: int, runs: int, only: tuple[str, ...], beside: tuple[str, ...], peer: bool, file: Path | None) -> None:
    """Print a line for each measure and contender, and the ratio to the first contender."""
    rates: dict[str, dict[str, list[tuple[float, float]]]] = {}
    with PostgresServer(find_postgres()[0], durable=True, shared_buffers="256MB") as server:
        them = list(contenders(server, beside, peer))
        for _ in range(runs):
            for what in [*ADD_JOB, *MEASURES, "WAL, history off", "WAL, history on"]:
                if only and not any(word in what for word in only):
                    continue
                for one in them:
                    if what in one.measures:
                        figure = rate_and_work(one, one.measures[what], jobs)
                    elif what.startswith("WAL") and one.wal:
                        figure = wal_of(one, jobs, keep=what.endswith("on"))
                    else:
                        continue
                    rates.setdefault(what, {}).setdefault(one.name, []).append(figure)
    for what, found in rates.items():
        unit = "bytes a job" if what.startswith("WAL") else "jobs/s, us of the backend a job"
        click.echo(f"\n{what} [{unit}]")
        plain = [statistics.median(figures) for figures in zip(*found["stowhand"], strict=True)]
        for name, each in found.items():
            rate, work = (statistics.median(figures) for figures in zip(*each, strict=True))
            ratio = f"{plain[0] / rate:>8.2f}" + (f"{plain[1] / work:>8.2f}" if work else "")
            click.echo(f"  {name:<26}{rate:>12,.0f}" + (f"{work:>9.1f}" if work else "") + f"   ours/it{ratio}")
    figures: Runs = {}
    for what, found in rates.items():
        columns = ("bytes a job",) if what.startswith("WAL") else ("jobs/s", "processor time of the server, us a job")
        figures |= by_column(what, columns, found)
    save(figures, file)


if __name__ == "__main__":
    main()
