"""A worker on a user's table, in earnest: real rows, real time, short intervals. (Cases 6.6 of the founding system.)"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from stowhand.clock import sleep_blocking, stopwatch, wall_clock
from stowhand.errors import ConfigurationError, LeaseLost, NonRetryable, TableUnsuitable
from stowhand.events import Event, Events, JobEnded, JobLost, JobsReset, JobStarted
from stowhand.jobs.lifecycle import AttemptOutcome
from stowhand.protocols.attempt import Attempt
from stowhand.protocols.options import WorkerOptions
from stowhand.protocols.store import Heartbeats
from stowhand.table import TableStore
from stowhand.worker.admission import Budget
from stowhand.worker.policy import Policy
from stowhand.worker.resetter import Resetter, ResetterOptions
from stowhand.worker.worker import Worker
from tests.conftest import Run
from tests.stores.table.conftest import Place
from tests.stores.table.harness import claimed, opened, options, until, worked_off

QUICK: dict[str, Any] = {"stalled_max_age": 60, "heartbeat_interval": 0.1}
"""Frequent beats; a lease that no pause of the machine outlasts."""
AGO = {"postgres": "now() - interval '{} seconds'", "sqlite": "datetime('now', '-{} seconds')"}


class ServedTable:
    """A worker at work on the place's table."""

    def __init__(self, store: TableStore[Any], worker: Worker, said: list[Event]) -> None:
        self.store, self.worker, self.said = store, worker, said
        self.running = asyncio.ensure_future(worker.run())

    def told(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.said if type(event) is kind]


@asynccontextmanager
async def at_work(
    place: Place, handle: Any, *, table: dict[str, Any] | None = None, **given: Any
) -> AsyncIterator[ServedTable]:
    said, events = list[Event](), Events()
    for kind in (JobStarted, JobEnded, JobLost, JobsReset):
        events.on(kind, said.append)
    async with opened(place, **(QUICK | (table or {}))) as store:
        served = ServedTable(
            store, Worker(store, handle, WorkerOptions(poll_interval=0.05, **given), events=events), said
        )
        try:
            yield served
        finally:
            served.worker.stop(now=True)
            await served.running


async def nothing(ctx: Attempt[Any], record: Any) -> None: ...


def neglect(place: Place) -> None:
    """The record looks as if nobody had beaten for it for half its lease."""
    place.sql(f"UPDATE uploads SET last_heartbeat_at = {AGO[place.kind].format(30)}")


def beaten(place: Place) -> bool:
    """Somebody has, since."""
    return place.sql(f"SELECT id FROM uploads WHERE last_heartbeat_at > {AGO[place.kind].format(25)}") != []


@asynccontextmanager
async def seen_later(place: Place) -> AsyncIterator[Heartbeats]:
    """A heart that would reset a neglected record: it is three quarters of a lease ahead."""
    later = TableStore(place.url, options(**QUICK), _pinned=lambda: wall_clock() + timedelta(seconds=45))
    async with later:
        heartbeats = later.heartbeats()
        try:
            yield heartbeats
        finally:
            await heartbeats.close()


def test_progress_is_refused_with_what_to_do_instead(run: Run, place: Place) -> None:
    async def handle(ctx: Attempt[Any], record: Any) -> None:
        ctx.progress(0.4)

    async def story() -> None:
        place.add("a.py")
        async with at_work(place, handle) as served:
            await until(lambda: served.told(JobEnded), 60.0)
            (ended, *_) = served.told(JobEnded)
            assert "progress: this store keeps no progress" in ended.error
            assert "await ctx.store.add_execution_log_entry(…)" in ended.error

    run(story())


def test_records_run_and_their_rows_say_so(run: Run, place: Place) -> None:
    seen = []

    async def handle(ctx: Attempt[Any], record: Any) -> None:
        seen.append((record.path, record.size, ctx.lease.job_id == record.id))

    async def story() -> None:
        place.add("a.py", "b.py", size=7)
        async with opened(place) as store:
            await worked_off(store, handle)
        rows = place.sql("SELECT state, num_failures, failure_message, finished_at >= started_at FROM uploads")
        assert [tuple(row[:3]) for row in rows] == [("completed", 0, None)] * 2
        assert all(row[3] for row in rows)
        assert sorted(seen) == [("a.py", 7, True), ("b.py", 7, True)]

    run(story())


