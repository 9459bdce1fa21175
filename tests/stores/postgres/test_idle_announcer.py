"""Only those who sleep are woken, and nobody sleeps through work."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import psycopg
import pytest

from stowhand.errors import StoreUnreachable
from stowhand.jobs.job import Job, NewJob
from stowhand.protocols.attempt import Attempt
from stowhand.protocols.options import WorkerOptions
from stowhand.protocols.store import Foreign, StoreOptions
from stowhand.stores.postgres.queue import PostgresStore
from stowhand.stores.postgres.queue.context import PostgresContext
from stowhand.stores.postgres.queue.idle_announcement import (
    BUSY_CLAIMS,
    BUSY_JOBS,
    BUSY_RECLAIM_SECONDS,
    RECLAIM_DELAYS_SECONDS,
    WINDOW_SECONDS,
    IdleAnnouncement,
)
from stowhand.stores.postgres.queue.new_jobs import plain_values
from stowhand.worker.worker import Worker
from tests.stores.postgres.conftest import Sql
from tests.stores.postgres.verbs import claim, cut_off
from tests.worker.worker_harness import handler_of

JOB = NewJob(task="t")


def should_sleep(announcement: IdleAnnouncement) -> bool:
    return announcement.should_sleep


def announcement_of(store: PostgresStore) -> IdleAnnouncement:
    return store._claims._announcement


def sleeps(store: PostgresStore) -> bool:
    return announcement_of(store).is_asleep


# -- when --------------------------------------------------------------------------------------------


def test_a_new_worker_is_announced_as_idle() -> None:
    assert should_sleep(IdleAnnouncement({}))


def test_a_worker_that_gets_many_jobs_is_busy_and_claims_again_soon() -> None:
    announcement = IdleAnnouncement({})
    announcement.note_claim(BUSY_JOBS, 10.0)
    announcement.note_claim(0, 10.1)
    assert not should_sleep(announcement)
    assert announcement.next_recheck_at() == 10.1 + BUSY_RECLAIM_SECONDS
    assert not announcement.take_recheck(10.1)
    assert announcement.take_recheck(10.1 + BUSY_RECLAIM_SECONDS)
    assert announcement.next_recheck_at() == float("inf"), "a look is looked once"


def test_a_worker_without_further_jobs_becomes_idle() -> None:
    announcement = IdleAnnouncement({})
    announcement.note_claim(BUSY_JOBS, 10.0)
    announcement.note_claim(0, 10.0 + WINDOW_SECONDS)
    assert not should_sleep(announcement)
    announcement.note_claim(0, 10.0 + 3 * WINDOW_SECONDS)
    assert should_sleep(announcement)
    assert announcement.next_recheck_at() == float("inf")


def test_a_worker_with_jobs_in_every_claim_is_busy_at_any_rate() -> None:
    announcement = IdleAnnouncement({})
    for second in range(BUSY_CLAIMS):
        assert should_sleep(announcement)
        announcement.note_claim(1, float(second))
    assert not should_sleep(announcement)
    announcement.note_claim(0, 100.0)
    assert should_sleep(announcement)


def test_a_job_now_and_then_leaves_the_worker_idle() -> None:
    announcement = IdleAnnouncement({})
    for second in range(100):
        announcement.note_claim(1, float(second))
        announcement.note_claim(0, second + 0.01)
        assert should_sleep(announcement)


def test_many_notifications_without_jobs_make_the_worker_busy_for_a_while() -> None:
    announcement = IdleAnnouncement({})
    for number in range(BUSY_JOBS):
        assert should_sleep(announcement)
        announcement.note_wakeup(10.0 + number / 1000)
        announcement.note_claim(0, 10.0 + number / 1000)
    assert not should_sleep(announcement)
    announcement.note_claim(0, 20.0)
    assert should_sleep(announcement)


def test_an_idle_worker_claims_twice_more() -> None:
    announcement = IdleAnnouncement({})
    announcement.note_claim(0, 10.0)
    announcement.note_asleep(10.0)
    for seconds in RECLAIM_DELAYS_SECONDS:
        assert announcement.next_recheck_at() == 10.0 + seconds
        assert announcement.take_recheck(10.0 + seconds)
    assert announcement.next_recheck_at() == float("inf")


# -- whom --------------------------------------------------------------------------------------------


@contextmanager
def listening(url: str) -> Iterator[psycopg.Connection[Any]]:
    """Somebody who hears every notification, and whom nobody has to wake."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute('listen "stowhand:wake"')
        yield connection


