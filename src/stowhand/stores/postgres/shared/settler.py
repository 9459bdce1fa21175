"""Settlements, on a connection of their own: durable, guarded by the pair (id, token), none failing for another."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from operator import attrgetter
from typing import TypeVar

import psycopg

from stowhand.clock import SystemClock
from stowhand.jobs.job import State
from stowhand.jobs.lease import JobId, Lease
from stowhand.jobs.lifecycle import COMPLETED
from stowhand.jobs.text import clean
from stowhand.protocols.store import RefusedSettlement, Reply, Verdict
from stowhand.stores.database import postgres_errors
from stowhand.stores.database.link import Connection, Link, rows
from stowhand.stores.database.postgres_errors import retry_transient
from stowhand.stores.database.refused_rows import write_each
from stowhand.stores.postgres.shared.plan import Context, Query, SettlePlan
from stowhand.stores.verdicts import Entry, Pair, Replies, pair, recorded

T = TypeVar("T")
Write = Callable[[Connection, Sequence[Entry]], Awaitable[Mapping[Pair, State]]]

_JOB_ID = attrgetter("job_id")

# A row is mostly locked by a statement of ours (a beat, a cancel, a key that moves on): gone in a moment. What takes
# longer is an application's transaction; then the caller tries again.
_BUSY_PAUSES = (0.002, 0.010)


class Settler:
    """Records how attempts ended: all together, what the database refuses alone, what is locked a moment later."""

    def __init__(self, context: Context, plan: SettlePlan, write: Write | None = None) -> None:
        """``write``: for a store that writes more than the plan's one statement."""
        self._context = context
        self._plan = plan
        self._write = write or self._write_plan
        self._link = Link(context.dialer, lambda: context.role("settle"))
        self._clock = SystemClock()

    async def settle(self, batch: Sequence[Entry], *, repeat: bool = False) -> Sequence[Reply]:
        """Replies in the order of the batch. What only completed is written first, all of it by one statement."""
        leases = self.plain_leases(batch)
        return await self.settle_rest(batch, await self._complete(leases) if leases else frozenset(), repeat=repeat)

    async def settle_rest(self, batch: Sequence[Entry], done: Set[JobId], *, repeat: bool) -> Sequence[Reply]:
        """Settle all but what is ``done``. Replies in the order of the batch."""
        if len(done) == len(batch):
            return [Verdict.SETTLED] * len(batch)
        rest = [entry for entry in batch if entry[0].job_id not in done]
        replies = iter(await self._settle_any(rest, repeat=repeat))
        return [Verdict.SETTLED if lease.job_id in done else next(replies) for lease, _ in batch]

    def plain_leases(self, batch: Sequence[Entry]) -> list[Lease]:
        """Those that completed with nothing to add, in id order; none where one id is there twice.

        What is completed together is answered by ids, which would not tell two leases of one job apart.
        """
        if len({lease.job_id for lease, _ in batch}) < len(batch):
            return []
        plain = [lease for lease, one in batch if one is COMPLETED or self._plan.is_plain(one)]
        plain.sort(key=_JOB_ID)
        return plain

    async def _complete(self, leases: Sequence[Lease]) -> Set[JobId]:
        """All together: nothing but ids and tokens travels. None of them where the database refuses one."""
        query = self._plan.complete(leases)
        with self._context.translated():
            try:
                return frozenset(await self.persist(lambda to: self.run(to, query)))
            except psycopg.Error as error:
                if postgres_errors.concerns_call(error):
                    raise
                return frozenset()

    async def _settle_any(self, batch: Sequence[Entry], *, repeat: bool) -> Sequence[Reply]:
        replies = Replies(batch)
        with self._context.translated():
            await self._settle(replies, replies.entries)
            for pause in _BUSY_PAUSES:
                busy = replies.busy()
                if not busy:
                    break
                await self._clock.sleep(pause)
                await self._settle(replies, busy)
        return replies.in_order(repeat=repeat)

    async def connect(self) -> None:
        """Have a connection, once. Raises StoreUnreachable."""
        if not self._link.connected:
            async with self._link.connection():
                pass

    async def close(self) -> None:
        """Close the connection."""
        await self._link.close()

    async def persist(self, action: Callable[[Connection], Awaitable[T]]) -> T:
        """Repeated a few times after errors by which nothing was done (a deadlock, a server shutting down)."""

        return await retry_transient(lambda: self.once(action), self._clock)

    async def once(self, action: Callable[[Connection], Awaitable[T]]) -> T:
        """For what must not be repeated."""
        async with self._link.connection() as connection:
            return await action(connection)

    async def run(self, connection: Connection, query: Query[T]) -> list[T]:
        """What the query finds."""
        prepared = self._context.dialer.prepared or None
        return [query.read(row) for row in await rows(connection, query.statement, query.values, prepared)]

    async def _settle(self, replies: Replies, entries: Sequence[Entry]) -> None:
        """Write what can be written, and look what became of the rest."""
        wrong = {pair(entry): why for entry in entries if (why := self._plan.acceptable(entry)) is not None}
        replies.known |= await self._write_each([entry for entry in entries if pair(entry) not in wrong])
        missed = replies.missed(entries)
        if not missed:
            return
        query = self._plan.look(missed)
        for about, found in await self.persist(lambda connection: self.run(connection, query)):
            if found is Verdict.BUSY and about in wrong:  # the lease holds its row, and only the values are wrong
                replies.known[about] = RefusedSettlement(wrong[about])
            elif found is not None:
                replies.known[about] = found

    async def _write_each(self, entries: Sequence[Entry]) -> dict[Pair, Reply]:
        """All together; where the database refuses some, the others. Where the server refuses all of several, its error
        is raised: the store is at fault, and the caller repeats the call."""

        async def write(part: Sequence[Entry]) -> Sequence[tuple[Pair, Reply]]:
            written = await self.once(lambda connection: self._write(connection, part))
            return [(pair(one), recorded(one[1], written[pair(one)])) for one in part if pair(one) in written]

        if not entries:
            return {}
        answer = await write_each(entries, write, self._clock, postgres_errors.concerns_call)
        by_server = [error for _, error in answer.refused if not postgres_errors.is_client_error(error)]
        if len(by_server) == len(entries) > 1:
            raise by_server[0]
        refused = {
            pair(entry): RefusedSettlement(clean(postgres_errors.first_line(error))) for entry, error in answer.refused
        }
        return dict(answer.rows) | refused

    async def _write_plan(self, connection: Connection, entries: Sequence[Entry]) -> Mapping[Pair, State]:
        return dict(await self.run(connection, self._plan.settle(entries)))
