"""procrastinate on psycopg, 30 jobs at once, finished ones deleted."""

from __future__ import annotations

import asyncio
import contextlib
import sys

import probe
import procrastinate
import psycopg

app = procrastinate.App(connector=procrastinate.PsycopgConnector(max_size=20))  # PGHOST and its kin name the server


@app.task(name="noop")
async def noop(number: int = 0, sent: float = 0.0) -> None:  # noqa: ARG001  a payload of the usual size
    """The job that does nothing."""
    probe.hit(sent)


async def setup() -> None:
    """Install, and empty the tables."""
    with contextlib.suppress(procrastinate.exceptions.ConnectorException):
        await app.schema_manager.apply_schema_async()
    async with await psycopg.AsyncConnection.connect(autocommit=True) as connection:
        await connection.execute("truncate procrastinate_jobs cascade")


async def many(count: int) -> None:
    """In batches of 1000."""
    for start in range(0, count, 1000):
        await noop.batch_defer_async(*[{"number": number} for number in range(start, min(start + 1000, count))])


async def main(verb: str, count: int) -> None:
    """Do it, and say how long it took."""
    async with app.open_async():
        match verb:
            case "setup":
                await setup()
            case "worker":
                await app.run_worker_async(concurrency=30, delete_jobs="always")
            case "one":
                with probe.timed(count):
                    for number in range(count):
                        await noop.defer_async(number=number)
            case "many":
                with probe.timed(count):
                    await many(count)
            case "slowly":
                await probe.send_slowly(count, lambda number, sent: noop.defer_async(number=number, sent=sent))


asyncio.run(main(sys.argv[1], int(sys.argv[2])))
