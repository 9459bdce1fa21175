"""The worker: indexes the Python files of an upload, all of them in one transaction, or none.

DATABASE_URL=postgresql:///shop python examples/uploads/worker.py
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass

from symbols import python_files, read_symbols

from stowhand import NonRetryable, Worker, WorkerOptions, run_all
from stowhand.commands import step
from stowhand.handler import Attempt
from stowhand.table import Budget, Resetter, ResetterOptions, TableOptions, TableStore

PAUSE = float(os.environ.get("PAUSE", "0"))
"""Seconds between two files, to have something to look at (and to kill)."""
BUDGET = 1_000_000
"""Bytes of Python that are indexed at once, in however many uploads. A bigger upload is never claimed."""


@dataclass
class Upload:
    """What the handler wants to know of a row; the columns are read by these names."""

    id: int
    folder: str
    size: int


store: TableStore[Upload] = TableStore(
    os.environ.get("DATABASE_URL", "postgresql:///shop"),
    TableOptions(
        name="uploads",
        table_name="uploads_example.uploads",
        record=Upload,
        max_num_retries=1,
        retry_after=0.2,
        # A dead worker is noticed in seconds here. In earnest: 30 s and more.
        stalled_max_age=2,
        heartbeat_interval=0.5,
        transactional=True,
    ),
)

budget = Budget(BUDGET, cost=lambda upload: upload.size, column="size")


async def index(ctx: Attempt[Upload], upload: Upload) -> None:
    """What it inserts and that the upload is completed are committed together."""
    async with step(ctx, "find") as entry:
        files = await asyncio.to_thread(python_files, upload.folder)
        entry.write(f"{len(files)} files, {upload.size} bytes\n")
    async with step(ctx, "index", ["index", upload.folder]) as entry:
        for file in files:
            try:
                symbols = await asyncio.to_thread(read_symbols, file, upload.folder)
            except SyntaxError as error:
                # No further attempt will make it Python.
                raise NonRetryable(f"{file.name}, line {error.lineno}: {error.msg}") from error
            rows = [(upload.id, *symbol) for symbol in symbols]
            async with ctx.connection.cursor() as cursor:
                await cursor.executemany("INSERT INTO uploads_example.symbols VALUES (%s, %s, %s, %s, %s)", rows)
            entry.write(f"{file.name}: {len(symbols)} symbols\n")
            await asyncio.sleep(PAUSE)


async def main() -> None:
    worker = Worker(store, budget.around(index), WorkerOptions(concurrency=4, poll_interval=0.2, grace=5))
    resetter = Resetter(store, ResetterOptions(name="uploads", interval=0.5))
    async with store:
        await run_all(worker, resetter)
    print(f"at most {budget.peak:.0f} of {budget.capacity:.0f} bytes at once", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
