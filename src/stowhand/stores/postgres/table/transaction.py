"""The transaction of an attempt, which locks its record from before the handler until its end.

    begin       BEGIN, lock the record under (id, token), SAVEPOINT; the handler works behind the savepoint
    settle      completed, or back to queued: the handler's changes and the record's state are committed together
                otherwise: roll back to the savepoint, so that an unsuccessful attempt leaves no changes, and commit
                the record's state alone
    rollback    roll back everything

While the transaction is open, the row lock shows that the worker is alive: beats skip the row as busy, and resets skip
it too. The lock ends with the process. It ends after the TCP timeouts if the host is lost. It ends after
``stalled_max_age`` without a statement if the process is frozen or its loop is blocked (a running loop sends empty
statements). A ``cancel`` set earlier takes effect in ``begin``; one set later waits for the lock, so until the end.

An attempt that cannot be committed is never recorded as completed. If its transaction failed, was ended by its handler,
or was lost with its connection, an error is recorded outside of the transaction, guarded by the lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from msgspec.structs import replace

from stowhand.clock import Clock, SystemClock
from stowhand.errors import LeaseLost, LogRefused, StoreError, StoreUnreachable
from stowhand.jobs.execution_log import MAX_LOG_ENTRIES
from stowhand.jobs.job import State
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import Cancel, Outcome, Retry, Settlement, settle
from stowhand.jobs.text import clean
from stowhand.protocols.attempt import Attempt
from stowhand.protocols.store import RefusedSettlement, Reply, Verdict
from stowhand.stores.database.link import Pool, Session
from stowhand.stores.postgres.shared.settler import Settler
from stowhand.stores.postgres.table.context import TableContext, mark_of
from stowhand.stores.postgres.table.held_transaction import (
    ENDED_BY_HANDLER,
    FAILED_STATEMENT,
    AttemptConnection,
    HeldTransaction,
    InDoubt,
    NotCommitted,
)
from stowhand.stores.postgres.table.operations import Logs, PostgresOperations
from stowhand.stores.postgres.table.plan import TablePlan

KEPT_STATES = (State.COMPLETED, State.QUEUED)
"""The states of a record with which the handler's changes are committed."""
RETRY_DELAY_SECONDS = 0.05
"""The pause between two attempts to settle outside of the transaction."""
MAX_CONNECTIONS = 1000
"""A large limit: the worker decides how many attempts run at once."""


