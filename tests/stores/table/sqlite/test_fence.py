"""After a claim nothing is written without its token; what a settlement finds instead is told apart."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stowhand.errors import LogRefused
from stowhand.jobs.execution_log import MAX_LOG_ENTRIES
from stowhand.jobs.job import NewJob, State
from stowhand.jobs.lifecycle import COMPLETED, AttemptOutcome, Settlement, with_state
from stowhand.protocols.queue_store import ActionResult
from stowhand.protocols.store import RefusedSettlement, Verdict
from tests.conftest import Run
from tests.stores.table.sqlite.application import (
    SNOOZED,
    TABLE,
    Application,
    asking,
    claimed,
    errored,
    failed,
    keys,
    settled,
)

Made = Callable[..., Application]
CANCELED = Settlement(State.CANCELED, AttemptOutcome.CANCELED, error="asked to")


@pytest.mark.parametrize("mapped", [False, True])
def test_every_end_is_written_once_and_a_repeat_knows_it(app: Application, run: Run, mapped: bool) -> None:
    if mapped:
        app.sql("ALTER TABLE uploads ADD COLUMN holder TEXT")

    async def scenario() -> None:
        table = await app.served(max_num_retries=1, alternate_column_names={"lease_token": "holder"} if mapped else {})
        for end in (COMPLETED, errored("once"), failed("for good"), CANCELED):
            key = app.add()
            taken = await claimed(table)
            assert app.row(key)["worker_hostname"] == ("host/1" if mapped else f"host/1/{taken.lease.token}")
            app.later(2)
            assert await settled(table, taken.lease, end) == [Verdict.SETTLED]
            now = app.row(key)
            assert (now["state"], now["failure_message"]) == (end.state, end.error)
            assert now["finished_at"] == str(app.now.replace(tzinfo=None)) + ".000000"
            assert now["num_failures"] == (end.state in ("errored", "failed"))
            # As after a lost reply; another settlement of the same claim is another matter.
            assert await settled(table, taken.lease, end, repeat=True) == [Verdict.ALREADY_SETTLED]
            other = COMPLETED if end is not COMPLETED else failed()
            assert await settled(table, taken.lease, other) == [Verdict.LOST]
            assert app.row(key) == now
            app.sql("DELETE FROM uploads")

    run(scenario())


def test_an_error_with_another_text_is_another_settlement(app: Application, run: Run) -> None:
    app.add()

    async def scenario() -> None:
        table = await app.served(max_num_retries=1)
        taken = await claimed(table)
        assert await settled(table, taken.lease, errored("one"), errored("two")) == [Verdict.SETTLED, Verdict.LOST]

    run(scenario())


@pytest.mark.parametrize(
    ("meanwhile", "verdict", "repeated"),
    [
        # The other program claims over it, resets it, marks it; psql deletes it.
        ("UPDATE uploads SET worker_hostname = 'executor-2'", Verdict.LOST, Verdict.LOST),
        ("UPDATE uploads SET state = 'queued', started_at = NULL", Verdict.LOST, Verdict.LOST),
        ("UPDATE uploads SET state = 'failed', failure_message = 'no'", Verdict.LOST, Verdict.LOST),
        ("DELETE FROM uploads", Verdict.LOST, Verdict.UNKNOWN),
    ],
)
def test_what_others_did_meanwhile_stands(
    app: Application, run: Run, meanwhile: str, verdict: Verdict, repeated: Verdict
) -> None:
    app.add()

    async def scenario() -> None:
        table = await app.served()
        taken = await claimed(table)
        app.sql(meanwhile)
        before = app.sql("SELECT * FROM uploads")
        heartbeats = table.heartbeats()
        assert (await heartbeats.beat([taken.lease], 30.0)).lost == {(taken.lease.job_id, taken.lease.token)}
        assert await heartbeats.release([taken.lease]) == ()
        assert await heartbeats.reset_lease(taken.lease) == []
        await heartbeats.close()
        for settlement in (COMPLETED, SNOOZED):
            assert await settled(table, taken.lease, settlement) == [verdict]
            assert await settled(table, taken.lease, settlement, repeat=True) == [repeated]
        with pytest.raises(LogRefused):
            await table.add_log(taken.lease, "{}")
        assert app.sql("SELECT * FROM uploads") == before

    run(scenario())


def test_a_zombie_is_fenced_out_by_the_claim_that_followed(app: Application, run: Run) -> None:
    key = app.add()

    async def scenario() -> None:
        table = await app.served()
        first = await claimed(table)
        app.later(100)
        heartbeats = table.heartbeats()
        assert [one.worker for one in await heartbeats.reset_stalled(10.0)] == ["host/1"]
        second = await claimed(table)
        assert second.lease.epoch > first.lease.epoch
        assert (await heartbeats.beat([first.lease, second.lease], 30.0)).lost == {(key, first.lease.token)}
        assert await settled(table, first.lease, COMPLETED) == [Verdict.LOST]
        with pytest.raises(LogRefused):
            await table.update_log(first.lease, 1, "{}")
        assert app.states() == ["processing"]
        assert await settled(table, second.lease, COMPLETED) == [Verdict.SETTLED]
        await heartbeats.close()

    run(scenario())


def test_cancel_wins_over_everything_but_completed(app: Application, run: Run) -> None:
    async def scenario() -> None:
        table = await app.served(max_num_retries=9)
        for end in (COMPLETED, errored(), failed(), SNOOZED, CANCELED):
            key = app.add()
            taken = await claimed(table)
            app.sql("UPDATE uploads SET cancel = TRUE")
            messages = [with_state(end, State.CANCELED) if end not in (COMPLETED, CANCELED) else Verdict.SETTLED]
            assert await settled(table, taken.lease, end) == messages
            now = app.row(key)
            assert now["state"] == ("completed" if end is COMPLETED else "canceled")
            assert now["num_failures"] == 0
            if end is not SNOOZED:
                again = messages if messages != [Verdict.SETTLED] else [Verdict.ALREADY_SETTLED]
                assert await settled(table, taken.lease, end, repeat=True) == again
            app.sql("DELETE FROM uploads")

    run(scenario())


def test_a_snooze_is_queued_unspent_and_its_token_is_void(app: Application, run: Run) -> None:
    key = app.add(num_failures=1)

    async def scenario() -> None:
        table = await app.served(max_num_retries=3)
        taken = await claimed(table)
        assert await settled(table, taken.lease, SNOOZED, COMPLETED) == [Verdict.SETTLED, Verdict.LOST]
        now = app.row(key)
        assert (now["state"], now["num_failures"], now["worker_hostname"]) == ("queued", 1, "host/1")
        assert (now["process_after"], now["started_at"]) == ("2024-05-01 12:01:00.000000", None)

    run(scenario())


def test_what_the_table_refuses_is_unwritten_alone_with_the_reason(made: Made, run: Run) -> None:
    app = made(
        TABLE.format(moment="TEXT").replace(
            "failure_message   TEXT", "failure_message TEXT CHECK (failure_message <> 'x')"
        )
    )
    for _ in range(3):
        app.add()

    async def scenario() -> None:
        table = await app.served(max_num_retries=1)
        first, second, third = await table.claim(asking(3))
        then = Settlement(State.COMPLETED, AttemptOutcome.OK, then=(NewJob(task="t"),))
        batch = [(first.lease, errored("x")), (second.lease, COMPLETED), (third.lease, then)]
        refused, done, unable = await table.settle(batch)
        assert app.states() == ["processing", "completed", "processing"]
        assert isinstance(refused, RefusedSettlement)
        assert "CHECK constraint failed" in refused.reason
        assert done is Verdict.SETTLED
        assert isinstance(unable, RefusedSettlement)
        assert "ctx.then" in unable.reason

    run(scenario())


def test_an_end_that_the_table_does_not_know_keeps_no_other_from_being_written(made: Made, run: Run) -> None:
    app = made(
        TABLE.format(moment="TEXT") + "CREATE TRIGGER no_failures BEFORE UPDATE ON uploads WHEN NEW.state = 'failed'"
        " BEGIN SELECT RAISE(ABORT, 'nothing fails here'); END"
    )
    app.add()
    app.add()

    async def scenario() -> None:
        table = await app.served()
        first, second = await table.claim(asking(2))
        assert await table.settle([(first.lease, failed()), (second.lease, COMPLETED)]) == [
            RefusedSettlement("nothing fails here"),
            Verdict.SETTLED,
        ]
        assert app.states() == ["processing", "completed"]

    run(scenario())


@pytest.mark.parametrize(
    ("state", "cancel", "done", "becomes"),
    [
        ("queued", False, ActionResult.DONE, "queued"),
        ("errored", False, ActionResult.DONE, "queued"),
        ("processing", False, ActionResult.DONE, "queued"),
        ("processing", True, ActionResult.DONE, "canceled"),
        ("queued", True, ActionResult.DONE, "canceled"),
        ("completed", False, ActionResult.REFUSED, "completed"),
        ("failed", False, ActionResult.REFUSED, "failed"),
        ("canceled", False, ActionResult.REFUSED, "canceled"),
    ],
)
def test_requeue_puts_back_what_is_not_over(
    app: Application, run: Run, state: str, cancel: bool, done: ActionResult, becomes: str
) -> None:
    key = app.add(state=state, cancel=cancel, started_at="2024-05-01 11:00:00", process_after="2030-01-01")

    async def scenario() -> None:
        table = await app.served()
        assert (await table.queries.requeue(key, 1.5)).result is done
        now = app.row(key)
        assert now["state"] == becomes
        if becomes == "queued":
            assert (now["process_after"], now["started_at"]) == ("2024-05-01 12:00:01.500000", None)
            await table.queries.requeue(key, None)
            assert await keys(table) == [key]
        assert (await table.queries.requeue(key + 1, None)).result is ActionResult.MISSING

    run(scenario())


def test_a_requeue_fences_out_the_running_attempt(app: Application, run: Run) -> None:
    key = app.add()

    async def scenario() -> None:
        table = await app.served()
        taken = await claimed(table)
        await table.queries.requeue(key, app.now)
        assert await settled(table, taken.lease, COMPLETED) == [Verdict.LOST]
        assert app.row(key)["worker_hostname"] == "host/1"

    run(scenario())


def test_log_entries_are_numbered_replaced_and_bounded(app: Application, run: Run) -> None:
    key = app.add(execution_logs="no JSON")

    async def scenario() -> None:
        table = await app.served()
        assert await table.queries.logs(key) == []
        taken = await claimed(table)
        entries = [f'{{"key":"{n}"}}' for n in range(1, 6)]
        assert [await table.add_log(taken.lease, one) for one in entries] == [1, 2, 3, 4, 5]
        await table.update_log(taken.lease, 2, '{"key":"two","out":"ü\\n"}')
        assert (await table.queries.logs(key) or ())[1] == '{"key":"two","out":"ü\\n"}'
        for number in (0, -1, 6):
            with pytest.raises(LogRefused):
                await table.update_log(taken.lease, number, "{}")
        app.sql("UPDATE uploads SET execution_logs = ?", f"[{','.join(['{}'] * MAX_LOG_ENTRIES)}]")
        with pytest.raises(LogRefused, match=str(MAX_LOG_ENTRIES)):
            await table.add_log(taken.lease, "{}")
        assert await table.queries.logs(key + 1) is None

    run(scenario())
