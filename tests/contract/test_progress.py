"""Progress: kept for valid leases alone, over retries, and cleared at the end."""

from __future__ import annotations

import pytest

from stowhand.jobs.job import State
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import Retry
from stowhand.protocols.attempt import Progress, ProgressKeeper
from tests.contract.needs import needs
from tests.contract.store_harness import CANCELED, ERRORED, FAILED, StoreHarness, judged

pytestmark = needs("progress")


async def keep(harness: StoreHarness, *notes: Progress) -> None:
    assert isinstance(harness.heartbeats, ProgressKeeper)
    await harness.heartbeats.keep_progress(notes, 3.0)


async def progress_of(harness: StoreHarness, lease: Lease) -> tuple[float | None, str | None]:
    job = await harness.job(lease.job_id)
    return job.progress, job.progress_text


async def test_it_is_kept_for_several_jobs_at_once(harness: StoreHarness) -> None:
    one, other, silent = [await harness.start(task) for task in "abc"]
    await keep(harness, Progress(other, 1.0, None), Progress(one, 0.4, "page 40 of 100, \N{SNOWMAN}"))
    assert await progress_of(harness, one) == (0.4, "page 40 of 100, \N{SNOWMAN}")
    assert await progress_of(harness, other) == (1.0, None)
    assert await progress_of(harness, silent) == (None, None)


async def test_a_lease_that_is_over_changes_nothing(harness: StoreHarness) -> None:
    stale = await harness.start()
    await harness.settle(stale, judged(Retry("no", 0.0)))
    held = await harness.take()
    await keep(harness, Progress(held, 0.1, "new"), Progress(stale, 0.9, "old"))
    assert await progress_of(harness, held) == (0.1, "new")
    await harness.settle(held)
    await keep(harness, Progress(held, 0.2, "late"))
    assert await progress_of(harness, held) == (None, None)


async def test_a_beat_and_a_retry_keep_it(harness: StoreHarness) -> None:
    lease = await harness.start()
    await keep(harness, Progress(lease, 0.4, "so far"))
    await harness.heartbeats.beat([lease], 30.0)
    await harness.settle(lease, ERRORED)
    assert await progress_of(harness, lease) == (0.4, "so far")
    await harness.pass_time(100)
    await harness.take()
    assert await progress_of(harness, lease) == (0.4, "so far")


@pytest.mark.parametrize("how", [CANCELED, FAILED])
async def test_the_end_clears_it(harness: StoreHarness, how: object) -> None:
    lease = await harness.start()
    await keep(harness, Progress(lease, 0.4, "so far"))
    await harness.settle(lease, how)  # type: ignore[arg-type]
    assert await progress_of(harness, lease) == (None, None)


async def test_an_end_by_hand_and_a_newer_job_clear_it(harness: StoreHarness) -> None:
    by_hand, keyed = await harness.start("a"), await harness.start("b", key="k")
    await keep(harness, Progress(by_hand, 0.4, "so far"), Progress(keyed, 0.4, "so far"))
    await harness.settle(keyed, ERRORED)
    await harness.add("b", key="k")
    await harness.pass_time(100)
    await harness.store.admin.permanently_fail_jobs([by_hand.job_id])
    assert (await harness.job(by_hand.job_id)).state is State.FAILED
    assert await progress_of(harness, by_hand) == (None, None)
    assert await progress_of(harness, keyed) == (None, None)
