"""An attempt in a transaction of its own, which holds its record locked from before its handler to its end.

    begin       BEGIN, lock the record under (id, token), SAVEPOINT; the handler works behind the savepoint
    settle      completed, or back to queued: what the handler did, and the record's state, are committed together
                anything else: back to the savepoint, so what an unsuccessful attempt did is never seen; its state
                is committed alone
    rollback    everything

While it is open the row lock says that the worker is alive: beats skip the row and call it busy, the reset skips it.
The lock ends with the process; with a host that vanished, after the TCP timeouts; with a frozen process, or one whose
loop is blocked, after ``stalled_max_age`` without a statement (a loop that runs sends an empty one now and then). A
``cancel`` that was set before it is honoured in ``begin``; one that is set later waits for the lock, so until the end.

What cannot be committed is never called completed: an attempt whose transaction failed, was ended by its handler, or
was lost with its connection is recorded as an error, by the ordinary way, with the reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import psycopg
from msgspec.structs import replace

from stowhand.clock import Clock, SystemClock
from stowhand.errors import LeaseLost, LogRefused, StoreError, StoreUnreachable
from stowhand.jobs.execution_log import ENTRIES_LIMIT
from stowhand.jobs.job import State
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import Cancel, Retry, Settlement, settle
from stowhand.jobs.text import clean
from stowhand.protocols.handler import Attempt
from stowhand.protocols.store import Reply, Unwritten, Verdict
from stowhand.stores.database import trouble
from stowhand.stores.database.link import Pool, Session
from stowhand.stores.postgres.shared.settler import Settler
from stowhand.stores.postgres.table.asking import PostgresAsking
from stowhand.stores.postgres.table.context import TableContext, mark_of
from stowhand.stores.postgres.table.handler_connection import AttemptConnection
from stowhand.stores.postgres.table.held_transaction import ENDED_BY_HANDLER, Gone, HeldTransaction, InDoubt
from stowhand.stores.postgres.table.logs import Logs
from stowhand.stores.postgres.table.plan import TablePlan

KEPT = (State.COMPLETED, State.QUEUED)
"""Where a record goes when its attempt was not unsuccessful: what the handler did is committed with it."""
PAUSE = 0.05
"""Seconds between two tries to settle outside the transaction."""
MOST = 1000
"""Connections at most; how many attempts run at once is the worker's decision."""


class AttemptTransactions:
    """Begins the transactions of one table's attempts, and holds what they share."""

    def __init__(self, context: TableContext, plan: TablePlan, settlements: Settler, logs: Logs) -> None:
        self.context = context
        self.plan = plan
        self.settlements = settlements
        self.logs = logs
        self.clock: Clock = SystemClock()
        self.open: set[RecordTransaction] = set()
        owned = isinstance(context.pool, Pool)
        self.resets = owned
        """Connections are made as new after each attempt; an application's are left as its handlers leave them."""
        self._pool = Pool(context.dialer, MOST, context.role) if owned else context.pool

    async def begin(self, attempt: Attempt[Any]) -> tuple[AttemptConnection, RecordTransaction]:
        """The handler's connection, and the transaction. Raises LeaseLost, StoreUnreachable."""
        lease, held = attempt.lease, await self.hold(attempt.lease)
        try:
            with self.context.translated():
                lock = self.context.statement("lock"), self.context.values(**mark_of(lease))
                row = await held.begin(*lock, self.context.options.stalled)
                if row is None:
                    raise LeaseLost(f"record {lease.job_id} was given to another worker, or is gone")
                if row[0]:
                    marking = self.marking(lease, _canceled(attempt), ())
                    await held.commit(*marking, undo=True, reset=False)
                    raise LeaseLost(f"record {lease.job_id} was asked to cancel before its handler began")
        except BaseException as error:
            if isinstance(error, StoreError | Gone | InDoubt):
                with suppress(psycopg.Error, OSError):
                    await held.roll_back()
            await held.let_go(reset=False)
            if isinstance(error, Gone | InDoubt):  # then the lease ends by itself
                raise LeaseLost(f"record {lease.job_id} could not be canceled: {error}") from None
            raise
        held.keep_alive(self.clock, self.context.options.stalled / 3)
        return held.handler_connection, RecordTransaction(self, attempt, held)

    async def hold(self, lease: Lease) -> HeldTransaction:
        """A connection on which none has begun yet. Raises StoreUnreachable."""
        with self.context.translated():
            async with AsyncExitStack() as stack:
                try:
                    # How an attempt ended may have to be written without its transaction; where connections are few,
                    # transactions would take them all.
                    await self.settlements.connect()
                    connection = await stack.enter_async_context(self._pool.lend("transaction"))
                except StoreUnreachable:
                    await self._pool.close()  # what is idle may be in the way
                    raise
                return HeldTransaction(stack.pop_all(), connection, f"record {lease.job_id}")

    async def settle_outside(
        self, lease: Lease, settlement: Settlement, logs: Sequence[str], *, repeat: bool = False
    ) -> Reply:
        """The ordinary way. A record stays locked until the server has noticed that its transaction is over."""
        end = self.clock.monotonic() + self.context.options.stalled
        while True:
            try:
                if logs:
                    await self.write_logs(lease, logs)
                (reply,) = await self.settlements.settle([(lease, settlement)], repeat=repeat)
                if reply is not Verdict.BUSY or self.clock.monotonic() > end:
                    return reply
            except StoreUnreachable:
                if self.clock.monotonic() > end:
                    raise
                repeat = True
            await self.clock.sleep(PAUSE)

    async def close(self) -> None:
        """End what is still open (a handler that will not end must not hold its record for ever); hang up."""
        await asyncio.gather(*(one.rollback() for one in tuple(self.open)))
        await self._pool.close()

    def marking(
        self, lease: Lease, settlement: Settlement, logs: Sequence[str]
    ) -> tuple[list[bytes], dict[str, object]]:
        """The statements that write it and its log, and their values. The last one finds the row, or does not."""
        statements, values = [self.context.statement("settle")], dict(self.plan.settle_values([(lease, settlement)]))
        if logs:
            statements.insert(0, self.context.statement("write_logs"))
            values |= self.logs.values(lease, entries=list(logs))
        return statements, values

    async def write_logs(self, lease: Lease, entries: Sequence[str]) -> None:
        """On a connection apart. Raises StoreError."""
        with self.context.translated():
            async with self.context.pool.connection("log") as session:
                await self.logs.replace(session, lease, entries)


