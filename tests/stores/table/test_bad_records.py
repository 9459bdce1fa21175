"""One bad record stops nothing but itself; a bad view stops all, and nobody's attempt is spent on it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stowhand.errors import TableUnsuitable
from stowhand.events import Event, Events, JobEnded, StoreCallFailed, StoreWarning
from stowhand.jobs.conditions import sql
from stowhand.jobs.lifecycle import AttemptOutcome
from stowhand.protocols.attempt import Attempt
from stowhand.protocols.options import WorkerOptions
from stowhand.worker.worker import Worker
from tests.conftest import Run
from tests.stores.table.conftest import Place
from tests.stores.table.harness import claimed, opened, until

TWICE = "CREATE VIEW seen AS SELECT u.* FROM uploads u JOIN parts p ON p.upload = u.id"
RAISES = {
    "postgres": sql("100 / (u.size - 13) AS share"),
    "sqlite": sql("json_extract(CASE WHEN u.size = 13 THEN 'no json' ELSE '[1]' END, '$[0]') AS share"),
}
WHY = {"twice": "the view shows it more than once", "postgres": "division by zero", "sqlite": "malformed JSON"}


def parted(place: Place) -> None:
    """A view with a row for each part; whoever adds a part twice shows a record twice."""
    place.sql("DROP VIEW IF EXISTS seen")
    place.sql("DROP TABLE IF EXISTS parts")
    place.sql("CREATE TABLE parts (upload bigint)")
    place.sql(TWICE)


def given(place: Place, how: str) -> dict[str, Any]:
    """Records 2 of 3 is bad."""
    if how == "twice":
        parted(place)
        place.add("a", "b", "c")
        place.sql("INSERT INTO parts VALUES (1), (2), (2), (3)")
        return {"view_name": "seen u", "record": None}
    place.add("a")
    place.add("b", size=13)
    place.add("c")
    return {"column_expressions": ["id", "path", RAISES[place.kind]], "record": None}


@pytest.mark.parametrize("concurrency", [1, 3])
@pytest.mark.parametrize("how", ["twice", "raises"])
def test_the_bad_one_is_an_error_alone_with_its_id_and_the_reason_and_the_others_run(
    run: Run, place: Place, how: str, concurrency: int
) -> None:
    options = given(place, how)
    events, ended, ran = Events(), list[JobEnded](), list[Any]()
    events.on(JobEnded, ended.append)

    async def act(ctx: Attempt[Any], record: Any) -> None:
        ran.append(record["id"])

    async def scenario() -> None:
        async with opened(place, max_num_retries=1, retry_after=0.0, **options) as store:
            await Worker(store, act, WorkerOptions(once=True, concurrency=concurrency), events=events).run()

    run(scenario())
    assert sorted(ran) == [1, 3]
    assert place.states() == ["completed", "failed", "completed"]
    ((message, failures),) = place.sql("SELECT failure_message, num_failures FROM uploads WHERE id = 2")
    assert "record 2" in message
    assert WHY[how if how == "twice" else place.kind] in message
    assert failures == 2
    assert [event.outcome for event in ended if event.job_id == 2] == [AttemptOutcome.RETRY, AttemptOutcome.FAILED]


def test_a_wrong_join_pauses_claims_is_reported_and_fails_no_record(run: Run, place: Place) -> None:
    parted(place)
    place.add("a", "b", "c")
    place.sql("INSERT INTO parts VALUES (1), (1), (2), (2), (3), (3)")
    events, told, ran = Events(), list[Event](), list[Any]()
    events.on(StoreCallFailed, told.append)

    async def act(ctx: Attempt[Any], record: Any) -> None:
        ran.append(record["id"])

    async def scenario() -> None:
        async with opened(place, view_name="seen u", record=None) as store:
            for limit in (1, 3):
                with pytest.raises(
                    TableUnsuitable, match=r"none of [23] records could be read: record 1: the view shows"
                ):
                    await claimed(store, limit=limit)
            worker = Worker(store, act, WorkerOptions(concurrency=1, poll_interval=0.05), events=events)
            working = asyncio.ensure_future(worker.run())
            await until(lambda: any(isinstance(event, StoreCallFailed) for event in told))
            assert place.states() == ["queued"] * 3
            assert place.sql("SELECT sum(num_failures) FROM uploads")[0][0] == 0
            place.sql("DELETE FROM parts")
            place.sql("INSERT INTO parts VALUES (1), (2), (3)")
            await until(lambda: place.states() == ["completed"] * 3)
            worker.stop()
            await working

    run(scenario())
    assert sorted(ran) == [1, 2, 3]


KEEPS = {
    "postgres": (
        """CREATE OR REPLACE FUNCTION keeps() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF NEW.size = 13 THEN RETURN NULL; END IF;
        IF NEW.size = 14 THEN RAISE EXCEPTION 'not this one'; END IF; RETURN NEW; END $$""",
        "CREATE TRIGGER keeps BEFORE UPDATE ON uploads FOR EACH ROW EXECUTE FUNCTION keeps()",
    ),
    "sqlite": (
        "CREATE TRIGGER keeps BEFORE UPDATE ON uploads WHEN NEW.size = 13 BEGIN SELECT RAISE(IGNORE); END",
        "CREATE TRIGGER bars BEFORE UPDATE ON uploads WHEN NEW.size = 14 BEGIN SELECT RAISE(ABORT, 'not this'); END",
    ),
}


@pytest.mark.parametrize(("size", "why"), [(13, "a trigger of the table keeps it unchanged"), (14, "not this")])
def test_a_record_that_its_table_will_not_let_be_claimed_is_passed_over_and_named_once(
    run: Run, place: Place, size: int, why: str
) -> None:
    for statement in KEEPS[place.kind]:
        place.sql(statement)
    place.add("kept", size=size)
    place.add("a", "b")
    events, told, ran = Events(), list[StoreWarning](), list[Any]()
    events.on(StoreWarning, told.append)

    async def act(ctx: Attempt[Any], record: Any) -> None:
        ran.append(record.id)

    async def scenario() -> None:
        async with opened(place) as store:
            await Worker(store, act, WorkerOptions(once=True, concurrency=1), events=events).run()

    run(scenario())
    assert ran == [2, 3]
    assert place.states() == ["queued", "completed", "completed"]
    (event,) = [event for event in told if "record 1" in event.warning]
    assert why in event.warning


def test_a_record_that_is_let_go_again_is_claimed_when_its_pause_is_over(
    run: Run, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    for statement in KEEPS[place.kind]:
        place.sql(statement)
    place.add("kept", size=13)

    async def scenario() -> None:
        async with opened(place) as store:
            assert await claimed(store) == []
            place.sql("UPDATE uploads SET size = 1" if place.kind == "sqlite" else "DROP TRIGGER keeps ON uploads")
            if place.kind == "sqlite":
                place.sql("DROP TRIGGER keeps")
            assert await claimed(store) == []
            monkeypatch.setattr("stowhand.stores.passed_over.stopwatch", lambda: 1e12)
            assert [claim.lease.job_id for claim in await claimed(store)] == [1]

    run(scenario())


INDEXES = {
    "postgres": ("CREATE INDEX CONCURRENTLY",),
    "sqlite": ("CREATE INDEX",),
}


def test_a_worker_on_a_table_without_indexes_says_so_with_the_ddl_and_with_them_nothing(run: Run, place: Place) -> None:
    place.add("a")

    async def told() -> list[StoreWarning]:
        events, said = Events(), list[StoreWarning]()
        events.on(StoreWarning, said.append)
        async with opened(place) as store:
            await Worker(store, nothing, WorkerOptions(once=True), events=events).run()
        return said

    first = run(told())
    assert ["(state, process_after)" in first[0].warning, "(last_heartbeat_at)" in first[1].warning] == [True, True]
    assert all(event.fix.startswith(INDEXES[place.kind]) for event in first)
    place.sql("CREATE INDEX own ON uploads (state)")  # it does not have to be ours
    assert run(told()) == []


async def nothing(ctx: Attempt[Any], record: Any) -> None:
    """A handler."""