def heard(connection: psycopg.Connection[Any]) -> int:
    """How many came since the last question; a statement's answer comes after them."""
    connection.execute("select")
    return len(list(connection.notifies(timeout=0)))


@asynccontextmanager
async def asleep(store: PostgresStore) -> AsyncIterator[asyncio.Task[bool]]:
    """The store waits, and others can see that."""
    assert await store.wait(5.0) is True, "it has only just begun to listen"
    assert sleeps(store)
    waiting = asyncio.create_task(store.wait(30.0))
    await asyncio.sleep(0)
    yield waiting
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


def test_an_enqueue_notifies_only_if_a_worker_is_idle(store: PostgresStore, postgres_url: str, run: Any) -> None:
    async def story() -> None:
        with listening(postgres_url) as bystander:
            await store.jobs.enqueue(JOB)
            assert heard(bystander) == 0
            async with asleep(store) as waiting:
                await store.jobs.enqueue(JOB)
                assert await asyncio.wait_for(waiting, 20) is True
                assert heard(bystander) == 1
            await store.close()

    run(story())


def test_sql_and_many_jobs_at_once_always_notify(store: PostgresStore, postgres_url: str, sql: Sql, run: Any) -> None:
    """They may be part of a long transaction: whoever falls asleep before its end could not be seen by them."""

    async def story() -> None:
        with listening(postgres_url) as bystander:
            sql("select stowhand.add_job('t')")
            assert heard(bystander) == 1
            await store.jobs.enqueue_many([JOB, JOB])
            assert heard(bystander) == 1
        await store.close()

    run(story())


def test_a_closed_store_leaves_no_announcement(store: PostgresStore, postgres_url: str, sql: Sql, run: Any) -> None:
    async def story() -> None:
        with listening(postgres_url) as bystander:
            async with asleep(store):
                pass
            await store.close()
            while sql("select from pg_stat_activity where application_name like 'stowhand:listen%'"):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await store.jobs.enqueue(JOB)
            assert heard(bystander) == 0
        await store.close()

    run(story())


def test_an_idle_worker_is_announced_again_on_its_next_connection(
    store: PostgresStore, connection: psycopg.Connection[Any], run: Any
) -> None:
    async def story() -> None:
        async with asleep(store) as waiting:
            assert cut_off(connection, "stowhand:listen%") == 1
            assert await asyncio.wait_for(waiting, 20) is True
            waiting = asyncio.create_task(store.wait(30.0))
            await store.jobs.enqueue(JOB)
            assert await asyncio.wait_for(waiting, 20) is True
        await store.close()

    run(story())


def test_a_worker_whose_connection_broke_while_busy_is_announced_as_idle_later(
    store: PostgresStore, postgres_url: str, run: Any
) -> None:
    async def story() -> None:
        with listening(postgres_url) as bystander:
            async with asleep(store) as waiting:
                announcement_of(store).note_claim(BUSY_JOBS, 0.0)
                assert cut_off(bystander, "stowhand:listen%") == 1
                assert await asyncio.wait_for(waiting, 20) is True
                announcement_of(store).note_claim(0, 10.0)
                assert await asyncio.wait_for(store.wait(30.0), 20) is True, "now that it can be seen: one more look"
                heard(bystander)
                await store.jobs.enqueue(JOB)
                assert heard(bystander) == 1
            await store.close()

    run(story())


