"""Begins the transactions of attempts: each on a connection of its own, with its record locked."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from typing import Any

import psycopg

from stowhand.errors import LeaseLost, StoreError, StoreUnreachable
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import Cancel, Settlement, settle
from stowhand.protocols.handler import Attempt
from stowhand.stores.database.link import Pool
from stowhand.stores.postgres.table.context import TableContext, mark_of
from stowhand.stores.postgres.table.handler_connection import AttemptConnection
from stowhand.stores.postgres.table.held_transaction import Gone, HeldTransaction, InDoubt
from stowhand.stores.postgres.table.logs import Logs
from stowhand.stores.postgres.table.settling import Settlements
from stowhand.stores.postgres.table.transaction import Desk, RecordTransaction

MOST = 1000
"""Connections at most; how many attempts run at once is the worker's affair."""


class Transactions:
    """Of one table."""

    def __init__(self, context: TableContext, settlements: Settlements, logs: Logs) -> None:
        self._context, self._desk = context, Desk(context, settlements, logs)
        self._pool = Pool(context.dialer, MOST, context.role) if isinstance(context.pool, Pool) else context.pool

    async def begin(self, attempt: Attempt[Any]) -> tuple[AttemptConnection, RecordTransaction]:
        """The handler's connection, and the transaction. Raises LeaseLost, StoreUnreachable."""
        lease, hold = attempt.lease, await self._hold(attempt.lease)
        try:
            with self._context.translated():
                lock = self._context.statement("lock"), self._context.values(**mark_of(lease))
                row = await hold.begin(*lock, self._context.options.stalled)
                if row is None:
                    raise LeaseLost(f"record {lease.job_id} was given to somebody else, or is gone")
                if row[0]:
                    marking = self._desk.marking(lease, _canceled(attempt), ())
                    await hold.commit(*marking, undo=True, reset=False)
                    raise LeaseLost(f"record {lease.job_id} was asked to cancel before its handler began")
        except BaseException as error:
            if isinstance(error, StoreError | Gone | InDoubt):
                with suppress(psycopg.Error, OSError):
                    await hold.roll_back()
            await hold.let_go(reset=False)
            if isinstance(error, Gone | InDoubt):  # then the lease ends by itself
                raise LeaseLost(f"record {lease.job_id} could not be canceled: {error}") from None
            raise
        hold.stay(self._desk.clock, self._context.options.stalled / 3)
        return hold.handed, RecordTransaction(self._desk, attempt, hold)

    async def _hold(self, lease: Lease) -> HeldTransaction:
        with self._context.translated():
            async with AsyncExitStack() as stack:
                try:
                    # How an attempt ended may have to be said without its transaction, and where connections are few,
                    # transactions would take them all.
                    await self._desk.settlements.connect()
                    connection = await stack.enter_async_context(self._pool.lend("transaction"))
                except StoreUnreachable:
                    await self._pool.close()  # what is idle may be in the way
                    raise
                return HeldTransaction(stack.pop_all(), connection, f"record {lease.job_id}")

    async def close(self) -> None:
        """End what is still open (a handler that will not end must not hold its record for ever); hang up."""
        await asyncio.gather(*(one.rollback() for one in tuple(self._desk.open)))
        await self._pool.close()


def _canceled(attempt: Attempt[Any]) -> Settlement:
    claim = attempt.claim
    outcome = Cancel("canceled before its handler began")
    return settle(outcome, attempts=claim.attempts, max_attempts=claim.max_attempts, backoff=lambda attempts: 0.0)
