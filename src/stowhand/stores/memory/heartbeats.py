"""The memory store's heart: what keeps leases true, from whatever thread."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from stowhand.jobs.lease import Lease, ResetJob
from stowhand.protocols.operating import WorkerCard
from stowhand.protocols.store import Foreign, Pulse, Refusal
from stowhand.stores.memory import leasing, operating, timetable

if TYPE_CHECKING:
    from stowhand.stores.memory.store import MemoryStore


class MemoryHeartbeats:
    """The store's blocking side; safe in another thread, because every call takes the store's lock."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    def beat(self, leases: Sequence[Lease], lease: float) -> Pulse:
        with self._store.transaction() as (rows, now):
            return leasing.beat(rows, leases, lease, now)

    def release(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        with self._store.transaction() as (rows, now):
            leasing.release(rows, leases, now)
        return ()

    def abandon(self, token: str) -> bool:
        with self._store.transaction() as (rows, now):
            leasing.abandon(rows, token, now)
        return True

    def foreign(self, ours: Sequence[Lease], slack: float) -> Foreign | None:
        with self._store.transaction() as (rows, now):
            return leasing.foreign(rows, ours, slack, now)

    def reset_stalled(self, slack: float) -> Sequence[ResetJob]:
        with self._store.transaction() as (rows, now):
            return leasing.reset(rows, leasing.stalled(rows, slack, now), now)

    def reset_worker(self, worker: str) -> Sequence[ResetJob]:
        with self._store.transaction() as (rows, now):
            return leasing.reset(rows, leasing.held_by(rows, worker), now)

    def reset_lease(self, lease: Lease) -> Sequence[ResetJob]:
        with self._store.transaction() as (rows, now):
            return leasing.reset(rows, [lease], now)

    def refused(self) -> Sequence[Refusal]:
        with self._store.transaction() as (rows, _):
            refused, rows.refused = rows.refused, []
        return refused

    def check(self) -> None:
        pass

    def check_writable(self) -> None:
        pass

    def maintain(self) -> None:
        with self._store.transaction() as (rows, now):
            oldest = now - timedelta(seconds=rows.kept or 0.0)
            rows.history = {
                row.id: row for row in rows.history.values() if row.finished_at is None or row.finished_at >= oldest
            }
            operating.prune(rows, now, self._store.failed_retention)
            timetable.prune(rows, now)
            self._store.flow_tables().prune(rows, now)

    def worker_seen(self, card: WorkerCard) -> None:
        with self._store.transaction() as (rows, now):
            _, started, _ = rows.roll.get(card.name, (card, now, now))
            rows.roll[card.name] = (card, started, now)

    def worker_gone(self, name: str) -> None:
        with self._store.transaction() as (rows, _):
            rows.roll.pop(name, None)

    def close(self) -> None:
        pass