def test_endless_notifications_without_jobs_do_not_keep_a_worker_busy(
    store: PostgresStore, sql: Sql, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stowhand.stores.postgres.queue.idle_announcement.WINDOW_SECONDS", 60.0)  # a slow machine

    async def story() -> None:
        async with asleep(store) as waiting:
            for _ in range(10 * BUSY_JOBS):
                sql("select stowhand.add_job('t', run_at := now() + interval '1 day')")
                assert await asyncio.wait_for(waiting, 20) is True
                waiting = asyncio.create_task(store.wait(30.0))
                await asyncio.sleep(0)
                if not should_sleep(announcement_of(store)):
                    break
            else:
                raise AssertionError("each was a reason to look")
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        await store.close()

    run(story(), timeout=60)


def test_a_busy_worker_is_not_notified_and_is_again_when_idle(
    store: PostgresStore, postgres_url: str, run: Any
) -> None:
    async def story() -> None:
        with listening(postgres_url) as bystander:
            async with asleep(store) as waiting:
                await store.jobs.enqueue_many(JOB for _ in range(2 * BUSY_JOBS))
                assert await asyncio.wait_for(waiting, 20) is True
                waiting = asyncio.create_task(store.wait(30.0))
                assert len(await claim(store, 2 * BUSY_JOBS)) == 2 * BUSY_JOBS
                while sleeps(store):  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
                heard(bystander)
                await store.jobs.enqueue(JOB)
                assert heard(bystander) == 0
                assert len(await claim(store, 2)) == 1
                while not sleeps(store):  # as a worker does: it looks when told to
                    if not await claim(store, 1):
                        await asyncio.wait_for(waiting, 20)
                        waiting = asyncio.create_task(store.wait(30.0))
                await store.jobs.enqueue(JOB)
                assert heard(bystander) == 1
                waiting.cancel()
                await asyncio.gather(waiting, return_exceptions=True)
            await store.close()

    run(story())


# -- what is in between ------------------------------------------------------------------------------


def test_a_job_that_commits_while_its_worker_becomes_idle_is_found_by_a_later_claim(
    store: PostgresStore, postgres_url: str, run: Any
) -> None:
    """It saw nobody asleep, so it notified nobody; and the worker did not see it yet when it looked."""
    statement = PostgresContext(postgres_url, StoreOptions()).statements["enqueue_plain"]

    async def story() -> None:
        with psycopg.connect(postgres_url) as slow:
            slow.execute(statement, plain_values(JOB, None))
            async with asleep(store) as waiting:
                assert await claim(store) == []
                slow.commit()
                assert await asyncio.wait_for(waiting, 20) is True, "neither heard nor looked"
                assert len(await claim(store)) == 1
            await store.close()

    run(story(), timeout=30)


@pytest.mark.parametrize("seed", range(3))
def test_no_job_waits_for_the_poll_however_they_come(
    store: PostgresStore, postgres_url: str, run: Any, seed: int
) -> None:
    """Two workers that poll every ten minutes, and jobs in bursts and drips around the moments of falling asleep."""
    dice = random.Random(seed)
    done: set[int] = set()

    async def act(attempt: Attempt[Job]) -> None:
        done.add(attempt.record.id)

    async def produce() -> list[int]:
        ids = []
        for _ in range(12):
            ids += [(await store.jobs.enqueue(JOB)).id for _ in range(dice.choice([1, 3, 80]))]
            await asyncio.sleep(dice.choice([0.0, 0.001, 0.01, 0.06, WINDOW_SECONDS, 2 * WINDOW_SECONDS]))
        return ids

    async def story() -> None:
        stores = [PostgresStore(postgres_url) for _ in range(2)]
        workers = [Worker(one, handler_of(act), WorkerOptions(poll_interval=600.0)) for one in stores]
        running = [asyncio.create_task(worker.run()) for worker in workers]
        produced = await asyncio.gather(*(produce() for _ in range(4)))
        wanted = {job_id for ids in produced for job_id in ids}
        async with asyncio.timeout(40):
            while not wanted <= done:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        for worker in workers:
            worker.stop()
        await asyncio.gather(*running)
        for one in (*stores, store):
            await one.close()

    run(story(), timeout=100)


# -- idle --------------------------------------------------------------------------------------------


def test_an_idle_worker_needs_one_statement(
    store: PostgresStore, sql: Sql, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stowhand.stores.postgres.queue.claims._ANSWER_SECONDS", 100.0)

    async def story() -> None:
        async with asleep(store):
            assert await claim(store) == []
            sql("select stowhand.add_job('t', run_at := now() + interval '1 hour')")
            assert await claim(store, own_leases=()) == []
            await store._claims._link.close()
            assert await claim(store, suspects=True) == []
            due = await store.next_due(None)
            assert store.foreign() == Foreign(none_expired=True), "nobody else holds anything"
            assert store._claims._link._connection is None, "none of them had to be asked"
            assert due is not None
            assert 3500 < due <= 3600
            assert await store.next_due(("other",)) is None, "of other tasks nothing was said"
        await store.close()

    run(story())


def test_a_worker_needs_one_statement_after_an_unfilled_claim(
    store: PostgresStore, sql: Sql, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that comes alone costs two questions, not four; and the next one is not kept waiting behind them."""
    monkeypatch.setattr("stowhand.stores.postgres.queue.claims._ANSWER_SECONDS", 100.0)

    async def story() -> None:
        async with asleep(store) as waiting:
            sql("select stowhand.add_job('t')")
            assert await asyncio.wait_for(waiting, 20) is True
            assert len(await claim(store, 5)) == 1
            store._claims._scan_cursors.clear()  # on a slow machine the claim was as slow as one of a sick table
            asked_there = store._listener._proven_at
            assert await claim(store, 5, own_leases=()) == []
            assert store._listener._proven_at == asked_there, "it is not idle yet"
            await store._claims._link.close()
            assert await claim(store, suspects=True) == []
            assert await store.next_due(None) == 86_400.0, "nothing within a day"
            assert not store._claims._link.connected, "neither had to be asked"
        await store.close()

    run(story())


def test_a_poll_uses_the_listening_connection_and_tests_it(store: PostgresStore, sql: Sql, run: Any) -> None:
    """One question for both; notifications that come along with its answer are heard."""

    async def story() -> None:
        async with asleep(store) as waiting:
            assert await claim(store) == []
            store._listener._proven_at = float("-inf")
            await store._claims._link.close()
            assert await claim(store) == []
            assert store._claims._link._connection is None
            assert store._listener._proven_at > 0, "no ping is due now"
            sql("select stowhand.add_job('t')")
            assert await asyncio.wait_for(waiting, 20) is True
            assert len(await claim(store)) == 1
        await store.close()

    run(story())


def test_a_poll_detects_that_its_connection_no_longer_listens(store: PostgresStore, sql: Sql, run: Any) -> None:
    async def story() -> None:
        async with asleep(store) as waiting:
            assert await claim(store) == []
            connection = store._listener._connection
            assert connection is not None
            await store._listener.ask(b"unlisten *", ())
            assert not waiting.done()
            assert await claim(store) == []
            assert await asyncio.wait_for(waiting, 20) is True, "what was sent meanwhile went unheard"
            waiting = asyncio.create_task(store.wait(30.0))
            while not sleeps(store):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            sql("select stowhand.add_job('t')")
            assert await asyncio.wait_for(waiting, 20) is True
            assert len(await claim(store)) == 1
        await store.close()

    run(story())


def test_a_poll_on_a_broken_connection_fails_once(
    store: PostgresStore, connection: psycopg.Connection[Any], run: Any
) -> None:
    async def story() -> None:
        async with asleep(store) as waiting:
            assert await claim(store) == []
            polling = asyncio.create_task(claim(store))
            await asyncio.sleep(0)
            assert store._listener._use_lock.locked(), "it is on its way"
            assert cut_off(connection, "stowhand:listen%") == 1
            answers = await asyncio.gather(polling, return_exceptions=True)
            assert isinstance(answers[0], StoreUnreachable) or not answers[0], "an answer may be faster than the cut"
            assert await asyncio.wait_for(waiting, 20) is True
            assert await claim(store) == []
            assert store.is_listening
        await store.close()

    run(story())


def test_a_poll_returns_whether_a_foreign_lease_has_expired(store: PostgresStore, sql: Sql, run: Any) -> None:
    async def story() -> None:
        async with asleep(store):
            sql("select stowhand.add_job('t')")
            await claim(store, lease=3600.0)
            for late in (False, True):
                assert await claim(store) == []
                assert await claim(store, own_leases=()) == []
                await store.next_due(None)
                seen = store.foreign()
                assert seen is not None
                assert seen.none_expired is not late
                assert (seen.expires_in is None) is late
                sql("update stowhand.live set lease_until = now() - interval '1 hour'")
        await store.close()

    run(story())


def test_a_listening_connection_of_another_login_is_not_used_for_polls(postgres_url: str, run: Any) -> None:
    async def story() -> None:
        store = PostgresStore(postgres_url, StoreOptions(listen_url=postgres_url))
        async with asleep(store):
            for _ in range(3):
                assert await claim(store) == []
            assert store._claims._link.connected
        await store.close()

    run(story())


def test_suspects_are_claimed_only_if_there_is_one(store: PostgresStore, sql: Sql, run: Any) -> None:
    async def story() -> None:
        async with asleep(store):
            assert await claim(store) == []
            sql("select stowhand.add_job('t')")
            sql("update stowhand.live set resets = 2")
            assert await claim(store) == []
            assert len(await claim(store, suspects=True)) == 1
        await store.close()

    run(story())
