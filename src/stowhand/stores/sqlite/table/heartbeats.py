"""The heartbeats of a user's table: leases, and waiting records with a cancellation request.

A lease expires ``stalled_max_age`` after ``last_heartbeat_at`` by the machine's wall clock. Our own queue uses the
monotonic clock of the boot, which no program can set. A table shared with other programs has only its columns, which
they compare with the time of day. So if the wall clock jumps ahead by more than the lease, live records are reset:
their attempts are lost, but never settled twice.

While an application holds a write transaction, no beat can be written. A sweep that had to wait for the lock resets
nothing in that round, and one that did not wait pauses first: waiting beats are written before it.
"""

from __future__ import annotations

from collections.abc import Sequence

from stowhand.clock import SystemClock, stopwatch
from stowhand.jobs.lease import Lease, ResetJob
from stowhand.protocols.store import Foreign
from stowhand.stores.calls import Calls, reported
from stowhand.stores.database.sqlite_connection import SqliteConnection, WriteProbe
from stowhand.stores.sqlite.shared.leaser import MAX_LEASES_PER_PAGE, Leaser
from stowhand.stores.sqlite.table.connections import TableTransaction
from stowhand.stores.sqlite.table.plan import TablePlan, no_lease

MAX_LOCK_WAIT_SECONDS = 0.5
"""A sweep that waited longer than this for the write lock lets other beats be written first."""
BEATS_PAUSE_SECONDS = 0.1
"""A pause in which a writer that waits for the lock tries several times."""
RECENT_PAUSE_SECONDS = 1.0
"""A period too short for a transaction to have blocked beats for a whole lease."""
MAX_SEARCH_TIME_SHARE = 0.01
"""The maximum share of time for the search for canceled waiting records."""

SYSTEM_CLOCK = SystemClock()


class TableHeartbeats(Leaser[TableTransaction]):
    """Renews and resets leases by the table's own columns."""

    def __init__(
        self, connection: SqliteConnection[TableTransaction], probe: WriteProbe, plan: TablePlan, calls: Calls
    ) -> None:
        super().__init__(connection, probe, plan, calls)
        self._next_maintenance_at = self._last_pause_at = float("-inf")

    async def foreign(self, own_leases: Sequence[Lease], slack: float) -> Foreign | None:
        """Look for foreign leases, and cancel waiting records with a cancellation request."""
        await self.maintain()
        return await super().foreign(own_leases, slack)

    @reported
    async def reset_stalled(self, slack: float) -> Sequence[ResetJob]:
        """Reset a page of records without a heartbeat for ``stalled_max_age`` and ``slack`` seconds."""
        await self.maintain()
        # Read first, without the write lock: there is hardly ever anything to do.
        if not self._connection.read(lambda tx: self._plan.find_stalled(tx, slack)):
            return []
        if not await self._let_beats_run_first():
            return []
        requested_at = stopwatch()
        return await self._reset(
            lambda tx: () if stopwatch() - requested_at > MAX_LOCK_WAIT_SECONDS else self._plan.find_stalled(tx, slack)
        )

    async def check(self) -> None:
        """Do nothing: the application owns the table, and statements report missing columns."""

    async def maintain(self) -> None:
        """Cancel waiting records whose ``cancel`` is set. The slower the search, the less often it runs."""
        if stopwatch() < self._next_maintenance_at:
            return
        started_at = stopwatch()

        def find(tx: TableTransaction) -> list[Lease]:
            if not tx.table.shape.has("cancel"):
                return []
            return [no_lease(key) for (key,) in tx.read("find_cancel_waiting", limit=MAX_LEASES_PER_PAGE)]

        def cancel(tx: TableTransaction, part: Sequence[Lease]) -> Sequence[None]:
            for waiting in part:
                tx.run("cancel_waiting", id=waiting.job_id)
            return ()

        if leases := self._connection.read(find):
            await self._write_each("cancel", leases, cancel)
        self._next_maintenance_at = stopwatch() + (stopwatch() - started_at) / MAX_SEARCH_TIME_SHARE

    async def _let_beats_run_first(self) -> bool:
        """Pause so that waiting beats are written before a sweep. Return False if another program holds the lock."""
        if stopwatch() - self._last_pause_at < RECENT_PAUSE_SECONDS:
            return True
        requested_at = stopwatch()
        self._connection.write(lambda _: None)
        if stopwatch() - requested_at > MAX_LOCK_WAIT_SECONDS:
            return False
        await SYSTEM_CLOCK.sleep(BEATS_PAUSE_SECONDS)
        self._last_pause_at = stopwatch()
        return True
