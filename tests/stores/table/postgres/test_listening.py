"""Waking by NOTIFY, and living without it."""

from __future__ import annotations

import asyncio

import pytest

from stowhand.errors import StoreUnreachable
from stowhand.stores.postgres.shared.listener import Listener
from tests.stores.table.postgres.jobs import Jobs, Served

CHANNEL = 'the "jobs"'


def listener(served: Served) -> Listener:
    return served.table._listener


async def listening(served: Served) -> None:
    assert await served.table.wait(5.0)  # only just connected: there may be work
    assert served.table.is_listening


async def woken(jobs: Jobs, served: Served) -> bool:
    waiting = asyncio.create_task(served.table.wait(5.0))
    await asyncio.sleep(0.01)
    jobs.sql("select pg_notify(%s, '')", CHANNEL)
    return await waiting


async def test_a_notification_wakes(jobs: Jobs) -> None:
    async with jobs.served(notify_channel=CHANNEL) as served:
        await listening(served)
        assert not await served.table.wait(0.01)
        assert await woken(jobs, served)
        jobs.sql("select pg_notify(%s, '')", CHANNEL)  # while nobody waits
        assert await served.table.wait(5.0)
        assert not await served.table.wait(0.01)


async def test_without_a_channel_it_only_sleeps(jobs: Jobs) -> None:
    async with jobs.served() as served:
        assert not await served.table.wait(0.01)
        assert not served.table.is_listening


async def test_a_lost_connection_is_reopened(jobs: Jobs) -> None:
    async with jobs.served(notify_channel=CHANNEL) as served:
        await listening(served)
        before = listener(served).connection
        jobs.hang_up("listen")
        await listening(served)  # at once: it worked a moment ago
        assert listener(served).connection is not before
        assert await woken(jobs, served)


async def test_a_connection_that_no_longer_listens_is_detected(jobs: Jobs) -> None:
    async with jobs.served(notify_channel=CHANNEL) as served:
        await listening(served)
        connection = listener(served).connection
        assert connection is not None
        await connection.execute(b"unlisten *")
        listener(served).proof_interval_seconds = 0.0
        await listening(served)  # what was sent meanwhile reached nobody
        assert listener(served).connection is not connection
        assert await woken(jobs, served)


async def test_while_it_cannot_connect_it_only_sleeps(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(role: str) -> None:
        calls.append(role)
        raise StoreUnreachable("no")

    calls: list[str] = []
    async with jobs.served(notify_channel=CHANNEL) as served:
        await listening(served)
        with monkeypatch.context() as patched:
            patched.setattr(listener(served)._dialer, "dial", refused)
            jobs.hang_up("listen")
            while served.table.is_listening:
                assert not await served.table.wait(0.01)
            assert not await served.table.wait(0.01)
            assert len(calls) == 1, "the next try is half a second away"
        listener(served)._retry_at = 0.0
        await listening(served)
        assert await woken(jobs, served)


async def test_a_cancelled_wait_keeps_listening(jobs: Jobs) -> None:
    async with jobs.served(notify_channel=CHANNEL) as served:
        await listening(served)
        waiting = asyncio.create_task(served.table.wait(5.0))
        await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await woken(jobs, served)
