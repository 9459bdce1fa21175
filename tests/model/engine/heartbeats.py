"""Renewing leases and resetting jobs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from stowhand.jobs.lease import Lease, ResetJob
from stowhand.protocols.attempt import Progress
from stowhand.protocols.store import Pulse
from tests.model.engine import leasing
from tests.model.engine.rows import Transaction


class ModelHeartbeats:
    """The store's other side."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    async def beat(self, leases: Sequence[Lease], lease: float) -> Pulse:
        """Renew what is still held, even past its deadline: no worker has taken it yet."""
        lost, canceled = set(), set()
        with self._transaction() as rows:
            for one in leases:
                row, pair = rows.held(one), (one.job_id, one.token)
                if row is None:
                    lost.add(pair)
                else:
                    row.lease_until = rows.now + timedelta(seconds=lease)
                    if row.cancel_requested:
                        canceled.add(pair)
        return Pulse(lost=frozenset(lost), canceled=frozenset(canceled))

    async def release(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        with self._transaction() as rows:
            leasing.release(rows, leases)
        return ()

    async def abandon(self, token: str) -> bool:
        with self._transaction() as rows:
            rows.abandoned.add(token)  # it claims nothing more
            leasing.release(rows, [row.lease() for row in rows.running() if row.token == token])
        return True

    async def reset_stalled(self, slack: float) -> Sequence[ResetJob]:
        with self._transaction() as rows:
            late = rows.now - timedelta(seconds=slack)
            ended = [row for row in rows.running() if row.lease_until is not None and row.lease_until < late]
            return leasing.reset(rows, [row.lease() for row in ended])

    async def reset_worker(self, worker: str) -> Sequence[ResetJob]:
        with self._transaction() as rows:
            return leasing.reset(rows, [row.lease() for row in rows.running() if row.worker == worker])

    async def reset_lease(self, lease: Lease) -> Sequence[ResetJob]:
        with self._transaction() as rows:
            return leasing.reset(rows, [lease])

    async def keep_progress(self, notes: Sequence[Progress], timeout: float) -> None:
        with self._transaction() as rows:
            for note in notes:
                if (row := rows.held(note.lease)) is not None:
                    row.progress, row.progress_text = note.done, note.text

    async def close(self) -> None:
        pass
