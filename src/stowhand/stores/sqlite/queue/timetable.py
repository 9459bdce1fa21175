"""Known crontab items, and the ledger that lets each tick create one job. There is only one writer at a time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from stowhand.protocols.queue_store import REPORT_INTERVAL, SCHEDULER_TIMEOUT, KnownItem, LedgerEntry, Tick
from stowhand.protocols.store import StoreOptions
from stowhand.protocols.validation import validate_items, validate_ticks
from stowhand.stores.sqlite.queue import enqueue, error_translation
from stowhand.stores.sqlite.queue.connections import Connections
from stowhand.stores.sqlite.queue.moment import to_datetime, to_micros
from stowhand.stores.sqlite.queue.transaction import Transaction


class Timetable:
    """The file's crontab and its ledger."""

    def __init__(self, connections: Connections, options: StoreOptions) -> None:
        self._connections = connections
        self._options = options

    async def now(self) -> datetime:
        """Return the time of this machine's clock."""
        return to_datetime(self._connections.now().wall)

    async def register(self, items: Sequence[tuple[str, str]]) -> Sequence[KnownItem]:
        """Return the known items, and store the new ones."""
        return await self._connections.write(lambda tx: [_register(tx, *item) for item in validate_items(items)])

    async def schedule(self, ticks: Sequence[Tick]) -> Sequence[LedgerEntry]:
        """Enqueue the job of each tick, at most once ever."""
        ticks = [msgspec.structs.replace(tick, job=self._options.with_max_attempts(tick.job)) for tick in ticks]

        def schedule(tx: Transaction) -> Sequence[LedgerEntry]:
            checked = validate_ticks(ticks, to_datetime(tx.now.wall))
            with error_translation.refusing():
                return [_schedule(tx, tick) for tick in checked]

        return await self._connections.write(schedule, wakes=True)

    async def known_items(self) -> Sequence[KnownItem]:
        """Return all known items, ordered by identifier."""
        return await self._connections.read(lambda tx: [_to_item(row) for row in tx.run("known_items")])

    async def report(self, identifiers: Sequence[str], scheduler: str) -> None:
        def report(tx: Transaction) -> None:
            for identifier in identifiers:
                tx.run("report", identifier=identifier, scheduler=scheduler, interval=_micros(REPORT_INTERVAL))

        await self._connections.write(report)

    async def forget_item(self, identifier: str) -> bool:
        values = {"identifier": identifier, "scheduled_for": _micros(SCHEDULER_TIMEOUT)}
        return await self._connections.write(lambda tx: tx.row("forget_item", **values) is not None)


def _register(tx: Transaction, identifier: str, spec: str) -> KnownItem:
    old_row = tx.row("known_item", identifier=identifier)
    tx.run("register", identifier=identifier, spec=spec)
    return _to_item(old_row or (identifier, tx.now.wall, None, spec, None, None, None))


def _schedule(tx: Transaction, tick: Tick) -> LedgerEntry:
    entry: dict[str, Any] = {"identifier": tick.identifier, "tick": to_micros(tick.at), "spec": tick.spec}
    earlier = tx.row("ledger_entry", **entry)
    if earlier is not None:
        return LedgerEntry(is_own=False, job_id=earlier[0], spec=earlier[1])
    job_id = enqueue.add(tx, tick.job, built_in=True)
    tx.run("add_ledger_entry", job_id=job_id, backfilled=tick.backfilled, **entry)
    tx.run("set_last_tick", **entry)
    return LedgerEntry(is_own=True, job_id=job_id, spec=tick.spec)


def _to_item(row: tuple[Any, ...]) -> KnownItem:
    identifier, since, last_tick, spec, spec_since, scheduled_by, scheduled_at = row
    return KnownItem(
        identifier,
        known_since=to_datetime(since),
        last_tick=_moment(last_tick),
        spec=spec,
        spec_since=_moment(spec_since),
        scheduled_by=scheduled_by,
        scheduled_at=_moment(scheduled_at),
    )


def _moment(micros: int | None) -> datetime | None:
    return None if micros is None else to_datetime(micros)


def _micros(span: timedelta) -> int:
    return span // timedelta(microseconds=1)