def _canceled(attempt: Attempt[Any]) -> Settlement:
    claim = attempt.claim
    outcome = Cancel("canceled before its handler began")
    return settle(outcome, attempts=claim.attempts, max_attempts=claim.max_attempts, backoff=lambda attempts: 0.0)


class RecordTransaction:
    """How it ends, and what a handler may do in it beside using the connection."""

    is_shared = False

    def __init__(self, transactions: AttemptTransactions, attempt: Attempt[Any], held: HeldTransaction) -> None:
        self._transactions, self._attempt, self._clock = transactions, attempt, transactions.clock
        self._held: HeldTransaction | None = held
        transactions.open.add(self)
        tools = HandlerTools(transactions.context, attempt.lease, lambda: self._held)
        self.asking, self.add_log, self.update_log = tools.asking, tools.add_log, tools.update_log
        self._logs = tools.logs
        self._doubtful: tuple[Settlement, str] | None = None
        """COMMIT was sent with this one, and no answer came that says enough; why."""
        self._instead_of: Settlement | None = None
        """What is written instead of the settlement that was given; ``None``: that one."""

    # -- the end ---------------------------------------------------------------------------------

    async def settle(self, settlement: Settlement) -> Reply:
        """Write how the attempt ended, and commit. Raises StoreError; then it is not known. May be repeated."""
        if (why := self._transactions.plan.acceptable((self._attempt.lease, settlement))) is not None:
            return Unwritten(why)
        self._begin_end()
        reply = await self._settle(settlement)
        written = reply is Verdict.SETTLED or reply is Verdict.ALREADY_SETTLED
        if not written or self._instead_of is None or self._instead_of == settlement:
            return reply
        return self._instead_of

    def _begin_end(self) -> None:
        self._instead_of = None

    async def _settle(self, settlement: Settlement) -> Reply:
        held = self._take()
        try:
            if held is not None:
                return await self._settle_within(held, settlement)
        except Gone as gone:
            self._instead_of = self._instead(self._instead_of or settlement, str(gone))
        except InDoubt as doubt:
            self._doubtful = self._instead_of or settlement, str(doubt)
        finally:
            if held is not None:
                await held.let_go(reset=self._transactions.resets)
        if self._doubtful is not None:
            return await self._resolve(*self._doubtful)
        return await self._settle_outside(self._instead_of or settlement)

    async def leave(self, *, failed: bool) -> None:
        """Nobody else shares it."""

    async def rollback(self) -> None:
        """Undo everything; the record is as it was when it was claimed."""
        held = self._take()
        if held is not None:
            try:
                await held.take_back()
                await held.roll_back()
            except (Gone, psycopg.Error, OSError):
                pass  # closed, its transaction is rolled back too
            finally:
                await held.let_go(reset=self._transactions.resets)

    def _take(self) -> HeldTransaction | None:
        self._transactions.open.discard(self)
        held, self._held = self._held, None
        return held

    async def _settle_within(self, held: HeldTransaction, settlement: Settlement) -> Reply:
        await held.take_back()
        if settlement.state in KEPT:
            try:
                return await self._commit(held, settlement, undo=False)
            except (psycopg.Error, OSError, UnicodeError) as error:
                why = f"its transaction could not be committed: {trouble.first_line(error)}"
                self._instead_of = settlement = self._instead(settlement, why)
        return await self._commit(held, settlement, undo=True)

    async def _commit(self, held: HeldTransaction, settlement: Settlement, *, undo: bool) -> Verdict:
        marking = self._transactions.marking(self._attempt.lease, settlement, self._logs)
        marked = await held.commit(*marking, undo=undo, reset=self._transactions.resets)
        # Only the handler can have changed a record that was locked all the time; that was its own decision.
        return Verdict.SETTLED if marked else Verdict.LOST

    def _instead(self, settlement: Settlement, why: str) -> Settlement:
        """What is recorded when nothing of the handler's work is committed: never that it completed."""
        if settlement.state not in KEPT:
            known = why != ENDED_BY_HANDLER or settlement.error is None
            return settlement if known else replace(settlement, error=clean(f"{settlement.error}\n({why})"))
        claim = self._attempt.claim
        return settle(
            Retry(clean(why)),
            attempts=claim.attempts,
            max_attempts=claim.max_attempts,
            backoff=lambda attempts: self._transactions.context.options.retry_delay,
        )

    async def _resolve(self, doubtful: Settlement, why: str) -> Reply:
        """Committed, or not? A record that is still ours was rolled back, and then so was the handler's work."""
        instead = self._instead(doubtful, f"its transaction could not be committed: {why}")
        reply = await self._settle_outside(instead, repeat=True)
        if reply is Verdict.LOST or reply is Verdict.UNKNOWN:
            # It is not ours any more, so this writes nothing, and tells whether what stands there is our own.
            (reply,) = await self._transactions.settlements.settle([(self._attempt.lease, doubtful)], repeat=True)
            return reply if reply is Verdict.ALREADY_SETTLED else Verdict.UNKNOWN
        if reply is not Verdict.BUSY:
            self._instead_of = instead
            self._doubtful = None
        return reply

    async def _settle_outside(self, settlement: Settlement, *, repeat: bool = False) -> Reply:
        return await self._transactions.settle_outside(self._attempt.lease, settlement, self._logs, repeat=repeat)


