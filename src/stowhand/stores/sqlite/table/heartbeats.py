"""The heartbeats of a user's table: beside leases, waiting records that were asked to cancel.

A lease ends ``stalled_max_age`` after ``last_heartbeat_at`` by the machine's wall clock. A queue that is ours keeps its
leases by the boot's monotonic clock, which no program can set; a table that other programs share has only its columns,
and they compare them with the time of day. So a wall clock that leaps ahead by more than the lease resets live records:
their attempts are lost, never settled twice.

While an application holds a write transaction no beat can be written. A sweep that had to wait for it resets nothing in
that round, and one that did not pauses: the beats that waited come first.
"""

from __future__ import annotations

from collections.abc import Sequence

from stowhand.clock import SystemClock, stopwatch
from stowhand.jobs.lease import Lease, ResetJob
from stowhand.protocols.store import Foreign
from stowhand.stores.calls import Calls, reported
from stowhand.stores.database.sqlite_connection import SqliteConnection, WriteProbe
from stowhand.stores.sqlite.shared.leaser import PAGE, Leaser
from stowhand.stores.sqlite.table.connections import TableTransaction
from stowhand.stores.sqlite.table.plan import TablePlan, no_lease

SHORT = 0.5
"""Seconds: one that waited longer than that for the write lock lets the others' beats go first."""
TURN = 0.1
"""Seconds, in which one that waits for the lock tries several times."""
RECENTLY = 1.0
"""Seconds in which no transaction can have kept beats away for as long as a lease lasts."""
SHARE = 0.01
"""Of the time, at most, goes into looking for waiting records that were canceled."""

CLOCK = SystemClock()


class TableHeartbeats(Leaser[TableTransaction]):
    """Leases end by the table's own columns."""

    def __init__(
        self, connection: SqliteConnection[TableTransaction], probe: WriteProbe, plan: TablePlan, calls: Calls
    ) -> None:
        super().__init__(connection, probe, plan, calls)
        self._rest_until = self._turns_at = float("-inf")

    async def foreign(self, ours: Sequence[Lease], slack: float) -> Foreign | None:
        """All leases but these. Waiting records that were asked to cancel are looked for as well."""
        await self.maintain()
        return await super().foreign(ours, slack)

    @reported
    async def reset_stalled(self, slack: float) -> Sequence[ResetJob]:
        """Take back a page of records without a heartbeat for ``stalled_max_age`` and ``slack`` seconds."""
        await self.maintain()
        # A look without the write lock first: there is hardly ever anything to do.
        if not self._connection.read(lambda tx: self._plan.find_stalled(tx, slack)):
            return []
        if not await self._beats_had_their_turn():
            return []
        asked = stopwatch()
        return await self._reset(lambda tx: () if stopwatch() - asked > SHORT else self._plan.find_stalled(tx, slack))

    async def check(self) -> None:
        """Does nothing: the table is its owner's, and what it lacks is reported where it is needed."""

    async def maintain(self) -> None:
        """Put away waiting records whose ``cancel`` was set. Looked for seldom where looking takes long."""
        if stopwatch() < self._rest_until:
            return
        began = stopwatch()

        def find(tx: TableTransaction) -> list[Lease]:
            can_ask = tx.table.shape.has("cancel")
            return [no_lease(key) for (key,) in tx.look("find_cancel_waiting", limit=PAGE)] if can_ask else []

        def cancel(tx: TableTransaction, part: Sequence[Lease]) -> Sequence[None]:
            for waiting in part:
                tx.run("cancel_waiting", id=waiting.job_id)
            return ()

        if found := self._connection.read(find):
            await self._write_each("cancel", found, cancel)
        self._rest_until = stopwatch() + (stopwatch() - began) / SHARE

    async def _beats_had_their_turn(self) -> bool:
        """False while another program holds the write lock. When it has just released it, others have been waiting."""
        if stopwatch() - self._turns_at < RECENTLY:
            return True
        asked = stopwatch()
        self._connection.write(lambda _: None)
        if stopwatch() - asked > SHORT:
            return False
        await CLOCK.sleep(TURN)
        self._turns_at = stopwatch()
        return True
