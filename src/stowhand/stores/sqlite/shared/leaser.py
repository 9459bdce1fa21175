"""Leases of the queue and of a user's table: renewed, released, and taken back from lost workers.

It has its own connection, used from one other thread. Calls block that thread's loop, which has nothing else to do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from stowhand.clock import SystemClock
from stowhand.jobs.lease import Lease, ResetJob
from stowhand.jobs.text import clean
from stowhand.protocols.store import Foreign, Pulse, RefusedChange
from stowhand.stores.calls import UNREPORTED, Calls, reported
from stowhand.stores.database.refused_rows import write_each
from stowhand.stores.database.sqlite_connection import OnConnection, SqliteConnection, WriteProbe
from stowhand.stores.database.sqlite_errors import concerns_call, message_of
from stowhand.stores.sqlite.shared.plan import LeasePlan

MAX_LEASES_PER_PAGE = 1000
R = TypeVar("R")
X = TypeVar("X", bound=OnConnection)
_SYSTEM_CLOCK = SystemClock()


class Leaser(Generic[X]):
    """The common part of the heartbeats of the queue and of a user's table."""

    def __init__(
        self,
        connection: SqliteConnection[X],
        probe: WriteProbe | None,
        plan: LeasePlan[X],
        calls: Calls = UNREPORTED,
    ) -> None:
        self.calls = calls
        self._connection = connection
        self._write_probe = probe
        self._plan = plan
        self._refused: list[RefusedChange] = []

    @reported
    async def beat(self, leases: Sequence[Lease], lease: float) -> Pulse:
        """Renew for ``lease`` seconds from now. A table ignores ``lease``, and uses its own option."""
        if not leases:
            return Pulse()
        leases_by_pair = {renewal.pair: renewal for renewal in leases}
        renewals, refused = await self._write_each(
            "beat", list(leases_by_pair.values()), lambda tx, part: self._plan.renew(tx, part, lease)
        )
        for renewal in renewals:
            if renewal.refusal:
                self._refused.append(RefusedChange(renewal.pair[0], "beat", renewal.refusal))
        renewed = frozenset(renewal.pair for renewal in renewals if not renewal.refusal)
        return Pulse(
            lost=frozenset(leases_by_pair.keys() - renewed - refused),
            canceled=frozenset(
                renewal.pair for renewal in renewals if renewal.pair in renewed and renewal.cancel_requested
            ),
            refused=frozenset(refused),
        )

    @reported
    async def release(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        """Return jobs to the queue without using an attempt. None is busy: there is one writer at a time."""

        def release(tx: X, part: Sequence[Lease]) -> Sequence[None]:
            for lease in part:
                self._plan.release(tx, lease)
            return ()

        if leases:
            await self._write_each("release", leases, release)
        return ()

    @reported
    async def abandon(self, token: str) -> bool:
        """Release all jobs of this token, which may claim nothing more."""
        await self.release(self._connection.write(lambda tx: self._plan.abandon(tx, token)))
        return True

    @reported
    async def foreign(self, own_leases: Sequence[Lease], slack: float) -> Foreign | None:
        """Look for foreign leases."""
        return self._connection.read(lambda tx: self._plan.find_foreign(tx, own_leases, slack))

    @reported
    async def reset_stalled(self, slack: float) -> Sequence[ResetJob]:
        """Reset a page of rows whose lease expired more than ``slack`` seconds ago."""
        return await self._reset(lambda tx: self._plan.find_stalled(tx, slack))

    @reported
    async def reset_worker(self, worker: str) -> Sequence[ResetJob]:
        """Reset a page of this worker's rows."""
        return await self._reset(lambda tx: self._plan.find_held_by(tx, worker))

    @reported
    async def reset_lease(self, lease: Lease) -> Sequence[ResetJob]:
        """Reset the row of this lease."""
        return await self._reset(lambda _: [lease])

    def refused(self) -> Sequence[RefusedChange]:
        """Return what the file refused to change since the last call."""
        refused, self._refused = self._refused, []
        return refused

    async def check_writable(self) -> None:
        """Write to the file, and roll back."""
        if self._write_probe is not None:
            self._write_probe.look()

    async def close(self) -> None:
        """Close the connections."""
        self._connection.close()
        if self._write_probe is not None:
            self._write_probe.close()

    async def _reset(self, find: Callable[[X], Sequence[Lease]]) -> Sequence[ResetJob]:
        # Read first, without the write lock: there is hardly ever anything to do.
        leases = self._connection.read(find)
        if not leases:
            return []

        def reset(tx: X, part: Sequence[Lease]) -> list[ResetJob]:
            current = set(find(tx))  # a lease may have been renewed meanwhile
            jobs = [self._plan.reset(tx, lease) for lease in part if lease in current]
            return [job for job in jobs if job is not None]

        reset_jobs, _ = await self._write_each("reset", leases, reset)
        return reset_jobs

    async def _write_each(
        self, operation: str, leases: Sequence[Lease], write: Callable[[X, Sequence[Lease]], Sequence[R]]
    ) -> tuple[list[R], set[tuple[object, str]]]:
        """Write in one transaction. Return the answers, and the pairs that the file refuses, which are reported."""

        async def call(part: Sequence[Lease]) -> Sequence[R]:
            return self._connection.write(lambda tx: write(tx, part))

        result = await write_each(leases, call, _SYSTEM_CLOCK, concerns_call, self._connection.retry_pauses)
        for lease, error in result.refused:
            self._refused.append(RefusedChange(lease.job_id, operation, clean(message_of(error))))
        return result.rows, {lease.pair for lease, _ in result.refused}
