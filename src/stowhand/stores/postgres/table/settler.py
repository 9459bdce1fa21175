"""A table's settlements: most are completed in one statement, the others by the settler that the queue has too."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg

from stowhand.jobs.job import State
from stowhand.jobs.lease import JobId, Lease
from stowhand.jobs.lifecycle import Settlement
from stowhand.protocols.store import Reply, Verdict
from stowhand.stores.database import trouble
from stowhand.stores.postgres.shared.settler import Settler, plain_leases
from stowhand.stores.postgres.table.context import TableContext
from stowhand.stores.postgres.table.plan import TablePlan
from stowhand.stores.verdicts import Entry


class TableSettler:
    """Records how attempts ended."""

    def __init__(self, context: TableContext, plan: TablePlan, settler: Settler) -> None:
        self._context = context
        self._plan = plan
        self._settler = settler

    async def settle(self, batch: Sequence[Entry], *, repeat: bool) -> Sequence[Reply]:
        """Replies in the order of the batch."""
        leases = plain_leases(batch, _is_plain)
        done = await self._complete(leases) if leases else frozenset()
        if len(done) == len(batch):
            return [Verdict.SETTLED] * len(batch)
        rest = [entry for entry in batch if entry[0].job_id not in done]
        replies = iter(await self._settler.settle(rest, repeat=repeat))
        return [Verdict.SETTLED if lease.job_id in done else next(replies) for lease, _ in batch]

    async def close(self) -> None:
        """Close the connection."""
        await self._settler.close()

    async def _complete(self, leases: Sequence[Lease]) -> frozenset[JobId]:
        """All together. None of them where the database refuses one."""
        query = self._plan.complete(leases)
        with self._context.translated():
            try:
                return frozenset(await self._settler.persist(lambda to: self._settler.run(to, query)))
            except psycopg.Error as error:
                if trouble.concerns_call(error):
                    raise
                return frozenset()


def _is_plain(settlement: Settlement) -> bool:
    """A table has no place for a result."""
    return settlement.state is State.COMPLETED and settlement.error is None and not settlement.then
