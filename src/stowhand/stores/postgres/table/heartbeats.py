"""The heartbeats of a user's table: beside leases, waiting records that were asked to cancel."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg

from stowhand.clock import stopwatch
from stowhand.jobs.lease import Lease, ResetJob
from stowhand.protocols.store import Foreign
from stowhand.stores.calls import Calls, reported
from stowhand.stores.database import postgres_errors
from stowhand.stores.database.link import Row
from stowhand.stores.postgres.shared.leaser import PAGE, Leaser
from stowhand.stores.postgres.table.context import TableContext

PAUSE_PER_SECOND = 99.0
"""Seconds between two looks for waiting records that were canceled, for each second that one took: no index helps."""


class TableHeartbeats(Leaser[TableContext]):
    """A token that has been abandoned is known by this process alone."""

    def __init__(self, context: TableContext, calls: Calls) -> None:
        super().__init__(context, calls)
        self._look_at = float("-inf")

    @reported
    async def abandon(self, token: str) -> bool:
        """Give back what it holds. False: its claim is still under way, or some of it is locked.

        A claim commits only after its answer was read; so one whose answer was lost and that is not under way any more
        brings nothing later. One that begins later finds its token abandoned.
        """
        self._context.abandoned.add(token)
        with self._context.translated():
            ((over,),) = await self._ask("claim_is_over", token=token)
            if not over:
                return False
            if not self._context.abandoned.started_claims.may_hold(token):
                return True
            found = await self._ask("held_by_token", token=token)
        return not await self.release([Lease(self._context.job_id(key), token, epoch) for key, epoch in found])

    async def foreign(self, ours: Sequence[Lease], slack: float) -> Foreign | None:
        """All leases but these. Waiting records that were asked to cancel are looked for as well."""
        await self._tidy()
        return await super().foreign(ours, slack)

    async def reset_stalled(self, slack: float) -> Sequence[ResetJob]:
        """Take back what has not been renewed in time."""
        await self._tidy()
        return await super().reset_stalled(slack)

    async def check(self) -> None:
        """Nothing: the table is its owner's; where it no longer fits, the next statement fails."""

    async def maintain(self) -> None:
        """Cancel waiting records that were asked to cancel: their turn may be far away."""
        began = stopwatch()
        with self._context.translated():
            more = len(await self._cancel_waiting()) == PAGE
        now = stopwatch()
        self._look_at = now if more else now + PAUSE_PER_SECOND * (now - began)

    async def _tidy(self) -> None:
        if stopwatch() >= self._look_at:
            await self.maintain()

    async def _cancel_waiting(self) -> list[Row]:
        """A page of them; one that the database refuses to change does not stop the others."""
        try:
            return await self._try("cancel_waiting", page=PAGE, ids=None)
        except psycopg.Error as error:
            if postgres_errors.concerns_call(error):
                raise
        found = await self._ask("find_cancel_waiting", page=PAGE)

        async def cancel(part: Sequence[Row]) -> list[Row]:
            return await self._try("cancel_waiting", page=PAGE, ids=[row[0] for row in part])

        canceled, _ = await self._write_each("cancel", found, cancel, lambda row: self._context.job_id(row[0]))
        return canceled
