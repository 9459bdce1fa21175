"""The queue's settlements: most are completed in one statement, the others by the settler that tables have too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import psycopg

from stowhand.jobs import limits
from stowhand.jobs.job import Job, NewJob, State
from stowhand.jobs.lease import JobId, Lease
from stowhand.jobs.lifecycle import Settlement
from stowhand.protocols.store import Claim, ClaimRequest, Reply, Verdict
from stowhand.stores.database import trouble
from stowhand.stores.database.link import Connection, Row, rows
from stowhand.stores.postgres.queue.context import PostgresContext
from stowhand.stores.postgres.queue.plan import QueuePlan
from stowhand.stores.postgres.queue.producing import CHUNK, call_of, call_of_each
from stowhand.stores.postgres.queue.rows import pairs, read_claims
from stowhand.stores.postgres.shared.settler import Settler, plain_leases
from stowhand.stores.verdicts import Entry, Pair, pair


class Settlements:
    """Records how attempts ended, and enqueues what follows them."""

    def __init__(self, context: PostgresContext) -> None:
        self._context = context
        self._plan = QueuePlan(context)
        self._settler = Settler(context, self._plan, self._write)

    async def settle(self, batch: Sequence[Entry], *, repeat: bool) -> Sequence[Reply]:
        """Replies in the order of the batch."""
        leases = plain_leases(batch, _is_plain)
        completed = await self._complete(leases) if leases else []
        if len(completed) == len(batch):
            return [Verdict.SETTLED] * len(batch)
        done = frozenset(row[0] for row in completed)
        return await self._settle_rest(batch, done, repeat=repeat)

    async def settle_and_claim(
        self, batch: Sequence[Entry], request: ClaimRequest
    ) -> tuple[Sequence[Reply], Sequence[Claim[Job]]]:
        """Claims only along with a batch that is completed in one statement. That one is sent once: a claim whose
        reply is lost is not repeated but abandoned, by the caller."""
        leases = plain_leases(batch, _is_plain)
        if len(leases) < len(batch):
            return await self.settle(batch, repeat=False), ()
        values = (
            *(*pairs(leases), self._context.keep, request.worker, request.token, request.limit, request.lease),
            None if request.tasks is None else list(request.tasks),
            *(list(request.forbidden_flags) or None, self._context.now()),
        )
        with self._context.translated():
            try:
                first, *claimed = await self._settler.once(lambda to: self._rows(to, "settle_and_claim", values))
            except psycopg.Error as error:
                if trouble.ends_connection(error):
                    raise
                return await self.settle(batch, repeat=False), ()  # the server has undone all of it
        claims = read_claims([row[1:] for row in claimed], request.worker, request.token)
        done = frozenset(first[0] or ())
        if len(done) == len(batch):
            return [Verdict.SETTLED] * len(batch), claims
        return await self._settle_rest(batch, done, repeat=False), claims

    async def close(self) -> None:
        """Close the connection."""
        await self._settler.close()

    async def _settle_rest(self, batch: Sequence[Entry], done: frozenset[JobId], *, repeat: bool) -> Sequence[Reply]:
        rest = [entry for entry in batch if entry[0].job_id not in done]
        replies = iter(await self._settler.settle(rest, repeat=repeat))
        return [Verdict.SETTLED if lease.job_id in done else next(replies) for lease, _ in batch]

    async def _complete(self, leases: Sequence[Lease]) -> Sequence[Row]:
        """Their ids. All together: nothing but ids and tokens travels. None of them where the database refuses one."""
        values = (*pairs(leases), self._context.keep, self._context.now())
        with self._context.translated():
            try:
                return await self._settler.persist(lambda to: self._rows(to, "settle_completed", values))
            except psycopg.Error as error:
                if trouble.concerns_call(error):
                    raise
                return []

    async def _write(self, connection: Connection, entries: Sequence[Entry]) -> Mapping[Pair, State]:
        """One transaction: the settlements, and what the accepted ones enqueue."""
        query = self._plan.settle(entries)
        follow_ups = [(entry, job) for entry in entries for job in entry[1].then]
        if not follow_ups:
            return dict(await self._settler.run(connection, query))
        async with connection.transaction():
            accepted = dict(await self._settler.run(connection, query))
            going_on = [job for entry, job in follow_ups if accepted.get(pair(entry)) is entry[1].state]
            await self._enqueue(connection, going_on)
        return accepted

    async def _enqueue(self, connection: Connection, jobs: Sequence[NewJob]) -> None:
        if not jobs:
            return
        jobs = [self._context.options.whole(limits.check_options(job)) for job in jobs]
        if len(jobs) == 1:
            await self._rows(connection, *call_of(jobs[0], self._context.now()))
            return
        in_order = sorted(jobs, key=lambda job: job.key or "")  # as one statement would lock them
        for start in range(0, len(in_order), CHUNK):
            await self._rows(connection, *call_of_each(in_order[start : start + CHUNK], self._context.now()))

    async def _rows(self, connection: Connection, name: str, values: Sequence[object]) -> list[Row]:
        return await rows(connection, self._context.statements[name], values, self._context.dialer.prepared or None)


def _is_plain(settlement: Settlement) -> bool:
    return (
        settlement.state is State.COMPLETED
        and settlement.result is None
        and settlement.error is None
        and not settlement.then
        and not settlement.refund
    )
