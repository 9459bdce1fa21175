"""Leases live by the boot's monotonic clock: a stepped wall clock changes nothing, another boot ends them all."""

from __future__ import annotations

import sqlite3
from datetime import timedelta
from pathlib import Path

import pytest

from stowhand import clock
from stowhand.jobs.job import NewJob, State
from stowhand.jobs.lifecycle import MIN_SUSPECT_RESETS
from stowhand.protocols.queue_store import Reschedule
from stowhand.protocols.store import StoreOptions
from stowhand.stores.sqlite.queue import SqliteStore, moment
from tests.conftest import Run
from tests.stores.sqlite.programs import request


@pytest.mark.parametrize("days", [-4000, 4000])
def test_stepping_the_wall_clock_resets_no_job(
    path: Path, run: Run, monkeypatch: pytest.MonkeyPatch, days: int
) -> None:
    async def scenario() -> None:
        store = SqliteStore(path)
        await store.jobs.enqueue(NewJob(task="t"))
        (claim,) = await store.claim(request())
        monkeypatch.setattr(moment, "wall_clock", lambda: clock.wall_clock() + timedelta(days=days))
        heartbeats = store.heartbeats()
        assert await heartbeats.reset_stalled(0.0) == []
        assert (await heartbeats.beat([claim.lease], 30.0)).lost == frozenset()
        await heartbeats.close()
        await store.close()

    run(scenario())


def test_a_lease_ends_by_the_monotonic_clock(path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        store = SqliteStore(path)
        await store.jobs.enqueue(NewJob(task="t"))
        (claim,) = await store.claim(request(lease=300.0))
        ahead = 350.0
        monkeypatch.setattr(moment, "_monotonic", lambda: clock.SystemClock().monotonic() + ahead)
        heartbeats = store.heartbeats()
        assert await heartbeats.reset_stalled(100.0) == []
        ahead = 401.0
        (reset,) = await heartbeats.reset_stalled(100.0)
        assert (reset.job_id, reset.state, reset.worker) == (claim.lease.job_id, State.QUEUED, "w")
        await heartbeats.close()
        await store.close()

    run(scenario())


def test_another_boot_ends_every_lease(path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        store = SqliteStore(path)
        await store.jobs.enqueue(NewJob(task="t"))
        # After a boot the monotonic clock begins again, so by its number this lease would still hold for days.
        (claim,) = await store.claim(request(lease=500_000.0))
        heartbeats = store.heartbeats()
        assert await heartbeats.reset_stalled(10.0) == []
        monkeypatch.setattr(moment, "boot_id", lambda: "another boot")
        (reset,) = await heartbeats.reset_stalled(10.0)
        assert reset.job_id == claim.lease.job_id
        await heartbeats.close()
        await store.close()

    run(scenario())


def test_administrative_actions_check_leases_by_boot_and_monotonic_clock(
    path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        store = SqliteStore(path)
        await store.jobs.enqueue_many([NewJob(task="t"), NewJob(task="t")])
        ids = [claim.lease.job_id for claim in await store.claim(request(2, lease=500_000.0))]
        monkeypatch.setattr(moment, "wall_clock", lambda: clock.wall_clock() + timedelta(days=4000))
        assert await store.admin.complete_jobs(ids) == []
        monkeypatch.setattr(moment, "boot_id", lambda: "another boot")
        assert [job.state for job in await store.admin.complete_jobs(ids[:1])] == [State.COMPLETED]
        (job,) = await store.admin.reschedule_jobs(ids, Reschedule(priority=3))
        assert (job.id, job.state, job.attempts, job.resets) == (ids[1], State.QUEUED, 0, 1)
        await store.close()

    run(scenario())


def test_a_boot_has_one_name() -> None:
    assert moment.boot_id() == moment.boot_id() != ""


def test_times_keep_every_microsecond() -> None:
    for stored in (-62135596800000000, -1, 0, 1_766_000_000_123_457, 253402300799999999):
        assert moment.to_micros(moment.to_datetime(stored)) == stored


def test_the_indexes_use_the_number_of_resets_of_a_suspect(template: Path) -> None:
    connection = sqlite3.connect(template)
    texts = [text for (text,) in connection.execute("SELECT sql FROM sqlite_schema WHERE sql LIKE '%resets >%'")]
    connection.close()
    assert any(f"resets >= {MIN_SUSPECT_RESETS}" in text for text in texts)


def test_run_times_beyond_the_range_of_datetime_are_refused(path: Path, run: Run) -> None:
    async def scenario() -> None:
        far = moment.to_datetime(253402300799999999)
        store = SqliteStore(path, StoreOptions(pinned=lambda: far))
        with pytest.raises(ValueError, match="years 1 to 9999"):
            await store.jobs.enqueue(NewJob(task="t", delay=10.0))
        assert sum((await store.inspect.counts()).values()) == 0
        await store.close()

    run(scenario())
