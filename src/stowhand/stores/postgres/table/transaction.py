"""An attempt in a transaction of its own, which holds its record locked from before its handler to its end.

    begin       BEGIN, lock the record under (id, token), SAVEPOINT; the handler works behind the savepoint
    settle      completed, or back to queued: what the handler did, and the record's state, are committed together
                anything else: back to the savepoint, so what an unsuccessful attempt did is never seen; its state
                is committed alone
    rollback    everything

While it is open the row lock says that the worker is alive: beats skip the row and call it busy, the reset skips it.
The lock ends with the process; with a host that vanished, after the TCP timeouts; with a frozen process, or one whose
loop is blocked, after ``stalled_max_age`` without a statement (a loop that runs sends an empty one now and then). A
``cancel`` that was set before it is honored in ``begin``; one that is set later waits for the lock, so until the end.

What cannot be committed is never called completed: an attempt whose transaction failed, was ended by its handler, or
was lost with its connection is recorded as an error, outside of the transaction and guarded by the lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from msgspec.structs import replace

from stowhand.clock import Clock, SystemClock
from stowhand.errors import LeaseLost, LogRefused, StoreError, StoreUnreachable
from stowhand.jobs.execution_log import ENTRIES_LIMIT
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
    FAILED,
    AttemptConnection,
    HeldTransaction,
    InDoubt,
    NotCommitted,
)
from stowhand.stores.postgres.table.operations import Logs, PostgresOperations
from stowhand.stores.postgres.table.plan import TablePlan

KEPT_STATES = (State.COMPLETED, State.QUEUED)
"""What the handler did is committed with a record that goes to one of them."""
RETRY_DELAY_SECONDS = 0.05
"""Between two tries to settle outside of the transaction."""
MAX_CONNECTIONS = 1000
"""How many attempts run at once is the worker's decision."""


class AttemptTransactions:
    """Starts the transactions of one table's attempts, and holds what they share."""

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
        """Return the handler's connection and the transaction. Raises LeaseLost, StoreUnreachable."""
        context, lease = self.context, attempt.lease
        stalled = context.options.stalled
        held = await self._hold(lease)
        try:
            with context.translated():
                row = await held.begin(context.statement("lock"), context.values(**mark_of(lease)), stalled)
            is_ours, is_canceled = row is not None, row is not None and row[0]
            if not is_ours or is_canceled:
                await held.undo()
        except BaseException as error:
            if isinstance(error, StoreError):
                await held.undo()
            await held.let_go()
            raise
        if is_ours and not is_canceled:
            held.keep_alive(self.clock, stalled / 3)
            return held.handler_connection, RecordTransaction(self, attempt, held)
        await held.let_go()
        if not is_ours:
            raise LeaseLost(f"record {lease.job_id} was given to another worker, or is gone")
        canceled = settle_as(attempt, Cancel("canceled before its handler began"), 0.0)
        await self.settle_outside(lease, canceled, ())
        raise LeaseLost(f"record {lease.job_id} was asked to cancel before its handler began")

    async def _hold(self, lease: Lease) -> HeldTransaction:
        """Take a connection. Raises StoreUnreachable."""
        with self.context.translated():
            async with AsyncExitStack() as stack:
                try:
                    # How an attempt ended may have to be written without its transaction; where connections are few,
                    # transactions would take them all.
                    await self.settlements.connect()
                    connection = await stack.enter_async_context(self._pool.lend("transaction"))
                except StoreUnreachable:
                    await self._pool.close()  # idle connections may be in the way
                    raise
                # An application's connections are left as its handlers leave them.
                return HeldTransaction(stack.pop_all(), connection, f"record {lease.job_id}", resets=self._owns_pool)

    async def settle_outside(
        self, lease: Lease, settlement: Settlement, logs: Sequence[str], *, repeat: bool = False
    ) -> Reply:
        """Settle as without a transaction. The record is busy until the server notices that the transaction is over."""
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
        """End what is still open (a handler that does not end must not hold its record for ever), and disconnect."""
        await asyncio.gather(*(one.rollback() for one in tuple(self.open)))
        await self._pool.close()

    async def _write_logs(self, lease: Lease, entries: Sequence[str]) -> None:
        with self.context.translated():
            async with self.context.pool.connection("log") as session:
                await self.logs.replace(session, lease, entries)


def settle_as(attempt: Attempt[Any], outcome: Outcome, delay: float) -> Settlement:
    """Decide what an outcome that is not the handler's means for this attempt."""
    claim = attempt.claim
    return settle(outcome, attempts=claim.attempts, max_attempts=claim.max_attempts, backoff=lambda attempts: delay)


