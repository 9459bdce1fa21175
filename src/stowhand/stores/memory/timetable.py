"""The memory store's timetable: what is known, and the ledger by which a tick makes one job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

import msgspec

from stowhand.protocols.queue_store import LEDGER_DAYS, REPORT_INTERVAL, Entered, KnownItem, Tick
from stowhand.protocols.validation import validate_items, validate_since, validate_ticks
from stowhand.stores.memory import enqueueing
from stowhand.stores.memory.rows import Rows, Transaction


class Timetable:
    """What is known, and the ledger."""

    def __init__(self, transaction: Transaction, time: Callable[[], datetime]) -> None:
        self._transaction = transaction
        self._time = time

    async def now(self) -> datetime:
        return self._time().astimezone(UTC)

    async def register(self, items: Sequence[tuple[str, str]]) -> Sequence[KnownItem]:
        """What was known of them before, or is from now on."""
        with self._transaction() as rows:
            answers = []
            for identifier, spec in validate_items(items):
                known = known_or_new(rows, identifier, spec)
                spec_since = known.spec_since if spec == known.spec else rows.now
                rows.known[identifier] = msgspec.structs.replace(known, spec=spec, spec_since=spec_since)
                answers.append(known)
            return answers

    async def schedule(self, ticks: Sequence[Tick]) -> Sequence[Entered]:
        """All of them, or none."""
        with self._transaction() as rows, rows.all_or_nothing():
            return [enter(rows, tick) for tick in validate_ticks(ticks, rows.now)]

    async def known_items(self) -> Sequence[KnownItem]:
        with self._transaction() as rows:
            return sorted(rows.known.values(), key=lambda item: item.identifier)

    async def report(self, identifiers: Sequence[str], scheduler: str) -> None:
        with self._transaction() as rows:
            for identifier in set(identifiers) & rows.known.keys():
                known = rows.known[identifier]
                if known.scheduled_at is None or not timedelta() <= rows.now - known.scheduled_at < REPORT_INTERVAL:
                    changed = msgspec.structs.replace(known, scheduled_by=scheduler, scheduled_at=rows.now)
                    rows.known[identifier] = changed

    async def forget_item(self, identifier: str) -> bool:
        with self._transaction() as rows:
            known = rows.known.get(identifier)
            if known is None or known.is_scheduled(rows.now):
                return False
            del rows.known[identifier]
            return True

    async def ticks(self, identifier: str, since: datetime) -> Sequence[datetime]:
        """Those of one item from a moment on."""
        validate_since(since)
        with self._transaction() as rows:
            return sorted(at for name, at in rows.ledger if name == identifier and at >= since)


def enter(rows: Rows, tick: Tick) -> Entered:
    """One line of the ledger, and its job; or what the ledger says already."""
    place = (tick.identifier, tick.at.astimezone(UTC))
    earlier = rows.ledger.get(place)
    if earlier is not None:
        return msgspec.structs.replace(earlier, mine=False)
    job_id = enqueueing.add(rows, tick.job).id
    entered = rows.ledger[place] = Entered(mine=True, job_id=job_id, spec=tick.spec)
    known = known_or_new(rows, tick.identifier, tick.spec)
    latest = max(known.last_tick or place[1], place[1])
    rows.known[tick.identifier] = msgspec.structs.replace(known, last_tick=latest)
    return entered


def known_or_new(rows: Rows, identifier: str, spec: str) -> KnownItem:
    """What is known of an item, or is from now on."""
    return rows.known.get(identifier, KnownItem(identifier=identifier, known_since=rows.now, last_tick=None, spec=spec))


def prune(rows: Rows) -> None:
    """Forget what may not be scheduled any more; a day later, so that clocks need not agree to the second."""
    oldest = rows.now - timedelta(days=LEDGER_DAYS + 1)
    rows.ledger = {place: entered for place, entered in rows.ledger.items() if place[1] >= oldest}
