"""pgqueuer on asyncpg and uvloop, in batches of 250 (its best here)."""

from __future__ import annotations

import contextlib
import json
import sys

import asyncpg
import probe
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries


async def main(verb: str, count: int) -> None:
    """The server is named by PGHOST and its kin."""
    connection = await asyncpg.connect()
    queries = Queries(AsyncpgDriver(connection))
    match verb:
        case "setup":
            with contextlib.suppress(asyncpg.DuplicateObjectError, asyncpg.DuplicateTableError):
                await queries.install()
            await connection.execute("truncate pgqueuer, pgqueuer_log")
        case "worker":
            await work(connection)
        case "one":
            with probe.timed(count):
                for number in range(count):
                    await queries.enqueue("noop", _payload(number))
        case "many":
            with probe.timed(count):
                for start in range(0, count, 1000):
                    payloads = [_payload(number) for number in range(start, min(start + 1000, count))]
                    await queries.enqueue(["noop"] * len(payloads), payloads, [0] * len(payloads))
        case "slowly":
            await probe.send_slowly(count, lambda number, sent: queries.enqueue("noop", _payload(number, sent)))


async def work(connection: asyncpg.Connection) -> None:
    """Until stopped by a signal."""
    worker = PgQueuer(AsyncpgDriver(connection))

    @worker.entrypoint("noop")
    async def noop(job: Job) -> None:
        probe.hit(json.loads(job.payload or b"{}").get("sent", 0.0))

    await worker.run(batch_size=250)


def _payload(number: int, sent: float = 0.0) -> bytes:
    return json.dumps({"number": number, "sent": sent} if sent else {"number": number}).encode()


uvloop.run(main(sys.argv[1], int(sys.argv[2])))