def test_errors_are_retried_as_often_as_the_table_says_and_hopeless_ones_never(run: Run, place: Place) -> None:
    tried: list[str] = []

    async def handle(ctx: Attempt[Any], record: Any) -> None:
        tried.append(record.path)
        raise NonRetryable("bad") if record.path == "hopeless" else ValueError("no")

    async def story() -> None:
        place.add("hopeless", "unlucky")
        async with at_work(place, handle, table={"max_num_retries": 2, "retry_after": 0.05}) as served:
            await until(lambda: place.states() == ["failed", "failed"])
            assert [event.outcome for event in served.told(JobEnded)].count(AttemptOutcome.RETRY) == 2
        assert sorted(tried) == ["hopeless"] + ["unlucky"] * 3
        assert place.sql("SELECT num_failures FROM uploads ORDER BY id") == [(1,), (3,)]

    run(story())


def test_without_retries_an_error_fails_at_once(run: Run, place: Place) -> None:
    async def handle(ctx: Attempt[Any], record: Any) -> None:
        raise ValueError("no")

    async def story() -> None:
        place.add("a")
        async with opened(place) as store:
            await worked_off(store, handle)
        ((state, message),) = place.sql("SELECT state, failure_message FROM uploads")
        assert (state, message.splitlines()[0]) == ("failed", "ValueError: no")

    run(story())


@pytest.mark.parametrize("slots", [1, 7])
def test_as_many_run_at_once_as_there_are_slots_and_never_more(run: Run, place: Place, slots: int) -> None:
    running = most = 0
    full = asyncio.Event()

    async def handle(ctx: Attempt[Any], record: Any) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == slots:
            full.set()
        await asyncio.wait_for(full.wait(), 10)
        await asyncio.sleep(0.02)
        running -= 1

    async def story() -> None:
        place.add(*"abcdefghijklmno")
        async with opened(place) as store:
            await Worker(store, handle, WorkerOptions(concurrency=slots, once=True)).run()
        assert (most, set(place.states())) == (slots, {"completed"})

    run(story())


def test_a_heartbeat_keeps_a_long_record_from_being_reset(run: Run, place: Place) -> None:
    over = asyncio.Event()

    async def handle(ctx: Attempt[Any], record: Any) -> None:
        await over.wait()

    async def story() -> None:
        place.add("long")
        async with at_work(place, handle) as served, seen_later(place) as heartbeats:
            await until(lambda: served.told(JobStarted))
            for _ in range(3):
                neglect(place)
                await until(lambda: beaten(place))
                assert not await heartbeats.reset_stalled(0.0)
            over.set()
            await until(lambda: place.states() == ["completed"])
            assert not served.told(JobLost)
        assert place.sql("SELECT num_resets FROM uploads") == [(0,)]

    run(story())


def test_a_resetter_revives_what_a_dead_worker_held_and_gives_up_after_so_often(run: Run, place: Place) -> None:
    async def story() -> None:
        place.add("orphan")
        table: dict[str, Any] = {"stalled_max_age": 0.3, "heartbeat_interval": 0.1, "max_resets": 2}
        table["reset_failure_message"] = "gone"
        async with opened(place, **table) as store:
            resetter = Resetter(store, ResetterOptions(interval=0.05))
            looking = asyncio.ensure_future(resetter.run())
            for resets in range(3):
                token = f"0000000{resets}-0000-4000-8000-000000000000"
                await until(lambda: place.states() == ["queued"])
                assert len(await claimed(store, token=token, suspects=resets >= 2)) == 1
            await until(lambda: place.states() == ["failed"])
            resetter.stop()
            await looking
        assert place.sql("SELECT num_resets, num_failures, failure_message FROM uploads") == [(2, 0, "gone")]

    run(story())


@pytest.mark.parametrize("how", ["UPDATE uploads SET cancel = true", "DELETE FROM uploads"])
def test_a_running_handler_is_stopped_soon_after_its_record_is_canceled_or_deleted(
    run: Run, place: Place, how: str
) -> None:
    reasons: list[str] = []
    begun = asyncio.Event()

    async def handle(ctx: Attempt[Any], record: Any) -> None:
        try:
            begun.set()
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            reasons.append(str(ctx.cancel_reason))
            raise

    async def story() -> None:
        place.add("unwanted")
        async with at_work(place, handle) as served:
            await begun.wait()
            place.sql(how)
            await until(lambda: reasons)  # long before its lease or the handler would have ended
            if "cancel" in how:
                await until(lambda: place.states() == ["canceled"])
                assert place.sql("SELECT num_failures FROM uploads") == [(0,)]
            else:
                await until(lambda: served.told(JobLost))

    run(story())


