"""Cost of stored failed attempts for a claim and a heartbeat: python benchmarks/tries.py

Bytes of the server's log (WAL) of one claim and of one beat, in a transaction each: of jobs that have never failed, and
of jobs that have failed ten times and bear ten entries. Whole pages are not logged, so a figure is what the change
itself costs. `tests/stores/postgres/test_tries.py` holds the ratio of a claim to 1.2.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import uuid
from pathlib import Path

import click
import psycopg

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "src")]
sys.path = [place for place in sys.path if Path(place) != Path(__file__).parent]  # its peers/ would hide a module

from tests.support.binaries import find_postgres  # noqa: E402
from tests.support.servers import PostgresServer  # noqa: E402

HERE = Path(__file__).parents[1]
ERRORS = {
    "one line": "ValueError: no such customer: 4711",
    "a traceback": "ValueError: no such customer: 4711\n" + '  File "/srv/shop/tasks/mail.py", line 12, in mail\n' * 12,
}
CLAIM = "select id from stowhand.claim('w', %s::uuid, 1, 30, null, null, false)"
BEAT = "select * from stowhand.beat(%s::bigint[], %s::uuid[], 30)"
FAIL = """
    select * from stowhand.settle_attempts(%s::bigint[], %s::uuid[], '{errored}', '{0}', '{f}', array[%s],
      '{ValueError}', '{null}', '{null}', true)"""
WAL = "select (pg_current_wal_insert_lsn() - '0/0')::bigint"
FAILURES_PER_JOB = 10


def figures(connection: psycopg.Connection[tuple[int, ...]], jobs: int, error: str | None) -> tuple[float, float]:
    """Return medians of a claim and of a heartbeat. ``error``: text with which each job has failed ten times."""

    def bytes_of(statement: str, *values: object) -> tuple[int, list[tuple[int, ...]]]:
        (before,) = connection.execute(WAL).fetchall()[0]
        found = connection.execute(statement.encode(), values).fetchall()
        (after,) = connection.execute(WAL).fetchall()[0]
        return after - before, found

    claims, beats = [], []
    for _ in range(jobs):
        connection.execute("select stowhand.add_job('t', '{\"customer\": 4711}')")
        for _ in range(FAILURES_PER_JOB if error is not None else 0):
            token = str(uuid.uuid4())
            ((job,),) = connection.execute(CLAIM, [token]).fetchall()
            connection.execute(FAIL.encode(), ([job], [token], error))
        token = str(uuid.uuid4())
        wal, ((job,),) = bytes_of(CLAIM, token)
        claims.append(wal)
        beats.append(bytes_of(BEAT, [job], [token])[0])
        connection.execute("select stowhand.settle_completed(%s::bigint[], %s::uuid[], false)", ([job], [token]))
    return statistics.median(claims), statistics.median(beats)


@click.command()
@click.option("--jobs", default=300, show_default=True)
def main(jobs: int) -> None:
    """Measure each kind of job. Print its ratio to a job that has never failed."""
    with PostgresServer(find_postgres()[0], full_page_writes="off", autovacuum="off") as server:
        url = server.create_database()
        environment = {**os.environ, "STOWHAND_CONNECTION": url, "PYTHONPATH": f"{HERE}/src"}
        subprocess.run(
            [sys.executable, "-m", "stowhand.cli", "migrate"], env=environment, check=True, capture_output=True
        )
        with psycopg.connect(url, autocommit=True) as connection:
            plain = figures(connection, jobs, None)
            click.echo(f"{'':<28}{'claim':>8}{'beat':>8}   bytes")
            click.echo(f"{'never failed':<28}" + "".join(f"{one:>8.0f}" for one in plain))
            for name, error in ERRORS.items():
                found = figures(connection, jobs, error)
                ratios = "".join(f"{one / other:>8.2f}" for one, other in zip(found, plain, strict=True))
                click.echo(f"{f'failed ten times, {name}':<28}" + "".join(f"{one:>8.0f}" for one in found) + ratios)


if __name__ == "__main__":
    main()
