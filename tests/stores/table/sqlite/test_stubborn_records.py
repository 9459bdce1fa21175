"""Records that their own table refuses to change: said, and no other waits for them."""

from __future__ import annotations

import pytest

from stowhand.errors import StoreError
from stowhand.jobs.lifecycle import COMPLETED
from stowhand.protocols.store import RefusedSettlement, Verdict
from tests.conftest import Run
from tests.stores.table.sqlite.application import Application, asking, keys

STALE = {"state": "processing", "last_heartbeat_at": "2024-05-01 11:00:00"}


@pytest.fixture
def frozen(app: Application) -> Application:
    """Records of this size are not to be changed."""
    app.sql(
        "CREATE TRIGGER frozen BEFORE UPDATE ON uploads WHEN OLD.size = 9"
        " BEGIN SELECT RAISE(ABORT, 'it is frozen'); END"
    )
    return app


@pytest.mark.parametrize("cancel", [False, True])
def test_a_claim_takes_the_others(frozen: Application, run: Run, cancel: bool) -> None:
    frozen.add(size=9, cancel=cancel)
    others = [frozen.add(), frozen.add(), frozen.add(cancel=True)]

    async def scenario() -> None:
        table = await frozen.served()
        assert await keys(table, 2) == others[:2]
        assert await keys(table) == []

    run(scenario())
    assert frozen.states() == ["queued", "processing", "processing", "canceled"]


def test_what_was_canceled_is_put_away_before_anything_is_said(frozen: Application, run: Run) -> None:
    frozen.add(size=9)
    frozen.add(cancel=True)

    async def scenario() -> None:
        table = await frozen.served()
        assert await keys(table) == []

    run(scenario())
    assert frozen.states() == ["queued", "canceled"]


def test_a_claim_comes_to_an_end_where_nothing_can_be_changed(app: Application, run: Run) -> None:
    app.sql("CREATE TRIGGER quiet BEFORE UPDATE ON uploads WHEN OLD.size = 9 BEGIN SELECT RAISE(IGNORE); END")
    for _ in range(60):
        app.add(size=9)

    async def scenario() -> None:
        assert await keys(await app.served(), 1) == []

    run(scenario())


def test_a_reset_takes_back_the_others(frozen: Application, run: Run) -> None:
    frozen.add(size=9, **STALE)
    other = frozen.add(**STALE)

    async def scenario() -> None:
        table = await frozen.served()
        heartbeats = table.heartbeats()
        assert [one.job_id for one in await heartbeats.reset_stalled(0.0)] == [other]
        assert [(one.operation, one.reason) for one in heartbeats.refused()] == [("reset", "it is frozen")]
        assert await heartbeats.reset_stalled(0.0) == []
        await heartbeats.close()

    run(scenario())
    assert frozen.states() == ["processing", "queued"]


def test_the_others_are_put_away(frozen: Application, run: Run) -> None:
    for size in (9, 0):
        frozen.add(size=size, cancel=True)

    async def scenario() -> None:
        table = await frozen.served()
        heartbeats = table.heartbeats()
        await heartbeats.maintain()
        await heartbeats.close()

    run(scenario())
    assert frozen.states() == ["queued", "canceled"]


FAULTS = {
    "a function of SQLite's": "SELECT json_extract(NEW.path, '$')",
    "a rollback of the whole transaction": "SELECT RAISE(ROLLBACK, 'not this one')",
}


@pytest.fixture(params=FAULTS)
def faulty(app: Application, request: pytest.FixtureRequest) -> Application:
    """What a trigger does for records of this size fails."""
    app.sql(f"CREATE TRIGGER faulty BEFORE UPDATE ON uploads WHEN OLD.size = 9 BEGIN {FAULTS[request.param]}; END")
    return app


def test_whatever_a_trigger_raises_for_one_record_the_others_run(faulty: Application, run: Run) -> None:
    bad = faulty.add()
    others = [faulty.add() for _ in range(5)]

    async def scenario() -> None:
        table = await faulty.served()
        heartbeats = table.heartbeats()
        leases = [one.lease for one in await table.claim(asking(10))]
        await add_fault(bad)
        pulse = await heartbeats.beat(leases, 30.0)
        assert pulse.refused == {leases[0].pair}
        assert pulse.lost == frozenset()
        replies = await table.settle([(one, COMPLETED) for one in leases[:3]])
        assert [isinstance(reply, RefusedSettlement) for reply in replies] == [True, False, False]
        assert [one.job_id for one in await heartbeats.reset_worker("host/1")] == others[2:]
        assert {one.operation for one in heartbeats.refused()} == {"beat", "reset"}
        assert await keys(table, 10) == others[2:]
        await heartbeats.close()

    async def add_fault(key: int) -> None:
        faulty.sql("DROP TRIGGER faulty")
        faulty.sql(f"UPDATE uploads SET size = 9, path = 'no json' WHERE id = {key}")
        faulty.sql(fault)

    (fault,) = [text for (text,) in faulty.sql("SELECT sql FROM sqlite_master WHERE name = 'faulty'")]
    run(scenario())


def test_a_claim_passes_over_what_a_trigger_refuses_in_any_way(faulty: Application, run: Run) -> None:
    faulty.add(size=9, path="no json")
    other = faulty.add()

    async def scenario() -> None:
        assert await keys(await faulty.served(), 1) == [other]

    run(scenario())


def test_when_every_end_of_several_is_refused_the_file_is_at_fault(app: Application, run: Run) -> None:
    app.add()
    app.add()

    async def scenario() -> None:
        table = await app.served()
        batch = [(one.lease, COMPLETED) for one in await table.claim(asking(10))]
        app.sql("CREATE TRIGGER audit AFTER UPDATE ON uploads BEGIN INSERT INTO log VALUES (NEW.id); END")
        with pytest.raises(StoreError, match="no such table"):
            await table.settle(batch)
        with pytest.raises(StoreError, match="no such table"):
            await table.settle(batch[:1])
        app.sql("CREATE TABLE log (id integer)")
        assert await table.settle(batch, repeat=True) == [Verdict.SETTLED] * 2

    run(scenario())