class AttemptTransactions:
    """Starts the transactions of one table's attempts, and owns what they share."""

    def __init__(self, context: TableContext, plan: TablePlan, settlements: Settler, logs: Logs) -> None:
        self.context = context
        self.plan = plan
        self.settlements = settlements
        self.logs = logs
        self.clock: Clock = SystemClock()
        self.open: set[RecordTransaction] = set()
        self._owns_pool = isinstance(context.pool, Pool)
        self._pool = Pool(context.dialer, MAX_CONNECTIONS, context.role) if self._owns_pool else context.pool

    async def begin(self, attempt: Attempt[Any]) -> tuple[AttemptConnection, RecordTransaction]:
        """Return the handler's connection and the transaction. Raise LeaseLost, StoreUnreachable."""
        context, lease = self.context, attempt.lease
        stalled = context.options.stalled
        record_lock = await self._hold(lease)
        try:
            with context.translated():
                row = await record_lock.begin(context.statement("lock"), context.values(**mark_of(lease)), stalled)
            is_ours, is_canceled = row is not None, row is not None and row[0]
            if not is_ours or is_canceled:
                await record_lock.undo()
        except BaseException as error:
            if isinstance(error, StoreError):
                await record_lock.undo()
            await record_lock.release()
            raise
        if is_ours and not is_canceled:
            record_lock.keep_alive(self.clock, stalled / 3)
            return record_lock.handler_connection, RecordTransaction(self, attempt, record_lock)
        await record_lock.release()
        if not is_ours:
            raise LeaseLost(f"record {lease.job_id} belongs to another worker, or no longer exists")
        canceled = settle_as(attempt, Cancel("canceled before its handler began"), 0.0)
        await self.settle_outside(lease, canceled, ())
        raise LeaseLost(f"the cancellation of record {lease.job_id} was requested before its handler began")

    async def _hold(self, lease: Lease) -> HeldTransaction:
        """Take a connection. Raise StoreUnreachable."""
        with self.context.translated():
            async with AsyncExitStack() as stack:
                try:
                    # An outcome may have to be written outside of its transaction. With few connections, the
                    # transactions would take all of them, so connect for settlements first.
                    await self.settlements.connect()
                    connection = await stack.enter_async_context(self._pool.application_connection("transaction"))
                except StoreUnreachable:
                    await self._pool.close()  # idle connections may be in the way
                    raise
                # The connections of an application's pool stay as its handlers leave them.
                return HeldTransaction(stack.pop_all(), connection, f"record {lease.job_id}", resets=self._owns_pool)

    async def settle_outside(
        self, lease: Lease, settlement: Settlement, logs: Sequence[str], *, repeat: bool = False
    ) -> Reply:
        """Settle outside of the transaction. The record is busy until the server has ended the transaction."""
        end = self.clock.monotonic() + self.context.options.stalled
        while True:
            try:
                if logs:
                    await self._write_logs(lease, logs)
                (reply,) = await self.settlements.settle([(lease, settlement)], repeat=repeat)
                if reply is not Verdict.BUSY or self.clock.monotonic() > end:
                    return reply
            except StoreUnreachable:
                if self.clock.monotonic() > end:
                    raise
                repeat = True
            await self.clock.sleep(RETRY_DELAY_SECONDS)

    async def close(self) -> None:
        """Roll back open transactions, so that a hanging handler does not lock its record forever, and disconnect."""
        await asyncio.gather(*(record_transaction.rollback() for record_transaction in tuple(self.open)))
        await self._pool.close()

    async def _write_logs(self, lease: Lease, entries: Sequence[str]) -> None:
        with self.context.translated():
            async with self.context.pool.connection("log") as session:
                await self.logs.replace(session, lease, entries)


def settle_as(attempt: Attempt[Any], outcome: Outcome, delay: float) -> Settlement:
    """Return the settlement of an outcome that replaces the handler's."""
    claim = attempt.claim
    return settle(outcome, attempts=claim.attempts, max_attempts=claim.max_attempts, backoff=lambda attempts: delay)


