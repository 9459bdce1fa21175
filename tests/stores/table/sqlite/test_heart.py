"""Beats, hand-backs and resets of records, by the columns that every program on the table has."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from stowhand.jobs.job import State
from stowhand.jobs.lease import ResetJob
from stowhand.jobs.lifecycle import COMPLETED
from stowhand.protocols.store import Verdict
from stowhand.stores.table.options import RESET_FAILURE_MESSAGE
from tests.conftest import Run
from tests.stores.table.sqlite.application import NOON, TABLE, Application, asking, claimed, keys, settled

Made = Callable[..., Application]


def test_a_beat_renews_what_is_held_and_tells_of_cancel(app: Application, run: Run) -> None:
    for _ in range(3):
        app.add()

    async def scenario() -> None:
        table = await app.served()
        one, two, three = (taken.lease for taken in await table.claim(asking(3)))
        app.sql("UPDATE uploads SET cancel = 'yes' WHERE id = ?", two.job_id)
        app.sql("DELETE FROM uploads WHERE id = ?", three.job_id)
        app.later(5)
        heartbeats = table.heartbeats()
        pulse = await heartbeats.beat([one, two, three], 30.0)
        assert pulse.lost == {(three.job_id, three.token)}
        assert pulse.canceled == {(two.job_id, two.token)}
        assert pulse.busy == frozenset()
        assert {at for (at,) in app.sql("SELECT last_heartbeat_at FROM uploads")} == {"2024-05-01 12:00:05.000000"}
        assert (await heartbeats.beat([], 30.0)).lost == frozenset()
        await heartbeats.close()

    run(scenario())


def test_keys_of_a_column_without_a_type_may_be_numbers_and_texts(made: Made, run: Run) -> None:
    app = made(TABLE.format(moment="TEXT").replace("id                INTEGER PRIMARY KEY", "id PRIMARY KEY"))
    for key in (1, "a", 2):
        app.add(id=key)

    async def scenario() -> None:
        table = await app.served()
        leases = [taken.lease for taken in await table.claim(asking(3))]
        heartbeats = table.heartbeats()
        assert (await heartbeats.beat(leases, 30.0)).lost == frozenset()
        await heartbeats.close()

    run(scenario())


def test_only_what_has_stalled_is_reset(app: Application, run: Run) -> None:
    def ago(seconds: float) -> str:
        return (NOON - timedelta(seconds=seconds)).isoformat()

    fresh = app.add(state="processing", last_heartbeat_at=ago(40))
    stale = app.add(state="processing", last_heartbeat_at=ago(40.001), num_failures=3)
    worn_out = app.add(state="processing", last_heartbeat_at=ago(99), num_resets=2)
    canceled = app.add(state="processing", last_heartbeat_at=ago(99), cancel=True)
    app.add(state="completed", last_heartbeat_at=ago(99))

    async def scenario() -> None:
        table = await app.served(max_resets=2)
        heartbeats = table.heartbeats()
        assert list(await heartbeats.reset_stalled(10.0)) == [
            ResetJob(stale, "uploads", State.QUEUED, None, 40.001),
            ResetJob(worn_out, "uploads", State.FAILED, None, 99.0),
            ResetJob(canceled, "uploads", State.CANCELED, None, 99.0),
        ]
        assert await heartbeats.reset_stalled(10.0) == []
        await heartbeats.close()

    run(scenario())
    assert app.states() == ["processing", "queued", "failed", "canceled", "completed"]
    back, gone = app.row(stale), app.row(worn_out)
    assert (back["num_resets"], back["num_failures"], back["started_at"]) == (1, 3, None)
    assert back["queued_at"] == "2024-05-01 12:00:00.000000"
    assert (gone["num_resets"], gone["failure_message"]) == (2, RESET_FAILURE_MESSAGE)
    assert gone["finished_at"] == "2024-05-01 12:00:00.000000"
    assert app.row(fresh)["num_resets"] == 0


@pytest.mark.parametrize("moment", ["REAL", "INTEGER"])
def test_a_lease_of_less_than_a_second_holds_to_its_end(made: Made, run: Run, moment: str) -> None:
    app = made(TABLE.format(moment=moment))
    app.now = NOON + timedelta(milliseconds=900)
    app.add()

    async def scenario() -> None:
        table = await app.served(stalled_max_age=0.25)
        await claimed(table)
        heartbeats = table.heartbeats()
        app.later(0.25)
        assert await heartbeats.reset_stalled(0.0) == []
        # A whole second stands for all of itself: never too early, up to one second late.
        app.later(0.001 if moment == "REAL" else 0.9)
        assert len(await heartbeats.reset_stalled(0.0)) == 1
        await heartbeats.close()

    run(scenario())


def test_whole_seconds_are_written_where_the_column_is_an_integer(made: Made, run: Run) -> None:
    app = made(TABLE.format(moment="INTEGER"))
    app.now = NOON + timedelta(milliseconds=900)
    key = app.add(queued_at=0)

    async def scenario() -> None:
        table = await app.served(max_num_retries=1)
        taken = await claimed(table)
        assert app.row(key)["started_at"] == NOON.timestamp()
        assert taken.lease.epoch == NOON.timestamp() * 1_000_000
        await table.queries.requeue(key, 0.05)
        assert app.row(key)["process_after"] == NOON.timestamp() + 1
        app.later(0.05)
        assert await keys(table) == []
        app.later(0.05)
        assert await keys(table) == [key]

    run(scenario())


def test_what_is_released_is_due_again_unspent(app: Application, run: Run) -> None:
    one = app.add(process_after="2024-05-01 11:00:00", queued_at="2024-05-01 10:00:00")
    two = app.add()

    async def scenario() -> None:
        table = await app.served()
        taken = [one.lease for one in await table.claim(asking(2))]
        app.sql("UPDATE uploads SET cancel = 1 WHERE id = ?", two)
        heartbeats = table.heartbeats()
        assert await heartbeats.release(taken) == ()
        await heartbeats.close()
        now = app.row(one)
        assert (now["state"], now["started_at"], now["worker_hostname"]) == ("queued", None, "host/1")
        assert (now["num_failures"], now["num_resets"]) == (0, 0)
        assert (now["queued_at"], now["process_after"]) == ("2024-05-01 10:00:00", "2024-05-01 11:00:00")
        assert app.states()[1] == "canceled"
        assert await table.settle([(lease, COMPLETED) for lease in taken]) == [Verdict.LOST] * 2

    run(scenario())


@pytest.mark.parametrize("mapped", [False, True])
def test_a_dead_worker_and_an_abandoned_claim_lose_what_they_hold(app: Application, run: Run, mapped: bool) -> None:
    app.sql("ALTER TABLE uploads ADD COLUMN holder TEXT")
    for _ in range(4):
        app.add()

    async def scenario() -> None:
        names = {"lease_token": "holder"} if mapped else {}
        table = await app.served(alternate_column_names=names)
        one = await claimed(table, worker="dead/1")
        two = await claimed(table, worker="dead/11")
        three = await claimed(table, worker="dead/11")
        app.sql("UPDATE uploads SET state = 'processing', worker_hostname = 'dead/1' WHERE id = 4")  # another program's
        heartbeats = table.heartbeats()
        assert [(job.job_id, job.worker) for job in await heartbeats.reset_worker("dead/1")] == [
            (one.lease.job_id, "dead/1")
        ]
        assert (await heartbeats.reset_lease(two.lease))[0].state == "queued"
        assert await heartbeats.reset_lease(two.lease) == []
        assert await heartbeats.abandon(three.lease.token)
        assert app.states() == ["queued", "queued", "queued", "processing"]
        assert app.sql("SELECT num_resets FROM uploads") == [(1,), (1,), (0,), (0,)]
        assert app.sql("SELECT count(*) FROM uploads WHERE holder IS NOT NULL OR worker_hostname GLOB '*-*-*'") == [
            (0,)
        ]
        assert await settled(table, one.lease, COMPLETED) == [Verdict.LOST]
        await heartbeats.close()

    run(scenario())


def test_waiting_records_that_were_canceled_are_put_away(app: Application, run: Run) -> None:
    for cancel in (1, 0, "true", "false", 2, "0"):
        app.add(cancel=cancel, process_after="2099-01-01")

    async def scenario() -> None:
        table = await app.served()
        heartbeats = table.heartbeats()
        await heartbeats.maintain()
        await heartbeats.close()
        assert app.states() == ["canceled", "queued", "canceled", "queued", "canceled", "queued"]

    run(scenario())
