"""Programs that take no part: they claim a record of ours anew, and leave our mark, or our token, where it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from stowhand.errors import LeaseLost, LogRefused, StoreError
from stowhand.events import Events, StoreWarning
from stowhand.jobs.execution_log import ExecutionLogEntry
from stowhand.jobs.job import State
from stowhand.jobs.lifecycle import COMPLETED, AttemptOutcome, Settlement
from stowhand.protocols.attempt import Attempt
from stowhand.protocols.store import Claim, Store, Verdict
from stowhand.remote import HttpStore
from stowhand.table import TableStore
from tests.conftest import Run
from tests.stores.table.conftest import Place
from tests.stores.table.harness import AT, asking, claimed, opened, options
from tests.support.shared_server import SharedServer

ENDS = [
    COMPLETED,
    Settlement(State.ERRORED, AttemptOutcome.RETRY, error="once more"),
    Settlement(State.FAILED, AttemptOutcome.FAILED, error="no"),
    Settlement(State.QUEUED, AttemptOutcome.SNOOZED, delay=1.0, refund=True),
    Settlement(State.CANCELED, AttemptOutcome.CANCELED, error="no"),
]
THEIR_RESET = "UPDATE uploads SET state = 'queued', num_resets = num_resets + 1"
THEIR_CLAIM = "UPDATE uploads SET state = 'processing', started_at = {now}, last_heartbeat_at = {now}{host}"
THEIR_END = "UPDATE uploads SET state = 'completed', finished_at = CURRENT_TIMESTAMP"
LATER = {"postgres": "clock_timestamp()", "sqlite": "strftime('%Y-%m-%d %H:%M:%f000', 'now', '+1 second')"}


def mapped(place: Place) -> dict[str, Any]:
    """With a column for the token, of which the other program knows nothing."""
    place.sql("ALTER TABLE uploads ADD COLUMN holder TEXT")
    return {"alternate_column_names": {"lease_token": "holder"}}


def take_over(place: Place, host: str = "", now: str = "") -> None:
    place.sql(THEIR_RESET)
    place.sql(THEIR_CLAIM.format(now=now or LATER[place.kind], host=host))


@asynccontextmanager
async def reached(place: Place, way: str, **given: Any) -> AsyncIterator[Store[Any]]:
    """The store itself, or lent over HTTP."""
    if way == "direct":
        async with opened(place, **given) as store:
            yield store
        return
    with SharedServer() as shared_server:
        url = await asyncio.to_thread(shared_server.lend, TableStore(place.url, options(**given)))
        async with HttpStore(url) as remote:
            yield remote


async def changes_nothing(place: Place, store: Any, claim: Claim[Any]) -> None:
    """The zombie tries whatever a worker can do with a lease."""
    lease, before = claim.lease, place.sql("SELECT * FROM uploads")
    heartbeats = store.heartbeats()
    try:
        assert (await heartbeats.beat([lease], 30.0)).lost == {(lease.job_id, lease.token)}
        assert list(await heartbeats.release([lease])) == []
        assert list(await heartbeats.reset_lease(lease)) == []
    finally:
        await heartbeats.close()
    for end in ENDS:
        for repeat in (False, True):
            assert list(await store.settle([(lease, end)], repeat=repeat)) == [Verdict.LOST]
    attempt: Attempt[Any] = Attempt(claim, 0.0)
    store.around(attempt)
    with pytest.raises((LogRefused, StoreError)):
        await attempt.store.add_execution_log_entry(ExecutionLogEntry(key="k", start_time=AT))
    assert place.sql("SELECT * FROM uploads") == before


@pytest.mark.parametrize("way", ["direct", "http"])
@pytest.mark.parametrize("how", ["token mapped", "hostname left"])
def test_a_mark_that_others_claimed_over_is_lost_in_whatever_is_done_with_it(
    run: Run, place: Place, how: str, way: str
) -> None:
    value = mapped(place) if how == "token mapped" else {}
    place.add("a")

    async def scenario() -> None:
        async with reached(place, way, **value) as store:
            (claim,) = await store.claim(asking(limit=1))
            take_over(place, ", worker_hostname = 'executor-1'" if value else "")
            await changes_nothing(place, store, claim)
            place.sql(THEIR_END)  # its end is not ours, though it is the same
            await changes_nothing(place, store, claim)

    run(scenario())


def test_attempts_in_one_second_are_distinguished_by_the_reset_between_them(run: Run, place: Place) -> None:
    value = mapped(place)
    kind = "integer" if place.kind == "sqlite" else "timestamptz(0)"
    place.sql("ALTER TABLE uploads ADD COLUMN began " + kind)
    value["alternate_column_names"]["started_at"] = "began"
    place.add("a")

    async def scenario() -> None:
        async with opened(place, **value) as store:
            (claim,) = await claimed(store, limit=1)
            place.sql(THEIR_RESET)
            place.sql("UPDATE uploads SET state = 'processing'")  # within the same second
            await changes_nothing(place, store, claim)

    run(scenario())


def test_a_transaction_does_not_begin_for_a_claim_that_others_took_over(run: Run, on_postgres: Place) -> None:
    on_postgres.add("a")

    async def scenario() -> None:
        async with opened(on_postgres, transactional=True) as store:
            (claim,) = await claimed(store, limit=1)
            take_over(on_postgres)
            around = store.around(Attempt(claim, 0.0))
            assert around is not None
            with pytest.raises(LeaseLost):
                await around.__aenter__()

    run(scenario())


def test_a_lost_claim_is_not_given_back_once_others_may_have_it(
    run: Run, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever abandons a claim knows its token alone."""
    value = mapped(place)
    place.add("a")

    async def scenario() -> None:
        async with opened(place, **value) as store:
            (claim,) = await claimed(store, limit=1)
            take_over(place)
            heartbeats = store.heartbeats()
            later = AT.timestamp() + 1e9
            monkeypatch.setattr("stowhand.stores.table.claims.stopwatch", lambda: later)
            assert await heartbeats.abandon(claim.lease.token)
            await heartbeats.close()
        assert place.states() == ["processing"]

    run(scenario())


