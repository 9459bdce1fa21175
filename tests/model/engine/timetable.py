"""The timetable: what is known, and the ledger by which a tick makes one job."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

from stowhand.protocols.queue_store import KnownItem, LedgerEntry, Tick
from stowhand.protocols.validation import validate_ticks
from tests.model.engine import enqueueing
from tests.model.engine.rows import Rows, Transaction


class Timetable:
    """What is known, and the ledger."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    async def schedule(self, ticks: Sequence[Tick]) -> Sequence[LedgerEntry]:
        """All of them, or none."""
        with self._transaction() as rows, rows.all_or_nothing():
            return [enter(rows, tick) for tick in validate_ticks(ticks, rows.now)]

    async def known_items(self) -> Sequence[KnownItem]:
        with self._transaction() as rows:
            return sorted(rows.known.values(), key=lambda item: item.identifier)

    def ticks(self, identifier: str) -> list[datetime]:
        """Those of one item in the ledger, in order."""
        with self._transaction() as rows:
            return sorted(at for name, at in rows.ledger if name == identifier)


def enter(rows: Rows, tick: Tick) -> LedgerEntry:
    """One line of the ledger, and its job; or what the ledger says already."""
    place = (tick.identifier, tick.at.astimezone(UTC))
    earlier = rows.ledger.get(place)
    if earlier is not None:
        return msgspec.structs.replace(earlier, is_own=False)
    job_id = enqueueing.add(rows, tick.job).id
    entered = rows.ledger[place] = LedgerEntry(is_own=True, job_id=job_id, spec=tick.spec)
    known = known_or_new(rows, tick.identifier, tick.spec)
    latest = max(known.last_tick or place[1], place[1])
    rows.known[tick.identifier] = msgspec.structs.replace(known, last_tick=latest)
    return entered


def known_or_new(rows: Rows, identifier: str, spec: str) -> KnownItem:
    """What is known of an item, or is from now on."""
    return rows.known.get(identifier, KnownItem(identifier=identifier, known_since=rows.now, last_tick=None, spec=spec))