class HandlerTools:
    """What a handler may do in a transaction beside using the connection; ``held`` gives none when that is over."""

    def __init__(self, context: TableContext, lease: Lease, held: Callable[[], HeldTransaction | None]) -> None:
        self._context, self._lease, self._held = context, lease, held
        self.asking = PostgresAsking(context, self._session)
        self.logs: list[str] = []
        """To be written when the attempt ends, however it does."""

    async def add_log(self, lease: Lease, entry: str) -> int:
        """Kept until the end, and written then, however the attempt ends. Raises LogRefused."""
        self._open()
        if len(self.logs) >= ENTRIES_LIMIT:
            raise LogRefused(f"record {lease.job_id}: an attempt has at most {ENTRIES_LIMIT} log entries")
        self.logs.append(entry)
        return len(self.logs)

    async def update_log(self, lease: Lease, number: int, entry: str) -> None:
        """Put it in the place of entry ``number`` (1, 2, …). Raises LogRefused."""
        self._open()
        if not 1 <= number <= len(self.logs):
            raise LogRefused(f"record {lease.job_id}: its log has no entry {number}")
        self.logs[number - 1] = entry

    @asynccontextmanager
    async def _session(self, _: str) -> AsyncIterator[Session]:
        """The transaction's own connection; what fails there leaves the transaction as it was."""
        held = self._open()
        with self._context.translated():
            async with held.session.transaction():
                yield held.session

    def _open(self) -> HeldTransaction:
        held = self._held()
        if held is None:
            raise LogRefused(f"the attempt of record {self._lease.job_id} is over")
        return held