def test_a_queued_record_whose_cancel_is_set_is_never_started(run: Run, place: Place) -> None:
    async def story() -> None:
        place.add("unwanted", cancel=True)
        place.add("wanted")
        async with at_work(place, nothing) as served:
            await until(lambda: place.states() == ["canceled", "completed"])
            assert len(served.told(JobStarted)) == 1

    run(story())


def test_one_that_is_not_due_yet_is_canceled_by_the_next_sweep(run: Run, place: Place) -> None:
    async def story() -> None:
        place.add("unwanted", cancel=True, process_after="2999-01-01 00:00:00")
        async with at_work(place, nothing, sweep_interval=0.05):
            await until(lambda: place.states() == ["canceled"])

    run(story())


def test_a_worker_that_beats_rarely_hears_of_a_cancellation_within_the_tables_interval(run: Run, place: Place) -> None:
    async def story() -> None:
        table: dict[str, Any] = {"stalled_max_age": 60, "heartbeat_interval": None, "cancel_interval": 0.1}
        async with opened(place, **table) as store:
            assert Worker(store, nothing, WorkerOptions(heartbeat_interval=15)).options.heartbeat_interval == 0.1
            assert Worker(store, nothing).options.heartbeat_interval == 0.1
        async with opened(place, stalled_max_age=60, cancel_interval=30) as store:
            assert Worker(store, nothing, WorkerOptions(heartbeat_interval=15)).options.heartbeat_interval == 15
            assert Worker(store, nothing).options.heartbeat_interval == 20

    run(story())


def test_a_policy_that_says_nothing_of_the_wait_leaves_it_to_the_table(run: Run, place: Place) -> None:
    class Patient:
        async def handle(self, ctx: Attempt[Any], record: Any) -> None:
            raise ValueError("no")

        def policy(self, claim: Any) -> Policy:
            return Policy(timeout=5.0)

    async def story() -> None:
        place.add("unlucky")
        async with at_work(place, Patient(), table={"max_num_retries": 1, "retry_after": 3600}) as served:
            await until(lambda: place.states() == ["errored"])
            assert 3500 < (await served.store.next_due(None) or 0) <= 3600

    run(story())


def test_an_attempt_that_takes_too_long_is_ended_with_the_limit_in_its_message(run: Run, place: Place) -> None:
    async def handle(ctx: Attempt[Any], record: Any) -> None:
        await asyncio.sleep(30)

    async def story() -> None:
        place.add("slow")
        async with at_work(place, handle, timeout=0.05, table={"max_num_retries": 1, "retry_after": 60}):
            await until(lambda: place.states() == ["errored"])
        assert "longer than 0.05 s" in place.sql("SELECT failure_message FROM uploads")[0][0]

    run(story())


def test_a_handler_may_requeue_its_record_and_return(run: Run, place: Place) -> None:
    async def handle(ctx: Attempt[Any], record: Any) -> None:
        await ctx.store.requeue(record, timedelta(hours=1))

    async def story() -> None:
        place.add("later")
        async with at_work(place, handle) as served:
            await until(lambda: served.told(JobEnded))
            assert (served.told(JobLost), place.states()) == ([], ["queued"])
            assert 3500 < (await served.store.next_due(None) or 0) <= 3600
            (row,) = place.sql("SELECT num_failures, started_at FROM uploads")
            assert row == (0, None)

    run(story())


def test_a_requeue_does_not_stand_when_the_handler_then_raises(run: Run, place: Place) -> None:
    async def handle(ctx: Attempt[Any], record: Any) -> None:
        await ctx.store.requeue(record, 60)
        raise ValueError("after all")

    async def story() -> None:
        place.add("unlucky")
        async with at_work(place, handle):
            await until(lambda: place.states() == ["failed"])

    run(story())


