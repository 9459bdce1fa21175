"""The backend of a user's table in PostgreSQL, which opens its parts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

from stowhand.protocols.store import Heartbeats
from stowhand.stores.calls import UNREPORTED, Calls
from stowhand.stores.database.link import Session
from stowhand.stores.passed_over import PassedOver
from stowhand.stores.postgres.shared.listener import Announcement, Listener
from stowhand.stores.postgres.shared.settler import Settler
from stowhand.stores.postgres.table import checks
from stowhand.stores.postgres.table.catalog import INTEGER_TYPES
from stowhand.stores.postgres.table.claims import TableClaims
from stowhand.stores.postgres.table.composer import Composer
from stowhand.stores.postgres.table.context import TableContext
from stowhand.stores.postgres.table.heartbeats import TableHeartbeats
from stowhand.stores.postgres.table.operations import Logs, PostgresOperations
from stowhand.stores.postgres.table.plan import TablePlan
from stowhand.stores.postgres.table.transaction import AttemptTransactions
from stowhand.stores.table.arguments import KeyType
from stowhand.stores.table.backend import Finding, Notices
from stowhand.stores.table.check import CatalogFacts
from stowhand.stores.table.names import Shape
from stowhand.stores.table.options import TableOptions

_POOLER_WARNING = "notifications do not arrive behind a pooler, so the table is polled"


class PostgresTable:
    """The backend. ``place``: a URL, a libpq string, or a ``psycopg_pool.AsyncConnectionPool``."""

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
        self._claims = TableClaims(context, PassedOver("record", (notices or Notices(options.name)).warn))
        plan, logs = TablePlan(context), Logs(context)
        self._settler = settler = Settler(context, plan)
        self._listener = Listener(
            context.dialer, lambda: context.role("listen"), options.notify_channel, _POOLER_WARNING, Announcement()
        )
        self._transactions = AttemptTransactions(context, plan, settler, logs)
        self.claim, self.settle, self.wait = self._claims.claim, settler.settle, self._listener.wait
        self.begin, self.add_log, self.update_log = self._transactions.begin, logs.add, logs.update
        self.queries = PostgresOperations(context, self._session)

    @property
    def description(self) -> str:
        """The address of the table, without a password."""
        return str(self._context)

    @property
    def key(self) -> KeyType:
        """The type of the id column, known once the table is open."""
        return self._context.key

    @property
    def names(self) -> tuple[str, ...]:
        """The names of a record's columns, known once the table is open."""
        return self._context.names

    async def open(self) -> None:
        """Connect, compare with the catalog, and let the server plan each claim once, without reading rows.

        Raise StoreUnreachable, TableUnsuitable.
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
        context.bind(Composer(context.options, context.shape, facts), _key_type(facts, context.shape))
        await self._claims.probe()

    async def close(self) -> None:
        """Close every connection."""
        for part in (self._claims, self._settler, self._listener, self._transactions, self._context.pool):
            await part.close()

    # -- calls of a worker -----------------------------------------------------------------------

    @property
    def is_listening(self) -> bool:
        """Whether notifications arrive now, as far as is known."""
        return self._listener.is_listening

    def heartbeats(self, calls: Calls = UNREPORTED) -> Heartbeats:
        """Return heartbeats with their own connection."""
        return TableHeartbeats(self._context, calls)

    # -- checks ----------------------------------------------------------------------------------

    async def check(self) -> Sequence[Finding]:
        """Compare table and view with the options."""
        async with self._session("check") as session:
            _, findings = await checks.check(session, self._context.options, self._context.shape)
        return findings

    @asynccontextmanager
    async def _session(self, role: str) -> AsyncIterator[Session]:
        with self._context.translated():
            async with self._context.pool.connection(role) as session:
                yield session


def _key_type(facts: CatalogFacts, shape: Shape) -> KeyType:
    column = facts.column(shape, "id")
    type_name = column.type if column is not None else ""
    return KeyType.INTEGER if type_name in INTEGER_TYPES else KeyType.UUID if type_name == "uuid" else KeyType.TEXT