class RecordTransaction:
    """The transaction of one record: its end, and the operations of its handler."""

    def __init__(
        self, transactions: AttemptTransactions, attempt: Attempt[Any], held_transaction: HeldTransaction
    ) -> None:
        self._transactions = transactions
        self._context = transactions.context
        self._attempt = attempt
        self._transaction: HeldTransaction | None = held_transaction
        self._logs: list[str] = []
        """The log entries, written when the attempt ends, with any outcome."""
        self._doubtful: tuple[Settlement, str] | None = None
        """The settlement whose COMMIT has an unknown outcome, and the reason."""
        self._recorded: Settlement | None = None
        """The settlement to record: the worker's, or an error instead."""
        self.queries = PostgresOperations(transactions.context, self._session)
        transactions.open.add(self)

    # -- the end ---------------------------------------------------------------------------------

    async def settle(self, settlement: Settlement) -> Reply:
        """Write the settlement, and commit. Raise StoreError if the outcome is unknown. May be repeated."""
        if (reason := self._transactions.plan.acceptable((self._attempt.lease, settlement))) is not None:
            return RefusedSettlement(reason)
        self._recorded = settlement
        reply = await self._settle(settlement)
        is_written = reply is Verdict.SETTLED or reply is Verdict.ALREADY_SETTLED
        return self._recorded if is_written and self._recorded != settlement else reply

    async def rollback(self) -> None:
        """Roll back everything; the record is as it was after the claim."""
        held_transaction = self._take()
        if held_transaction is None:
            return
        try:
            await held_transaction.take_back()
            await held_transaction.undo()
        except NotCommitted:
            pass
        finally:
            await held_transaction.release()

    def _take(self) -> HeldTransaction | None:
        self._transactions.open.discard(self)
        held_transaction, self._transaction = self._transaction, None
        return held_transaction

    async def _settle(self, settlement: Settlement) -> Reply:
        held_transaction = self._take()
        if held_transaction is not None:
            try:
                await held_transaction.take_back()
                if settlement.state in KEPT_STATES and held_transaction.has_failed:
                    self._recorded = settlement = self._failed(settlement, FAILED_STATEMENT)
                return await self._commit(held_transaction, settlement)
            except NotCommitted as error:
                self._recorded = settlement = self._failed(settlement, str(error))
            except InDoubt as doubt:
                self._doubtful = settlement, str(doubt)
            finally:
                await held_transaction.release()
        if self._doubtful is not None:
            return await self._resolve(*self._doubtful)
        return await self._transactions.settle_outside(self._attempt.lease, settlement, self._logs)

    async def _commit(self, held_transaction: HeldTransaction, settlement: Settlement) -> Verdict:
        lease, context = self._attempt.lease, self._context
        statements = [context.statement("settle")]
        values = dict(self._transactions.plan.settle_values([(lease, settlement)]))
        if self._logs:
            statements.insert(0, context.statement("write_logs"))
            values |= self._transactions.logs.values(lease, entries=list(self._logs))
        is_found = await held_transaction.commit(statements, values, keep=settlement.state in KEPT_STATES)
        # The record was locked all the time, so only the handler can have changed it.
        return Verdict.SETTLED if is_found else Verdict.LOST

    def _failed(self, settlement: Settlement, reason: str) -> Settlement:
        """Return the settlement to record without the handler's changes: never completed."""
        if settlement.state in KEPT_STATES:
            return settle_as(self._attempt, Retry(clean(reason)), self._context.options.retry_delay)
        if reason == ENDED_BY_HANDLER and settlement.error is not None:
            return replace(settlement, error=clean(f"{settlement.error}\n({reason})"))
        return settlement

    async def _resolve(self, doubtful: Settlement, reason: str) -> Reply:
        """Check whether it was committed. If the lease still holds the record, it was rolled back."""
        lease = self._attempt.lease
        failed = self._failed(doubtful, f"its transaction could not be committed: {reason}")
        reply = await self._transactions.settle_outside(lease, failed, self._logs, repeat=True)
        if reply is Verdict.LOST or reply is Verdict.UNKNOWN:
            # The lease no longer holds the record. This writes nothing, and checks for the settlement.
            (reply,) = await self._transactions.settlements.settle([(lease, doubtful)], repeat=True)
            self._recorded = doubtful
            return reply if reply is Verdict.ALREADY_SETTLED else Verdict.UNKNOWN
        if reply is not Verdict.BUSY:
            self._recorded = failed
            self._doubtful = None
        return reply

    # -- operations of the handler ---------------------------------------------------------------

    async def add_log(self, lease: Lease, entry: str) -> int:
        """Keep an entry until the end, and return its number. Raise LogRefused."""
        self._open()
        if len(self._logs) >= MAX_LOG_ENTRIES:
            raise LogRefused(f"record {lease.job_id}: an attempt has at most {MAX_LOG_ENTRIES} log entries")
        self._logs.append(entry)
        return len(self._logs)

    async def update_log(self, lease: Lease, number: int, entry: str) -> None:
        """Replace entry ``number`` (1, 2, …). Raises LogRefused."""
        self._open()
        if not 1 <= number <= len(self._logs):
            raise LogRefused(f"record {lease.job_id}: its log has no entry {number}")
        self._logs[number - 1] = entry

    @asynccontextmanager
    async def _session(self, _: str) -> AsyncIterator[Session]:
        """Use the transaction's own connection. A failure there leaves the transaction unchanged."""
        held_transaction = self._open()
        with self._context.translated():
            async with held_transaction.session.transaction():
                yield held_transaction.session

    def _open(self) -> HeldTransaction:
        if self._transaction is None:
            raise LogRefused(f"the attempt of record {self._attempt.lease.job_id} is over")
        return self._transaction
