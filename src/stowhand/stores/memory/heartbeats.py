"""Renewing leases, resetting jobs and maintenance of the memory store, from any thread."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from stowhand.jobs.job import State
from stowhand.jobs.lease import Lease, Pair, ResetJob
from stowhand.protocols.operating import WorkerCard
from stowhand.protocols.progress import Progress
from stowhand.protocols.store import Foreign, Pulse, Refusal
from stowhand.protocols.throughput import TaskMinute
from stowhand.stores.memory import leasing, operating, throughput, timetable

if TYPE_CHECKING:
    from stowhand.stores.memory.store import MemoryStore


class MemoryHeartbeats:
    """The store's other side; safe on a loop in another thread, because every call takes the store's lock."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def beat(self, leases: Sequence[Lease], lease: float) -> Pulse:
        """Renew what is still held, even past its deadline: no worker has taken it yet."""
        lost, canceled, refused = set(), set(), set()
        with self._store.transaction() as rows:
            for one in leases:
                row, pair = rows.held(one), (one.job_id, one.token)
                if row is None:
                    lost.add(pair)
                elif not rows.may(row.id, State.PROCESSING, "beat"):
                    refused.add(pair)
                else:
                    row.lease_until = rows.now + timedelta(seconds=lease)
                    if row.cancel_requested:
                        canceled.add(pair)
        return Pulse(lost=frozenset(lost), canceled=frozenset(canceled), refused=frozenset(refused))

    async def find_canceled(self, leases: Sequence[Lease]) -> frozenset[Pair]:
        with self._store.transaction() as rows:
            held = [(one.pair, rows.held(one)) for one in leases]
            return frozenset(pair for pair, row in held if row is not None and row.cancel_requested)

    async def release(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        with self._store.transaction() as rows:
            leasing.release(rows, leases)
        return ()

    async def abandon(self, token: str) -> bool:
        with self._store.transaction() as rows:
            rows.abandoned.add(token)  # it claims nothing more
            leasing.release(rows, [row.lease() for row in rows.running() if row.token == token])
        return True

    async def foreign(self, ours: Sequence[Lease], slack: float) -> Foreign | None:
        with self._store.transaction() as rows:
            return leasing.foreign(rows, ours, slack)

    async def reset_stalled(self, slack: float) -> Sequence[ResetJob]:
        with self._store.transaction() as rows:
            late = rows.now - timedelta(seconds=slack)
            ended = [row for row in rows.running() if row.lease_until is not None and row.lease_until < late]
            return leasing.reset(rows, [row.lease() for row in ended])

    async def reset_worker(self, worker: str) -> Sequence[ResetJob]:
        with self._store.transaction() as rows:
            return leasing.reset(rows, [row.lease() for row in rows.running() if row.worker == worker])

    async def reset_lease(self, lease: Lease) -> Sequence[ResetJob]:
        with self._store.transaction() as rows:
            return leasing.reset(rows, [lease])

    def refused(self) -> Sequence[Refusal]:
        with self._store.transaction() as rows:
            return rows.take_refused()

    async def check(self) -> None:
        pass

    async def check_writable(self) -> None:
        pass

    async def maintain(self) -> None:
        with self._store.transaction() as rows:
            oldest = rows.now - timedelta(seconds=rows.retention or 0.0)
            past = [row for row in rows.history.values() if row.finished_at is not None and row.finished_at < oldest]
            rows.forget(past)
            rows.uniques = {key: taken for key, taken in rows.uniques.items() if taken.until > rows.now}
            operating.prune(rows, self._store.failed_retention)
            timetable.prune(rows)
            self._store.flows.prune(rows)
            throughput.fold(rows)

    async def keep_progress(self, notes: Sequence[Progress], within: float) -> None:
        with self._store.transaction() as rows:
            for note in notes:
                if (row := rows.held(note.lease)) is not None:
                    row.progress, row.progress_text = note.done, note.text

    async def worker_seen(self, card: WorkerCard) -> None:
        with self._store.transaction() as rows:
            _, started, _ = rows.workers.get(card.name, (card, rows.now, rows.now))
            rows.workers[card.name] = (card, started, rows.now)
            if card.app_version is not None:
                operating.note_version(rows, card.app_version)

    async def worker_gone(self, name: str) -> None:
        with self._store.transaction() as rows:
            rows.workers.pop(name, None)

    async def write_throughput(self, writer: str, minutes: Sequence[TaskMinute]) -> Collection[tuple[int, str]]:
        with self._store.transaction() as rows:
            return throughput.write(rows, writer, minutes)

    async def close(self) -> None:
        pass
