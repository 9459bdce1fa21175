"""Records that their own table refuses to change: said, and no other waits for them."""

from __future__ import annotations

import pytest

from tests.conftest import Run
from tests.stores.table.sqlite.application import Application, keys

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
        assert [(one.doing, one.why) for one in heartbeats.refused()] == [("reset", "it is frozen")]
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
