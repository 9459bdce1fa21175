"""The heartbeats of a user's table: leases, and waiting records with a cancellation request."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg

from stowhand.clock import stopwatch
from stowhand.jobs.lease import Lease, ResetJob
from stowhand.protocols.store import Foreign
from stowhand.stores.calls import Calls, reported
from stowhand.stores.database import postgres_errors
from stowhand.stores.database.link import Row
from stowhand.stores.postgres.shared.leaser import MAX_ROWS_PER_PAGE, Leaser
from stowhand.stores.postgres.table.context import TableContext

PAUSE_PER_QUERY_SECOND = 99.0
"""Seconds to pause the search for canceled waiting records, per second it took: no index helps."""


class TableHeartbeats(Leaser[TableContext]):
    """Renews and resets leases. Only this process knows its abandoned tokens."""

    def __init__(self, context: TableContext, calls: Calls) -> None:
        super().__init__(context, calls)
        self._next_maintenance_at = float("-inf")

    @reported
    async def abandon(self, token: str) -> bool:
        """Return the token's records to the queue. False if its claim is still running, or some are locked.

        A claim commits only after its reply was read, so a claim that is not running, and whose reply was lost, claims
        nothing later. A claim that starts later finds its token abandoned.
        """
        self._context.abandoned.add(token)
        with self._context.translated():
            ((is_over,),) = await self._run("claim_is_over", token=token)
            if not is_over:
                return False
            if not self._context.abandoned.started_claims.may_hold(token):
                return True
            rows = await self._run("held_by_token", token=token)
        return not await self.release([Lease(self._context.job_id(key), token, epoch) for key, epoch in rows])

    async def foreign(self, own_leases: Sequence[Lease], slack: float) -> Foreign | None:
        """Read the foreign leases, and cancel waiting records with a cancellation request."""
        await self._tidy()
        return await super().foreign(own_leases, slack)

    async def reset_stalled(self, slack: float) -> Sequence[ResetJob]:
        """Reset records whose lease was not renewed in time."""
        await self._tidy()
        return await super().reset_stalled(slack)

    async def check(self) -> None:
        """Do nothing: the table belongs to its owner. If it no longer fits, the next statement fails."""

    async def maintain(self) -> None:
        """Cancel waiting records with a cancellation request, which may be claimed much later."""
        started_at = stopwatch()
        with self._context.translated():
            has_more = len(await self._cancel_waiting()) == MAX_ROWS_PER_PAGE
        now = stopwatch()
        self._next_maintenance_at = now if has_more else now + PAUSE_PER_QUERY_SECOND * (now - started_at)

    async def _tidy(self) -> None:
        if stopwatch() >= self._next_maintenance_at:
            await self.maintain()

    async def _cancel_waiting(self) -> list[Row]:
        """Cancel a page of records. A record that the database refuses to change does not stop the others."""
        try:
            return await self._run_once("cancel_waiting", page=MAX_ROWS_PER_PAGE, ids=None)
        except psycopg.Error as error:
            if postgres_errors.concerns_call(error):
                raise
        rows = await self._run("find_cancel_waiting", page=MAX_ROWS_PER_PAGE)

        async def cancel(part: Sequence[Row]) -> list[Row]:
            return await self._run_once("cancel_waiting", page=MAX_ROWS_PER_PAGE, ids=[row[0] for row in part])

        canceled, _ = await self._write_each("cancel", rows, cancel, lambda row: self._context.job_id(row[0]))
        return canceled
