"""Settlements on their own connection: durable, guarded by (id, token), and independent of each other."""

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

# Rows are usually locked by our own short statements (a beat, a cancellation, the next job of a key). A transaction of
# the application takes longer, and then the caller retries.
_BUSY_PAUSES_SECONDS = (0.002, 0.010)


class Settler:
    """Records the outcomes of attempts in one call, and retries locked rows after a pause."""

    def __init__(self, context: Context, plan: SettlePlan, write: Write | None = None) -> None:
        """``write`` replaces the plan's statement for a store that writes more."""
        self._context = context
        self._plan = plan
        self._write = write or self._write_plan
        self._link = Link(context.dialer, lambda: context.role("settle"))
        self._clock = SystemClock()

    async def settle(self, batch: Sequence[Entry], *, repeat: bool = False) -> Sequence[Reply]:
        """Settle a batch, and reply in its order. Plain completions are written first, by one statement."""
        leases = self.plain_leases(batch)
        return await self.settle_rest(batch, await self._complete(leases) if leases else frozenset(), repeat=repeat)

    async def settle_rest(self, batch: Sequence[Entry], done: Set[JobId], *, repeat: bool) -> Sequence[Reply]:
        """Settle all jobs that are not ``done``, and reply in the order of the batch."""
        if len(done) == len(batch):
            return [Verdict.SETTLED] * len(batch)
        remaining = [entry for entry in batch if entry[0].job_id not in done]
        replies = iter(await self._settle_any(remaining, repeat=repeat))
        return [Verdict.SETTLED if lease.job_id in done else next(replies) for lease, _ in batch]

    def plain_leases(self, batch: Sequence[Entry]) -> list[Lease]:
        """Return the leases of plain completions in order of ids; none if an id occurs twice.

        The reply to completions contains ids only, which cannot distinguish two leases of one job.
        """
        if len({lease.job_id for lease, _ in batch}) < len(batch):
            return []
        plain = [lease for lease, settlement in batch if settlement is COMPLETED or self._plan.is_plain(settlement)]
        plain.sort(key=_JOB_ID)
        return plain

    async def _complete(self, leases: Sequence[Lease]) -> Set[JobId]:
        """Complete all leases, sending only ids and tokens. Complete none if the database refuses one."""
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
            for pause in _BUSY_PAUSES_SECONDS:
                busy = replies.busy()
                if not busy:
                    break
                await self._clock.sleep(pause)
                await self._settle(replies, busy)
        return replies.in_order(repeat=repeat)

    async def connect(self) -> None:
        """Connect if there is no connection. Raise StoreUnreachable."""
        if not self._link.connected:
            async with self._link.connection():
                pass

    async def close(self) -> None:
        """Close the connection."""
        await self._link.close()

    async def persist(self, action: Callable[[Connection], Awaitable[T]]) -> T:
        """Run an action, repeated a few times after transient errors (a deadlock, a server that shuts down)."""

        return await retry_transient(lambda: self.once(action), self._clock)

    async def once(self, action: Callable[[Connection], Awaitable[T]]) -> T:
        """Run an action that must not be repeated."""
        async with self._link.connection() as connection:
            return await action(connection)

    async def run(self, connection: Connection, query: Query[T]) -> list[T]:
        """Run a query, and return its rows as it reads them."""
        prepared = self._context.dialer.prepared or None
        return [query.read(row) for row in await rows(connection, query.statement, query.values, prepared)]

    async def _settle(self, replies: Replies, entries: Sequence[Entry]) -> None:
        """Write the settlements. Look up the state of those not written."""
        reasons = {pair(entry): reason for entry in entries if (reason := self._plan.acceptable(entry)) is not None}
        replies.known |= await self._write_each([entry for entry in entries if pair(entry) not in reasons])
        missed = replies.missed(entries)
        if not missed:
            return
        query = self._plan.look(missed)
        for lease_pair, reply in await self.persist(lambda connection: self.run(connection, query)):
            if (
                reply is Verdict.BUSY and lease_pair in reasons
            ):  # the lease holds its row, and only the values are wrong
                replies.known[lease_pair] = RefusedSettlement(reasons[lease_pair])
            elif reply is not None:
                replies.known[lease_pair] = reply

    async def _write_each(self, entries: Sequence[Entry]) -> dict[Pair, Reply]:
        """Write all entries, or those that the database does not refuse.

        If the server refuses all of several, raise its error: the store is at fault, and the caller repeats the call.
        """

        async def write(part: Sequence[Entry]) -> Sequence[tuple[Pair, Reply]]:
            states = await self.once(lambda connection: self._write(connection, part))
            return [(pair(entry), recorded(entry[1], states[pair(entry)])) for entry in part if pair(entry) in states]

        if not entries:
            return {}
        answer = await write_each(entries, write, self._clock, postgres_errors.concerns_call)
        server_errors = [error for _, error in answer.refused if not postgres_errors.is_client_error(error)]
        if len(server_errors) == len(entries) > 1:
            raise server_errors[0]
        refused = {
            pair(entry): RefusedSettlement(clean(postgres_errors.first_line(error))) for entry, error in answer.refused
        }
        return dict(answer.rows) | refused

    async def _write_plan(self, connection: Connection, entries: Sequence[Entry]) -> Mapping[Pair, State]:
        return dict(await self.run(connection, self._plan.settle(entries)))
