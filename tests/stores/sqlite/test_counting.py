"""Counting takes as long as there are rows. No worker waits for it, and it ends when nobody wants it any more."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from stowhand.jobs.job import NewJob
from stowhand.stores.kernel import question
from stowhand.stores.sqlite.queue import SqliteStore

ROWS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 200000000)"
LONG = f"{ROWS} SELECT count(*) FROM n -- %s"
"""A minute's work, more or less."""
PATIENCE = 10.0


def test_counts_delay_no_other_call_and_end_when_their_callers_are_cancelled(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(question, "_BOUNDED_COUNT", LONG)

    async def look() -> None:
        store = SqliteStore(path)
        counting = asyncio.ensure_future(store.inspect.counts())
        try:
            await asyncio.sleep(0.05)  # it may have begun or not: what follows holds either way
            job = await store.jobs.enqueue(NewJob(task="t"))
            async with asyncio.timeout(PATIENCE):
                assert await store.next_due(None) == 0
                assert (await store.schema.status()).installed
                assert await store.jobs.get(job.id) is not None
        finally:
            counting.cancel()
            await asyncio.wait([counting])
        async with asyncio.timeout(PATIENCE):
            await store.close()

    asyncio.run(look())
