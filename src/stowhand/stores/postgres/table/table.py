"""One user's table in PostgreSQL: opens the parts, each of which has its file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from stowhand.jobs.job import State
from stowhand.jobs.lease import JobId, Lease
from stowhand.jobs.lifecycle import Settlement
from stowhand.protocols.handler import Attempt
from stowhand.protocols.queue_store import Answer
from stowhand.protocols.store import ClaimRequest, Heartbeats, Reply
from stowhand.stores.postgres.shared.listener import Listener, NoAnnouncement
from stowhand.stores.postgres.shared.settler import Settler
from stowhand.stores.postgres.table import asking, checks
from stowhand.stores.postgres.table.catalog import Facts
from stowhand.stores.postgres.table.claiming import TableClaims
from stowhand.stores.postgres.table.composing import INTEGERS, Composer
from stowhand.stores.postgres.table.context import TableContext
from stowhand.stores.postgres.table.heartbeats import TableHeartbeats
from stowhand.stores.postgres.table.logs import Logs
from stowhand.stores.postgres.table.plan import TablePlan
from stowhand.stores.postgres.table.transaction import AttemptTransactions
from stowhand.stores.table.backend import AttemptTransaction, Finding, Taken
from stowhand.stores.table.keys import Key
from stowhand.stores.table.names import Shape
from stowhand.stores.table.notices import Notices
from stowhand.stores.table.options import TableOptions
from stowhand.stores.table.passed_over import PassedOver
from stowhand.stores.table.record_view import ShownRecord

_BEHIND_POOLER = "behind a pooler no notification arrives, so the table is polled"


class PostgresTable:
    """``place``: a URL, a libpq string, or a ``psycopg_pool.AsyncConnectionPool``. Connects when it is used."""

    def __init__(
        self,
        place: str | object,
        options: TableOptions[Any],
        shape: Shape,
        *,
        pinned: Callable[[], datetime] | None = None,
        notices: Notices | None = None,
    ) -> None:
        context = TableContext(place, options, shape, pinned)
        self._context = context
        self.warnings: Sequence[Finding] = ()
        self._claims = TableClaims(context, PassedOver(notices or Notices(options.name)))
        plan = TablePlan(context)
        self._settlements = Settler(context, plan)
        self._logs = Logs(context)
        self._listener = Listener(
            context.dialer, lambda: context.role("listen"), options.notify_channel, _BEHIND_POOLER, NoAnnouncement()
        )
        self._transactions = AttemptTransactions(context, plan, self._settlements, self._logs)

    @property
    def description(self) -> str:
        """Where it is, for people."""
        return str(self._context)

    @property
    def key(self) -> Key:
        """What the id column holds; known once it is open."""
        return self._context.key

    @property
    def names(self) -> tuple[str, ...]:
        """Of the columns that a record is made of; known once it is open."""
        return self._context.names

    async def open(self) -> None:
        """Connect, compare with the catalog, have every claim planned once. Touches no row.

        Raises StoreUnreachable, TableUnsuitable.
        """
        try:
            with self._context.translated():
                await self._read_catalog()
        except BaseException:
            await self.close()  # a store that could not open is not closed by its caller
            raise

    async def _read_catalog(self) -> None:
        context = self._context
        async with context.pool.connection("check") as session:
            facts, self.warnings = await checks.validate(session, context.options, context.shape)
        context.shape = context.shape.lacking(*checks.absent_columns(facts, context.shape))
        context.bind(Composer(context.options, context.shape, facts), _key(facts, context.shape))
        await self._claims.probe()

    async def close(self) -> None:
        """Close every connection."""
        for part in (self._claims, self._settlements, self._listener, self._transactions, self._context.pool):
            await part.close()

    # -- a worker's ------------------------------------------------------------------------------

    async def claim(self, request: ClaimRequest) -> Sequence[Taken]:
        """Due records, now processing."""
        return await self._claims.claim(request)

    async def settle(self, batch: Sequence[tuple[Lease, Settlement]], *, repeat: bool = False) -> Sequence[Reply]:
        """Record how attempts ended."""
        return await self._settlements.settle(batch, repeat=repeat) if batch else []

    async def next_due(self) -> float | None:
        """Seconds until the earliest waiting record is due."""
        with self._context.translated():
            async with self._context.pool.connection("due") as session:
                return await asking.next_due(self._context, session)

    async def wait(self, timeout: float) -> bool:
        """True when there may be new work."""
        return await self._listener.wait(timeout)

    @property
    def is_listening(self) -> bool:
        """Notifications are known to arrive now."""
        return self._listener.is_listening

    def heartbeats(self) -> Heartbeats:
        """With a connection of its own."""
        return TableHeartbeats(self._context)

    # -- a handler's -----------------------------------------------------------------------------

    async def begin(self, attempt: Attempt[Any]) -> tuple[Any, AttemptTransaction]:
        """A transaction that holds the attempt's record locked."""
        return await self._transactions.begin(attempt)

    async def add_log(self, lease: Lease, entry: str) -> int:
        """Append an entry."""
        return await self._logs.add(lease, entry)

    async def update_log(self, lease: Lease, number: int, entry: str) -> None:
        """Put it in the place of entry ``number``."""
        await self._logs.update(lease, number, entry)

    # -- a person's ------------------------------------------------------------------------------

    async def requeue(self, record_id: JobId, after: datetime | float | None) -> Answer:
        """To queued; a running attempt is fenced out."""
        with self._context.translated():
            async with self._context.pool.connection("requeue") as session:
                return await asking.requeue(self._context, session, record_id, after)

    async def page(self, states: Sequence[State], after: JobId | None, limit: int) -> Sequence[ShownRecord]:
        """Records in these states, by id, above ``after``."""
        with self._context.translated():
            async with self._context.pool.connection("inspect") as session:
                return await asking.page(self._context, session, states, after, limit)

    async def find(self, record_id: JobId) -> ShownRecord | None:
        """One record."""
        with self._context.translated():
            async with self._context.pool.connection("inspect") as session:
                return await asking.find(self._context, session, record_id)

    async def retry(self, record_id: JobId) -> Answer:
        """To queued, as if it had never been tried."""
        with self._context.translated():
            async with self._context.pool.connection("requeue") as session:
                return await asking.retry(self._context, session, record_id)

    async def cancel(self, record_id: JobId) -> Answer:
        """A waiting record is canceled, a running one is asked to stop."""
        with self._context.translated():
            async with self._context.pool.connection("requeue") as session:
                return await asking.cancel(self._context, session, record_id)

    async def seconds_until(self, moment: datetime) -> float:
        """Counted from the database's clock."""
        with self._context.translated():
            async with self._context.pool.connection("inspect") as session:
                return await asking.seconds_until(self._context, session, moment)

    async def count(self, states: Sequence[State], conditions: Sequence[Any] = ()) -> dict[State, int]:
        """How many are in each of these states."""
        with self._context.translated():
            async with self._context.pool.connection("inspect") as session:
                return await asking.count(self._context, session, states, conditions)

    async def exists(self, states: Sequence[State], conditions: Sequence[Any] = ()) -> bool:
        """Is there one?"""
        with self._context.translated():
            async with self._context.pool.connection("inspect") as session:
                return await asking.exists(self._context, session, states, conditions)

    async def longest_wait(self) -> float:
        """Seconds that the one due longest has been due; 0: none is."""
        with self._context.translated():
            async with self._context.pool.connection("inspect") as session:
                return await asking.moment(self._context, session, "longest_wait")

    async def longest_run(self) -> float:
        """Seconds since the oldest record in processing was claimed; 0: none is."""
        with self._context.translated():
            async with self._context.pool.connection("inspect") as session:
                return await asking.moment(self._context, session, "longest_run")

    async def logs(self, record_id: JobId) -> Sequence[str] | None:
        """Its execution log; ``None``: no such record."""
        with self._context.translated():
            async with self._context.pool.connection("inspect") as session:
                return await asking.logs(self._context, session, record_id)

    async def check(self) -> Sequence[Finding]:
        """Compare table and view with the options."""
        with self._context.translated():
            async with self._context.pool.connection("check") as session:
                _, found = await checks.check(session, self._context.options, self._context.shape)
                return found


def _key(facts: Facts, shape: Shape) -> Key:
    column = facts.column(shape, "id")
    kind = column.type if column is not None else ""
    return Key.INTEGER if kind in INTEGERS else Key.UUID if kind == "uuid" else Key.TEXT
