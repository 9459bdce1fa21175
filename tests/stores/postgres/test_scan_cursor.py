"""The adaptive cursor: where a claim begins."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from stowhand.jobs.job import NewJob
from stowhand.stores.postgres.queue import PostgresStore
from stowhand.stores.postgres.queue.claims import SLOW_CLAIM_SECONDS, ScanCursor
from tests.stores.postgres.verbs import claim

HERE = (0, datetime(2030, 1, 1, tzinfo=UTC), 7)
THERE = (0, datetime(2030, 1, 1, tzinfo=UTC), 9)


def test_a_quick_claim_leaves_no_cursor() -> None:
    cursor = ScanCursor()
    cursor.record(None, HERE, jobs=1, duration_seconds=SLOW_CLAIM_SECONDS / 2, now=1.0)
    assert cursor.start(1.0) is None


def test_a_slow_claim_is_followed_by_claims_after_its_position_and_then_from_the_beginning() -> None:
    cursor = ScanCursor()
    cursor.record(None, HERE, jobs=1, duration_seconds=0.1, now=1.0)
    assert cursor.start(1.0) == HERE
    cursor.record(HERE, THERE, jobs=1, duration_seconds=0.001, now=1.1)
    assert cursor.start(1.2) == THERE
    assert cursor.start(1.0 + 0.9) is None
    cursor.record(None, HERE, jobs=1, duration_seconds=0.001, now=2.0)
    assert cursor.start(2.0) is None


def test_an_empty_claim_at_the_cursor_is_followed_by_one_from_the_beginning() -> None:
    cursor = ScanCursor()
    cursor.record(None, HERE, jobs=1, duration_seconds=10.0, now=1.0)
    assert cursor.record(HERE, None, jobs=0, duration_seconds=0.001, now=1.1) is True
    assert cursor.start(1.1) is None


def test_a_job_before_the_cursor_is_found_when_none_is_after_it(store: PostgresStore, run: Any) -> None:
    async def story() -> None:
        await store.jobs.enqueue_many(NewJob(task="t") for _ in range(2))
        assert len(await claim(store, 1)) == 1
        (cursor,) = store._claims._scan_cursors.values()
        last = await store.jobs.enqueue(NewJob(task="t", priority=5))
        cursor.record(None, (5, last.run_at, last.id), jobs=1, duration_seconds=1000.0, now=1e9)
        assert cursor.start(1e9) is not None
        urgent = await store.jobs.enqueue(NewJob(task="t", priority=-1))
        assert (await claim(store, 1))[0].lease.job_id == urgent.id
        await store.close()

    run(story())
