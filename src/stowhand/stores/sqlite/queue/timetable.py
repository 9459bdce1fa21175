"""What recurs: known items, and the ledger by which a tick makes one job. One writer at a time, so a look is enough."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Any

import msgspec

from stowhand.protocols.queue_store import Entered, KnownItem, Tick
from stowhand.protocols.store import StoreOptions
from stowhand.protocols.validation import validate_items, validate_since, validate_ticks
from stowhand.stores.sqlite.queue import enqueue, trouble
from stowhand.stores.sqlite.queue.connections import Connections
from stowhand.stores.sqlite.queue.moment import Moment, to_datetime, to_micros
from stowhand.stores.sqlite.queue.statements import load

SQL = load("timetable")


class Timetable:
    """The file's crontab and its ledger."""

    def __init__(self, connections: Connections, options: StoreOptions) -> None:
        self._connections = connections
        self._options = options

    async def now(self) -> datetime:
        """By this machine's clock."""
        return to_datetime(self._connections.now().wall)

    async def register(self, items: Sequence[tuple[str, str]]) -> Sequence[KnownItem]:
        return await self._connections.write(partial(register, items=items))

    async def schedule(self, ticks: Sequence[Tick]) -> Sequence[Entered]:
        """Each tick at most once ever."""
        ticks = [msgspec.structs.replace(tick, job=self._options.whole(tick.job)) for tick in ticks]
        return await self._connections.write(partial(schedule, ticks=ticks), wakes=True)

    async def known_items(self) -> Sequence[KnownItem]:
        """By identifier."""
        return await self._connections.read(lambda connection, _: known_items(connection))

    async def ticks(self, identifier: str, since: datetime) -> Sequence[datetime]:
        """Those in the ledger, in order."""
        return await self._connections.read(lambda connection, _: ticks(connection, identifier, since))


def register(connection: sqlite3.Connection, now: Moment, items: Sequence[tuple[str, str]]) -> list[KnownItem]:
    """What was known of them before, or is from now on."""
    answers = []
    for identifier, spec in validate_items(items):
        given = {"identifier": identifier, "spec": spec, "now": now.wall}
        before = connection.execute(SQL["known"], given).fetchone()
        connection.execute(SQL["register"], given)
        answers.append(_to_item(before or (identifier, now.wall, None, spec)))
    return answers


def schedule(connection: sqlite3.Connection, now: Moment, ticks: Sequence[Tick]) -> list[Entered]:
    """All of them, inside the caller's transaction. Raises InvalidJob."""
    checked = validate_ticks(ticks, to_datetime(now.wall))
    with trouble.refusing():
        return [_enter(connection, now, tick) for tick in checked]


def known_items(connection: sqlite3.Connection) -> list[KnownItem]:
    """By identifier."""
    return [_to_item(row) for row in connection.execute(SQL["all_known"])]


def ticks(connection: sqlite3.Connection, identifier: str, since: datetime) -> list[datetime]:
    """Those of one item from a moment on."""
    given = {"identifier": identifier, "since": to_micros(validate_since(since))}
    return [to_datetime(at) for (at,) in connection.execute(SQL["ticks"], given)]


def _enter(connection: sqlite3.Connection, now: Moment, tick: Tick) -> Entered:
    given: dict[str, Any] = {"identifier": tick.identifier, "tick": to_micros(tick.at), "spec": tick.spec}
    earlier = connection.execute(SQL["entered"], given).fetchone()
    if earlier is not None:
        return Entered(mine=False, job_id=earlier[0], spec=earlier[1])
    job_id = enqueue.add(connection, now, tick.job, built_in=True)
    given |= {"job_id": job_id, "backfilled": tick.backfilled, "now": now.wall}
    connection.execute(SQL["enter"], given)
    connection.execute(SQL["ticked"], given)
    return Entered(mine=True, job_id=job_id, spec=tick.spec)


def _to_item(row: tuple[Any, ...]) -> KnownItem:
    identifier, known_since, last_tick, spec = row
    return KnownItem(
        identifier=identifier,
        known_since=to_datetime(known_since),
        last_tick=None if last_tick is None else to_datetime(last_tick),
        spec=spec,
    )