class RecordTransaction:
    """How the transaction ends, and what a handler may do in it besides using the connection."""

    def __init__(self, transactions: AttemptTransactions, attempt: Attempt[Any], held: HeldTransaction) -> None:
        self._transactions = transactions
        self._context = transactions.context
        self._attempt = attempt
        self._held: HeldTransaction | None = held
        self._logs: list[str] = []
        """Written when the attempt ends, however it does."""
        self._doubtful: tuple[Settlement, str] | None = None
        """COMMIT was sent with this settlement, and its reply is not known; why."""
        self._recorded: Settlement | None = None
        """What is written: the settlement that was given, or an error instead."""
        self.queries = PostgresOperations(transactions.context, self._session)
        transactions.open.add(self)

    # -- the end ---------------------------------------------------------------------------------

    async def settle(self, settlement: Settlement) -> Reply:
        """Write how the attempt ended, and commit. Raises StoreError; then it is not known. May be repeated."""
        if (why := self._transactions.plan.acceptable((self._attempt.lease, settlement))) is not None:
            return RefusedSettlement(why)
        self._recorded = settlement
        reply = await self._settle(settlement)
        is_written = reply is Verdict.SETTLED or reply is Verdict.ALREADY_SETTLED
        return self._recorded if is_written and self._recorded != settlement else reply

    async def rollback(self) -> None:
        """Undo everything; the record is as it was when it was claimed."""
        held = self._take()
        if held is None:
            return
        try:
            await held.take_back()
            await held.undo()
        except NotCommitted:
            pass
        finally:
            await held.let_go()

    def _take(self) -> HeldTransaction | None:
        self._transactions.open.discard(self)
        held, self._held = self._held, None
        return held

    async def _settle(self, settlement: Settlement) -> Reply:
        held = self._take()
        if held is not None:
            try:
                await held.take_back()
                if settlement.state in KEPT_STATES and held.has_failed:
                    self._recorded = settlement = self._failed(settlement, FAILED)
                return await self._commit(held, settlement)
            except NotCommitted as error:
                self._recorded = settlement = self._failed(settlement, str(error))
            except InDoubt as doubt:
                self._doubtful = settlement, str(doubt)
            finally:
                await held.let_go()
        if self._doubtful is not None:
            return await self._resolve(*self._doubtful)
        return await self._transactions.settle_outside(self._attempt.lease, settlement, self._logs)

    async def _commit(self, held: HeldTransaction, settlement: Settlement) -> Verdict:
        lease, context = self._attempt.lease, self._context
        statements = [context.statement("settle")]
        values = dict(self._transactions.plan.settle_values([(lease, settlement)]))
        if self._logs:
            statements.insert(0, context.statement("write_logs"))
            values |= self._transactions.logs.values(lease, entries=list(self._logs))
        is_found = await held.commit(statements, values, keep=settlement.state in KEPT_STATES)
        # Only the handler can have changed a record that was locked all the time; that was its own decision.
        return Verdict.SETTLED if is_found else Verdict.LOST

    def _failed(self, settlement: Settlement, why: str) -> Settlement:
        """What is recorded when nothing of the handler's work is committed: never that it completed."""
        if settlement.state in KEPT_STATES:
            return settle_as(self._attempt, Retry(clean(why)), self._context.options.retry_delay)
        if why == ENDED_BY_HANDLER and settlement.error is not None:
            return replace(settlement, error=clean(f"{settlement.error}\n({why})"))
        return settlement

    async def _resolve(self, doubtful: Settlement, why: str) -> Reply:
        """Find out whether it was committed. A record that is still ours was rolled back with the handler's work."""
        lease = self._attempt.lease
        failed = self._failed(doubtful, f"its transaction could not be committed: {why}")
        reply = await self._transactions.settle_outside(lease, failed, self._logs, repeat=True)
        if reply is Verdict.LOST or reply is Verdict.UNKNOWN:
            # It is not ours any more. This writes nothing, and shows whether what is there is what we wrote.
            (reply,) = await self._transactions.settlements.settle([(lease, doubtful)], repeat=True)
            self._recorded = doubtful
            return reply if reply is Verdict.ALREADY_SETTLED else Verdict.UNKNOWN
        if reply is not Verdict.BUSY:
            self._recorded = failed
            self._doubtful = None
        return reply

    # -- a handler's -----------------------------------------------------------------------------

    async def add_log(self, lease: Lease, entry: str) -> int:
        """Keep it until the end. Raises LogRefused."""
        self._open()
        if len(self._logs) >= ENTRIES_LIMIT:
            raise LogRefused(f"record {lease.job_id}: an attempt has at most {ENTRIES_LIMIT} log entries")
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
        """The transaction's own connection; what fails there leaves the transaction as it was."""
        held = self._open()
        with self._context.translated():
            async with held.session.transaction():
                yield held.session

    def _open(self) -> HeldTransaction:
        if self._held is None:
            raise LogRefused(f"the attempt of record {self._attempt.lease.job_id} is over")
        return self._held