def test_a_requeue_after_the_handler_has_ended_is_refused_and_changes_nothing(run: Run, place: Place) -> None:
    class Late:
        said: str = ""

        async def handle(self, ctx: Attempt[Any], record: Any) -> None: ...

        async def post_handle(self, ctx: Attempt[Any], record: Any) -> None:
            with pytest.raises(LeaseLost, match="its handler has finished"):
                await ctx.store.requeue(record)
            Late.said = "refused"

    async def story() -> None:
        place.add("done")
        async with opened(place) as store:
            await worked_off(store, Late())
        assert (Late.said, place.states()) == ("refused", ["completed"])

    run(story())


def test_a_budget_of_ten_holds_three_records_of_six_apart(run: Run, place: Place) -> None:
    budget: Budget[Any] = Budget(10, cost=lambda upload: upload.size, column="size")
    running: list[int] = []
    most = 0
    full = asyncio.Event()

    async def handle(ctx: Attempt[Any], record: Any) -> None:
        nonlocal most
        running.append(record.size)
        most = max(most, sum(running))
        if sum(running) == 10:
            full.set()
        await asyncio.wait_for(full.wait(), 10)
        await asyncio.sleep(0.05)
        running.remove(record.size)

    async def story() -> None:
        place.add("a", "b", "c", size=6)
        place.add("d", "e", size=4)
        async with at_work(place, budget.around(handle), concurrency=3):
            await until(lambda: set(place.states()) == {"completed"})
        assert (most, budget.peak, budget.taken) == (10, 10, 0)

    run(story())


def test_a_handler_that_never_lets_go_of_the_loop_still_keeps_its_record(run: Run, place: Place) -> None:
    hearts: list[Heartbeats] = []

    async def handle(ctx: Attempt[Any], record: Any) -> None:
        end = stopwatch() + 10.0
        for _ in range(3):
            neglect(place)
            while not beaten(place):
                assert stopwatch() < end, "nobody beats for it"
                sleep_blocking(0.02)
            assert not await hearts[0].reset_stalled(0.0)

    async def story() -> None:
        async with at_work(place, handle) as served, seen_later(place) as heartbeats:
            hearts.append(heartbeats)
            place.add("busy")
            await until(lambda: served.told(JobEnded))
            assert place.sql("SELECT state, num_resets FROM uploads") == [("completed", 0)]

    run(story())


def test_heartbeats_too_rare_for_the_table_are_refused_with_the_sum(run: Run, place: Place) -> None:
    async def story() -> None:
        async with opened(place, stalled_max_age=5) as store:
            with pytest.raises(ConfigurationError, match=r"stalled_max_age \(5 s\).*3 x 10 s = 30 s"):
                Worker(store, nothing, WorkerOptions(heartbeat_interval=10))

    run(story())


def test_a_worker_refuses_a_table_that_it_cannot_serve_before_it_touches_a_row(run: Run, place: Place) -> None:
    async def story() -> None:
        place.add("a")
        place.sql("ALTER TABLE uploads DROP COLUMN num_failures")
        store = TableStore(place.url, options())
        with pytest.raises(TableUnsuitable, match="num_failures"):
            await Worker(store, nothing, WorkerOptions(once=True)).run()
        await store.close()
        assert place.states() == ["queued"]

    run(story())


def test_a_worker_that_stops_gives_its_records_back_unspent(run: Run, place: Place) -> None:
    async def handle(ctx: Attempt[Any], record: Any) -> None:
        await asyncio.sleep(30)

    async def story() -> None:
        place.add("a", "b", "c")
        async with at_work(place, handle, concurrency=2) as served:
            await until(lambda: len(served.told(JobStarted)) == 2)
        assert place.sql("SELECT state, num_failures, num_resets FROM uploads") == [("queued", 0, 0)] * 3

    run(story())


def test_a_record_that_cannot_be_read_fails_alone(run: Run, place: Place) -> None:
    def scan(row: Any) -> str:
        if row[1] == "bad":
            raise ValueError("not a path")
        return str(row[1])

    async def story() -> None:
        place.add("good", "bad", "fine")
        values: dict[str, Any] = {"record": None, "scan": scan, "column_expressions": ["id", "path"], "record_id": len}
        async with opened(place, **values) as store:
            await worked_off(store, nothing)
        assert place.states() == ["completed", "failed", "completed"]
        message = place.sql("SELECT failure_message FROM uploads WHERE path = 'bad'")[0][0]
        assert message.startswith("the record could not be read: ValueError: not a path")

    run(story())
