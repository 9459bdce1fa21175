"""A hundred thousand jobs in one call: in order, all or none, and not all in memory."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stowhand.errors import InvalidJob
from stowhand.jobs.job import KeyMode, NewJob
from stowhand.protocols.queue_store import JobFilter
from stowhand.stores.sqlite.queue import SqliteStore

MANY = 100_000
GROWTH = 40
"""Megabytes that a hundred thousand jobs of a kilobyte may add to a process."""

PROGRAM = """
import asyncio, resource, sys
from stowhand.jobs.job import NewJob
from stowhand.stores.sqlite.queue import SqliteStore

async def main() -> None:
    store = SqliteStore(sys.argv[1])
    await store.schema.install()
    await store.open()
    await store.jobs.enqueue_many([NewJob(task="warm")])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ids = await store.jobs.enqueue_many(NewJob(task="t", payload='"' + "x" * 1000 + '"') for _ in range({many}))
    print(len(ids), (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
    await store.close()

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in kilobytes on Linux only")
def test_a_hundred_thousand_jobs_need_little_memory(tmp_path: Path) -> None:
    program = PROGRAM.replace("{many}", str(MANY))
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "q.db")], capture_output=True, text=True, check=True
    )
    count, growth = (int(word) for word in done.stdout.split())
    assert count == MANY
    assert growth < GROWTH


def test_ids_and_payloads_keep_their_order_through_the_file(tmp_path: Path) -> None:
    def jobs() -> Iterator[NewJob]:
        for number in range(12_000):
            key = f"k{number}" if number % 4001 == 0 else None
            yield NewJob(task="t", payload=str(number), key=key, key_mode=KeyMode.REPLACE, flags=("a",), priority=3)

    async def scenario() -> None:
        store = SqliteStore(tmp_path / "q.db")
        await store.schema.install()
        await store.open()
        ids = await store.jobs.enqueue_many(jobs())
        assert ids == sorted(ids)
        rows = await store.inspect.list(JobFilter(limit=20_000))
        assert [(job.id, job.payload_text) for job in rows] == [(one, str(n)) for n, one in enumerate(ids)]
        assert {job.flags for job in rows} == {("a",)}
        assert [job.key for job in rows if job.key] == ["k0", "k4001", "k8002"]
        await store.close()

    asyncio.run(scenario())


def test_a_repeated_key_in_a_large_batch_writes_nothing(tmp_path: Path) -> None:
    def jobs() -> Iterator[NewJob]:
        for number in range(9_000):
            yield NewJob(task="t", key="twice" if number in (1, 8_999) else None)

    async def scenario() -> None:
        store = SqliteStore(tmp_path / "q.db")
        await store.schema.install()
        await store.open()
        with pytest.raises(InvalidJob, match="duplicate key 'twice' in one call"):
            await store.jobs.enqueue_many(jobs())
        assert not await store.inspect.list(JobFilter())
        await store.close()

    asyncio.run(scenario())
