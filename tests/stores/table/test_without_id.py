"""A unique index lets any number of NULLs in: rows without an id stop nothing, and are told of."""

from __future__ import annotations

from typing import Any

from stowhand.events import Events, StoreWarning
from stowhand.jobs.job import State
from stowhand.protocols.attempt import Attempt
from stowhand.stores.table.backend import Finding
from tests.conftest import Run
from tests.stores.table.conftest import Place
from tests.stores.table.harness import claimed, opened, worked_off

MINUTES_AGO = {"postgres": "now() - interval '9 minutes'", "sqlite": "datetime('now', '-9 minutes')"}


def nullable(place: Place) -> None:
    """``id`` is unique, and may be NULL."""
    place.make("int")  # in SQLite a key like any other: only INTEGER is the row's own number
    if place.kind == "postgres":
        place.sql("ALTER TABLE uploads DROP CONSTRAINT uploads_pkey, ALTER id DROP NOT NULL, ADD UNIQUE (id)")


def without_id(place: Place) -> None:
    """One in each state in which somebody looks for it."""
    ago = MINUTES_AGO[place.kind]
    place.add("waits", "waits too", id=None)
    place.add("asked to cancel", id=None, cancel=True)
    place.add("tried", id=None, state="errored")
    place.add("died", id=None, num_resets=2)
    place.add("runs", id=None, state="processing", num_resets=2, worker_hostname="theirs")
    place.sql(f"UPDATE uploads SET started_at = {ago}, last_heartbeat_at = {ago} WHERE path = 'runs'")


def test_records_without_an_id_are_neither_claimed_nor_listed_and_block_no_claim(place: Place, run: Run) -> None:
    async def scenario() -> None:
        async with opened(place) as store:
            assert await store.next_due(None) is None
            assert list(await claimed(store)) == list(await claimed(store, suspects=True)) == []
            place.add("one", id=1)
            place.add("two", id=2)
            await worked_off(store, nothing)
            heartbeats = store.heartbeats()
            foreign = await heartbeats.foreign([], 1.0)
            assert foreign is None or (not foreign.has_expired and foreign.expires_in is None)
            assert [*await heartbeats.reset_stalled(1.0), *await heartbeats.reset_worker("theirs")] == []
            await heartbeats.maintain()
            await heartbeats.close()
            assert await store.next_due(None) is None
            assert (await store.max_duration_in_queue()).total_seconds() == 0
            assert (await store.oldest_claim_age()).total_seconds() == 0
            assert [record.id for record in await store.records(*State)] == [1, 2]

    nullable(place)
    without_id(place)
    before = place.sql("SELECT path, state FROM uploads WHERE id IS NULL ORDER BY path")
    run(scenario())
    assert place.sql("SELECT path, state FROM uploads WHERE id IS NULL ORDER BY path") == before


async def nothing(_ctx: Attempt[Any], _record: Any) -> None:
    """A handler that does nothing."""


def told(place: Place, run: Run, **given: Any) -> tuple[list[Finding], list[str]]:
    """What a check finds of ids, and what a worker is warned of."""
    events, warned = Events(), list[StoreWarning]()
    events.on(StoreWarning, warned.append)

    async def scenario() -> list[Finding]:
        async with opened(place, **given) as store:
            await store.validate(events)
            return await store.check()

    rows = [one for one in run(scenario()) if "NULL" in one.problem]
    return rows, [one.warning for one in warned if "NULL" in one.warning]


def test_rows_without_an_id_are_counted_and_warned_of(place: Place, run: Run) -> None:
    nullable(place)
    without_id(place)
    place.add("one", id=7)
    (found,), (warned,) = told(place, run)
    assert found.problem == warned == "6 records have no id (NULL): never claimed, nor listed"
    assert not found.fatal
