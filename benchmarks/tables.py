"""Cost of a user's table as a queue: python benchmarks/tables.py --help

    claims    a claim of one record and its settlement, in one table with few rows and in tables where something is in
              the way; they take turns, so that whatever else the machine does falls on all. What counts is the ratio.
    drains    records per second of one worker, on a table, on one with transactional handlers, on our own queue, and
              within a budget: by its column, which the claim sums; by a condition, one record at a time

One durable PostgreSQL is started for the run, and nothing is left behind.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import click

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]
sys.path = [place for place in sys.path if Path(place) != Path(__file__).parent]

import psycopg  # noqa: E402

from benchmarks.report import Runs, by_column, save  # noqa: E402
from stowhand import NewJob, Worker, WorkerOptions  # noqa: E402
from stowhand.events import Events  # noqa: E402
from stowhand.handler import Attempt  # noqa: E402
from stowhand.jobs.lifecycle import COMPLETED  # noqa: E402
from stowhand.protocols.store import ClaimRequest  # noqa: E402
from stowhand.stores.api import StoreOptions, open_store  # noqa: E402
from stowhand.stores.table.ddl import DdlOptions, full_ddl  # noqa: E402
from stowhand.stores.table.names import read_shape  # noqa: E402
from stowhand.table import Budget, TableOptions, TableStore, Where, sql  # noqa: E402  # noqa: E402
from tests.support.binaries import find_postgres  # noqa: E402
from tests.support.servers import PostgresServer  # noqa: E402

IN_THE_WAY = {
    "plain": "",
    "finished": "insert into jobs (state, finished_at, size, rank) select 'completed', now(), 1, 0"
    " from generate_series(1, {many})",
    "not due": "insert into jobs (process_after, size, rank) select now() + interval '1 day', 1, 0"
    " from generate_series(1, {some})",
    "locked": "insert into jobs (state, size, rank) select 'queued', 1, -1 from generate_series(1, {some})",
    "conditions": "insert into jobs (state, finished_at, size, rank) select 'completed', now(), 1, 0"
    " from generate_series(1, {many})",
}
QUEUED = "insert into jobs (size, rank) select 1 + n % 10, n from generate_series(1, {queued}) n"


class Site:
    """Database with the table ``jobs``."""

    def __init__(self, server: PostgresServer, name: str, sizes: dict[str, int]) -> None:
        self.name, self.url = name, server.create_database()
        self.connection = psycopg.connect(self.url, autocommit=True)
        self.run(full_ddl(DdlOptions(shape=read_shape("jobs", None, {}))))
        self.run("alter table jobs add size int not null default 1, add rank int not null default 0")
        self.run("create index on jobs (rank, id) where state in ('queued', 'errored')")
        if IN_THE_WAY[name]:
            self.run(IN_THE_WAY[name].format(**sizes))
        self.run(QUEUED.format(**sizes))
        self.run("vacuum analyze jobs")
        if name == "locked":
            self.holder = psycopg.connect(self.url)
            self.holder.execute("select from jobs where rank = -1 for update")
        order: Any = sql("j.rank, j.id")
        options: TableOptions[Any] = TableOptions(name="jobs", table_name="jobs j", order_by_expression=order)
        self.store = TableStore(self.url, options)
        self.conditions = (Where("size", "<=", 5), sql("j.size * 2 < {}", 100)) if name == "conditions" else ()

    def run(self, statement: str) -> None:
        self.connection.execute(statement.encode())

    async def one(self) -> float:
        """Return the milliseconds of one claim of one record and of its settlement."""
        request = ClaimRequest(worker="w", token=str(uuid.uuid4()), limit=1, lease=30.0, conditions=self.conditions)
        began = time.perf_counter()
        (claim,) = await self.store.claim(request)
        await self.store.settle([(claim.lease, COMPLETED)])
        return (time.perf_counter() - began) * 1000


async def claims(server: PostgresServer, sizes: dict[str, int], rounds: int) -> Runs:
    """Measure claims on each site in turn. Return median milliseconds."""
    sites = [Site(server, name, sizes) for name in IN_THE_WAY]
    took: dict[str, list[float]] = {site.name: [] for site in sites}
    for number in range(rounds):
        for site in sites:
            spent = await site.one()
            if number >= 20:  # connections are made, plans are cached
                took[site.name].append(spent)
    plain = statistics.median(took["plain"])
    click.echo(
        f"claim + settle of one record, {rounds} rounds\n{'':12} {'median ms':>10} {'of plain':>9} {'p95 ms':>8}"
    )
    for name, spent in took.items():
        middle = statistics.median(spent)
        click.echo(f"{name:12} {middle:10.2f} {middle / plain:9.2f} {sorted(spent)[int(len(spent) * 0.95)]:8.2f}")
    for site in sites:
        await site.store.close()
    return {"claim and settle one record, ms": {name: [statistics.median(spent)] for name, spent in took.items()}}


class Drained(NamedTuple):
    """Figures of a drain."""

    rate: float
    """Records a second."""
    processor: float
    """Microseconds of this process for each."""


async def nothing(_ctx: Attempt[Any], _record: Any) -> None:
    """Handler that does nothing."""


async def writes(ctx: Attempt[Any], _: Any) -> None:
    """Handler that writes in its transaction."""
    await ctx.connection.execute("select 1")


async def drain(store: Any, handler: Any, jobs: int, concurrency: int) -> Drained:
    """Drain with one worker in this process."""
    worker = Worker(store, handler, WorkerOptions(once=True, concurrency=concurrency), events=Events())  # no log
    began, spent = time.perf_counter(), time.process_time()
    await worker.run()
    return Drained(jobs / (time.perf_counter() - began), 1e6 * (time.process_time() - spent) / jobs)


async def drains(server: PostgresServer, jobs: int, runs: int, concurrency: int) -> Runs:
    """Drain each kind in turn."""

    async def budgeted(column: Any) -> Drained:
        budget: Budget[Any] = Budget(concurrency, cost=lambda record: record["size"], column=column)
        return await table(False, budget.around(nothing))

    async def table(transactional: bool, handler: Any = None) -> Drained:
        url = server.create_database()
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(full_ddl(DdlOptions(shape=read_shape("jobs", None, {}))).encode())
            connection.execute(b"alter table jobs add size int not null default 1")
            connection.execute(f"insert into jobs (state) select 'queued' from generate_series(1, {jobs})".encode())
        options: TableOptions[Any] = TableOptions(name="jobs", table_name="jobs", transactional=transactional)
        async with TableStore(url, options) as store:
            return await drain(store, handler or (writes if transactional else nothing), jobs, concurrency)

    async def queue() -> Drained:
        store = open_store(server.create_database(), StoreOptions(history=None))
        await store.schema.install()
        await store.jobs.enqueue_many(NewJob(task="t") for _ in range(jobs))
        try:
            return await drain(store, nothing, jobs, concurrency)
        finally:
            await store.close()

    kinds: dict[str, Callable[[], Awaitable[Drained]]] = {
        "our own queue": queue,
        "a table": lambda: table(False),
        "a table, transactional": lambda: table(True),
        "a budget's column": lambda: budgeted("size"),
        "a budget's condition": lambda: budgeted(lambda left: Where("size", "<=", left)),
    }
    found: dict[str, list[Drained]] = {name: [] for name in kinds}
    for _ in range(runs):
        for name, run in kinds.items():
            found[name].append(await run())
    click.echo(
        f"\ndrain of {jobs} by one worker, {concurrency} at once, {runs} runs\n"
        f"{'':24} {'per second':>10} {'us each':>10}"
    )
    for name, each in found.items():
        rate, processor = (statistics.median(column) for column in zip(*each, strict=True))
        click.echo(f"{name:24} {rate:10.0f} {processor:10.1f}   ({', '.join(f'{one.rate:.0f}' for one in each)})")
    return by_column("drain", ("records/s", "processor time of the worker, us a record"), found)


@click.command()
@click.option("--finished", default=1_000_000, help="Finished records in the table.")
@click.option("--ahead", default=10_000, help="Records ahead of the free ones: not due, or locked.")
@click.option("--rounds", default=220, help="Claims per site; the first 20 do not count.")
@click.option("--jobs", default=10_000, help="Records of a drain.")
@click.option("--runs", default=3, help="Drains of each kind.")
@click.option("--concurrency", default=10)
@click.option("--json", "file", type=click.Path(path_type=Path), help="Where the figures of all runs are written.")
def main(finished: int, ahead: int, rounds: int, jobs: int, runs: int, concurrency: int, file: Path | None) -> None:
    """Measure claims and drains."""
    with PostgresServer(find_postgres()[0], durable=True, shared_buffers="256MB") as server:
        claimed = asyncio.run(claims(server, {"many": finished, "some": ahead, "queued": rounds * 3}, rounds))
        save(claimed | asyncio.run(drains(server, jobs, runs, concurrency)), file)


if __name__ == "__main__":
    main()