def test_a_live_claim_is_renewed_and_settled_whatever_triggers_do_to_other_columns(run: Run, place: Place) -> None:
    place.add("a")

    async def scenario() -> None:
        async with opened(place) as store:
            (claim,) = await claimed(store, limit=1)
            heartbeats = store.heartbeats()
            assert await heartbeats.beat([claim.lease], 30.0) == await heartbeats.beat([claim.lease], 30.0)
            assert (await heartbeats.beat([claim.lease], 30.0)).lost == frozenset()
            await heartbeats.close()
            assert list(await store.settle([(claim.lease, COMPLETED)])) == [Verdict.SETTLED]

    run(scenario())


def test_a_record_that_the_application_itself_calls_processing_is_left_to_it(run: Run, place: Place) -> None:
    """Every claim writes a heartbeat. ``started_at`` may be the application's."""
    place.add("packed by hand", "by hand, too", state="processing")
    place.sql("UPDATE uploads SET started_at = '2001-01-01 00:00:00' WHERE id = 1")
    place.add("waits")

    async def scenario() -> None:
        async with opened(place) as store:
            heartbeats = store.heartbeats()
            foreign = await heartbeats.foreign((), 0.0)
            assert foreign is not None
            assert (foreign.has_expired, foreign.expires_in) == (False, None)
            assert await heartbeats.reset_stalled(0.0) == []
            assert await store.oldest_claim_age() == timedelta(0)
            assert [claim.lease.job_id for claim in await claimed(store)] == [3]
            await heartbeats.close()
            assert place.states() == ["processing"] * 3

    run(scenario())


CHANGES = {
    "postgres": (
        (
            "CREATE OR REPLACE FUNCTION change() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN IF NEW.state = 'processing' AND {when} THEN NEW.{column} := {value}; END IF; RETURN NEW; END $$"
        ),
        "CREATE TRIGGER changes BEFORE UPDATE ON uploads FOR EACH ROW EXECUTE FUNCTION change()",
    ),
    "sqlite": (
        (
            "CREATE TRIGGER changes AFTER UPDATE OF state, last_heartbeat_at ON uploads WHEN NEW.state = 'processing'"
            " AND {when} BEGIN UPDATE uploads SET {column} = {value} WHERE id = NEW.id; END"
        ),
    ),
}


def change(place: Place, column: str, value: str, when: str) -> None:
    for statement in CHANGES[place.kind]:
        place.sql(statement.format(column=column, value=value, when=when))


@pytest.mark.parametrize("column", ["worker_hostname", "holder"])
def test_a_record_whose_mark_a_trigger_changes_is_not_claimed_and_the_column_is_named(
    run: Run, place: Place, column: str
) -> None:
    """Claimed, it would be run, and every end would be lost."""
    value = mapped(place) if column == "holder" else {}
    place.add("a", "b", "c")
    change(place, column, "'web-1'", "NEW.id = 2")
    events, told = Events(), list[StoreWarning]()
    events.on(StoreWarning, told.append)

    async def scenario() -> None:
        async with opened(place, **value) as store:
            await store.validate(events)
            assert [claim.lease.job_id for claim in await claimed(store)] == [1, 3]
            assert place.states() == ["processing", "queued", "processing"]

    run(scenario())
    (event,) = [one for one in told if "record 2" in one.warning]
    assert f"a trigger sets {column}, which identifies a claim" in event.warning


def test_a_trigger_that_sets_the_start_anew_at_a_beat_is_named(run: Run, place: Place) -> None:
    place.add("a", "b")
    later = "now() + interval '1 hour'" if place.kind == "postgres" else "datetime('now', '+1 hour')"
    change(place, "started_at", later, "NEW.id = 2 AND OLD.state = 'processing' AND NEW.started_at = OLD.started_at")

    async def scenario() -> None:
        async with opened(place) as store:
            first, second = await claimed(store)
            heartbeats = store.heartbeats()
            pulse = await heartbeats.beat([first.lease, second.lease], 30.0)
            assert pulse.lost == {second.lease.pair}
            (refusal,) = heartbeats.refused()
            await heartbeats.close()
            assert "a trigger sets started_at" in refusal.reason

    run(scenario())


@pytest.mark.parametrize(
    ("arguments", "named"), [("started_at", "started_at"), ("worker_hostname", "worker_hostname"), ("queued_at", "")]
)
def test_a_trigger_whose_definition_names_the_column_is_warned_of(
    run: Run, on_postgres: Place, arguments: str, named: str
) -> None:
    on_postgres.sql("CREATE OR REPLACE FUNCTION stamp() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'")
    on_postgres.sql(
        f"CREATE TRIGGER stamps BEFORE UPDATE ON uploads FOR EACH ROW EXECUTE FUNCTION stamp('{arguments}')"
    )
    warnings = [event.warning for event in run(warned(on_postgres))]
    assert [f"the trigger stamps: a trigger sets {named}," in one for one in warnings] == ([True] if named else [])


async def warned(place: Place) -> list[StoreWarning]:
    """What a starting worker says of triggers."""
    events, told = Events(), list[StoreWarning]()
    events.on(StoreWarning, told.append)
    async with opened(place) as store:
        await store.validate(events)
    return [event for event in told if "trigger" in event.warning]
