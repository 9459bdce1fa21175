"""A transaction that several attempts share, one handler after the other: ``transactional="batch"``.

    admit       a handler gets the connection: of a transaction in which no handler works just now, else of a new one
    leave       it has ended; the next one may take its place, if nothing went wrong
    settle      when no handler works and each has said how it ended: all records completed or put back in one
                statement, which verifies every lease, and COMMIT
                anything else (a handler's error, the database's, a lease that is gone): all of it is rolled back, and
                the attempts run again one by one, each in a transaction of its own (transaction.py)

No record is locked before the end. So heartbeats renew the leases, a cancellation is heard, and a record may be taken
from a frozen worker, as without a transaction; what such a worker did is never committed, for the lease is gone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import psycopg

from stowhand.clock import Clock
from stowhand.errors import StoreError, StoreUnreachable
from stowhand.jobs.lifecycle import QUARANTINE_AFTER, Settlement
from stowhand.protocols.handler import Attempt, control_of
from stowhand.protocols.store import Reply, Verdict
from stowhand.stores.database.link import rows
from stowhand.stores.postgres.table.handler_connection import AttemptConnection
from stowhand.stores.postgres.table.held_transaction import Gone, HeldTransaction, InDoubt
from stowhand.stores.postgres.table.transaction import KEPT, PAUSE, AttemptTransactions, HandlerTools
from stowhand.stores.verdicts import Entry, Pair, pair, recorded

MOST = 50
"""Attempts in one transaction."""
SOON = 0.01
"""Seconds that an attempt waits for a place rather than begin another transaction."""
LONGEST = 0.25
"""Seconds after which no further one begins in it."""
_FOUND = Verdict.ALREADY_SETTLED
LOCKED_PAUSES = (0.002, 0.010)
"""A beat holds a row for a moment."""


class SharedTransactions:
    """Of one table: those in which another attempt may begin."""

    def __init__(self, transactions: AttemptTransactions) -> None:
        self.transactions = transactions
        self.waiting: list[SharedTransaction] = []
        """No handler works in them, and they have not ended yet."""
        self._beginning = 0
        self._queue: deque[asyncio.Future[SharedTransaction | None]] = deque()
        """Who would rather come after the handler that works just now than begin another transaction."""
        self.open: set[SharedTransaction] = set()

    async def begin(self, attempt: Attempt[Any]) -> tuple[AttemptConnection, Share] | None:
        """The handler's connection, and its place. ``None``: it is to run alone. Raises StoreUnreachable."""
        if control_of(attempt).alone or attempt.claim.resets >= QUARANTINE_AFTER:
            return None
        if (shared := await self._next()) is not None:
            return shared.admit(attempt)
        self._beginning += 1
        try:
            return (await self._begin(attempt)).admit(attempt)
        except BaseException:
            self.replace()
            raise
        finally:
            self._beginning -= 1

    async def _begin(self, attempt: Attempt[Any]) -> SharedTransaction:
        held, stalled = await self.transactions.hold(attempt.lease), self.transactions.context.options.stalled
        try:
            with self.transactions.context.translated():
                await held.begin_unlocked(stalled)
        except BaseException:
            await held.let_go(reset=False)
            raise
        held.keep_alive(self.transactions.clock, stalled / 3)
        return SharedTransaction(self, held)

    def offer(self, shared: SharedTransaction) -> None:
        """No handler works in it, and another may: the first who waits is the next."""
        while self._queue:
            if not (first := self._queue.popleft()).done():
                shared.keep_place()
                first.set_result(shared)
                return
        self.waiting.append(shared)

    def replace(self) -> None:
        """One takes no more: the first who waits for a place begins another."""
        while self._queue:
            if not (first := self._queue.popleft()).done():
                first.set_result(None)
                return

    async def _next(self) -> SharedTransaction | None:
        """One with a place; ``None``: none has one soon."""
        while self.waiting:
            if (shared := self.waiting.pop()).takes_more:
                return shared
        if not (self._beginning or any(shared.takes_more for shared in self.open)):
            return None
        place: asyncio.Future[SharedTransaction | None] = asyncio.get_running_loop().create_future()
        self._queue.append(place)

        def begin_another() -> None:
            if not place.done():
                place.set_result(None)

        timer = self.transactions.clock.call_later(SOON, begin_another)
        try:
            return await asyncio.shield(place)
        except asyncio.CancelledError:
            kept = place.result() if place.done() else None
            place.cancel()
            if kept is not None:
                kept.give_up_place()
            raise
        finally:
            timer.cancel()

    async def close(self) -> None:
        """Undo what is still open."""
        await asyncio.gather(*(shared.undo() for shared in tuple(self.open)))


class SharedTransaction:
    """One of them."""

    def __init__(self, among: SharedTransactions, held: HeldTransaction) -> None:
        self._among, self._transactions, self.held = among, among.transactions, held
        self._clock: Clock = among.transactions.clock
        self._last_entry = self._clock.monotonic() + min(LONGEST, self._transactions.context.options.stalled / 10)
        self.shares: list[Share] = []
        self._working: Share | None = None
        self._is_kept = False
        self._broken = False
        """All of it is to be undone."""
        self._may_end = asyncio.Event()
        self._turn = asyncio.Lock()
        """Of those who wait for the end one brings it about."""
        self._ends = False
        """It ends, or has ended."""
        self._is_known = False
        """It has, and how is written in its shares."""
        among.open.add(self)

    @property
    def takes_more(self) -> bool:
        """Another handler may begin in it."""
        fits = len(self.shares) < MOST and self._clock.monotonic() < self._last_entry
        return fits and not (self._broken or self._ends)

    def admit(self, attempt: Attempt[Any]) -> tuple[AttemptConnection, Share]:
        """A place for one attempt, whose handler begins now."""
        self._is_kept = False
        share = self._working = Share(self, attempt, self._transactions)
        self.shares.append(share)
        self.look()
        return self.held.lend(f"record {attempt.lease.job_id}"), share

    async def leave(self, *, failed: bool) -> None:
        """The handler that works in it has ended. Canceled, too: the others would wait for it for ever."""
        fit = False
        try:
            fit = not failed and await self.held.is_fit_for_another()
        finally:
            self._broken = self._broken or not fit
            self._working = None
            if self.takes_more:
                self._among.offer(self)
            else:
                self._among.replace()
            self.look()

    def keep_place(self) -> None:
        """For an attempt that begins as soon as its task has its turn: until then it does not end."""
        self._is_kept = True
        self.look()

    def give_up_place(self) -> None:
        """That attempt does not begin after all."""
        self._is_kept = False
        self.look()

    def look(self, *, broken: bool = False) -> None:
        """Something changed by which it may end, or not yet."""
        self._broken = self._broken or broken
        if (
            self._working is None
            and not self._is_kept
            and (self._broken or all(share.is_over for share in self.shares))
        ):
            self._may_end.set()
        else:
            self._may_end.clear()

    async def end(self) -> None:
        """Wait until no handler works in it, and until it is over. Raises StoreError."""
        async with self._turn:
            while not self._may_end.is_set():
                await self._may_end.wait()
            if not self._ends:
                self._ends = True
                if self in self._among.waiting:
                    self._among.waiting.remove(self)
                try:
                    await self._end()
                finally:
                    self._among.open.discard(self)
        if not self._is_known:
            raise StoreError("the end of a transaction that several attempts shared was cut short")

    async def undo(self) -> None:
        """All that was done in it, whatever still works there."""
        self._working, self._is_kept = None, False
        self.look(broken=True)
        with suppress(StoreError):
            await self.end()

    # -- the end ---------------------------------------------------------------------------------

    async def _end(self) -> None:
        held, reset = self.held, self._transactions.resets
        kept = [share for share in self.shares if share.settlement is not None]
        entries = [(share.attempt.lease, share.settlement) for share in kept if share.settlement is not None]
        replies: Mapping[Pair, Reply] | None = {}
        try:
            await held.take_back()
            written = None if self._broken else await self._write(entries)
            if written is None:
                await held.roll_back()
            else:
                await held.commit_written(reset=reset)
                replies = written
        except InDoubt:
            replies = None
        except (Gone, psycopg.Error, OSError, UnicodeError):
            with suppress(psycopg.Error, OSError):  # closed, it is rolled back too
                await held.roll_back()
        finally:
            await held.let_go(reset=reset)
        if replies is None:
            replies = await self._resolve(entries)
        for share in kept:
            share.reply = replies.get(share.attempt.lease.pair)
        self._is_known = True

    async def _write(self, entries: Sequence[Entry]) -> Mapping[Pair, Reply] | None:
        """Every log, and every end. ``None``: one of the leases is gone. Raises what psycopg raises."""
        context, plan, logs = self._transactions.context, self._transactions.plan, self._transactions.logs
        for share in self.shares:
            if share.tools.logs:
                values = logs.values(share.attempt.lease, entries=share.tools.logs)
                await self.held.write(context.statement("write_logs"), values)
        left, written = list(entries), dict[Pair, Reply]()
        for pause in (*LOCKED_PAUSES, None):
            answer = await self.held.write(context.statement("settle"), plan.settle_values(left))
            found = dict(map(plan.read_settled, answer))
            written |= {pair(one): recorded(one[1], found[pair(one)]) for one in left if pair(one) in found}
            left = [one for one in left if pair(one) not in found]
            if not left:
                return written
            if pause is not None:
                await self._clock.sleep(pause)
        return None

    async def _resolve(self, entries: Sequence[Entry]) -> Mapping[Pair, Reply]:
        """COMMIT was sent, and its reply is lost. What a beat renews was rolled back; what is busy is not over yet."""
        context, settlements = self._transactions.context, self._transactions.settlements
        until = self._clock.monotonic() + context.options.stalled
        beat, values = context.statement("beat"), context.values(**context.leases([lease for lease, _ in entries]))
        replies: dict[Pair, Reply] = {pair(entry): Verdict.UNKNOWN for entry in entries}
        while self._clock.monotonic() < until:
            with suppress(StoreUnreachable), context.translated():
                answer = await settlements.persist(lambda to: rows(to, beat, values, prepare=None))
                found = {(context.job_id(key), token): what for key, token, what in answer}
                if "busy" not in found.values():
                    over = [entry for entry in entries if found[pair(entry)] == "lost"]
                    # They are not ours any more: this writes nothing, and tells whether what stands there is our own.
                    said = await settlements.settle(over, repeat=True) if over else []
                    replies |= {pair(one): reply for one, reply in zip(over, said, strict=True) if reply is _FOUND}
                    return {pair(one): replies[pair(one)] for one in over}
            await self._clock.sleep(PAUSE)
        return replies


class Share:
    """The place of one attempt in a transaction that it shares."""

    is_shared = True

    def __init__(self, shared: SharedTransaction, attempt: Attempt[Any], transactions: AttemptTransactions) -> None:
        self._shared, self._transactions, self._works = shared, transactions, True
        self.attempt = attempt
        self.tools = HandlerTools(transactions.context, attempt.lease, lambda: shared.held if self._works else None)
        self.asking, self.add_log, self.update_log = self.tools.asking, self.tools.add_log, self.tools.update_log
        self.settlement: Settlement | None = None
        """How it ended, where what it did is to be kept."""
        self.is_over = False
        """It is known how it ended."""
        self.reply: Reply | None = None
        """To its settlement; ``None``: undone."""

    async def leave(self, *, failed: bool) -> None:
        """Its handler has ended."""
        self._works = False
        await self._shared.leave(failed=failed)

    async def settle(self, settlement: Settlement) -> Reply | None:
        """Wait until all that share the transaction have ended, and it too. ``None``: undone. Raises StoreError."""
        lease, transactions = self.attempt.lease, self._transactions
        self.is_over = True
        if settlement.state in KEPT and transactions.plan.acceptable((lease, settlement)) is None:
            self.settlement = settlement
            self._shared.look()
            await self._shared.end()
            return self.reply
        await self.rollback()
        # One whose time was over, or that was to be canceled, is not begun again; nor one that has shared with nobody.
        if self.attempt.cancel_reason is None and len(self._shared.shares) > 1:
            return None
        return await transactions.settle_outside(lease, settlement, self.tools.logs)

    async def rollback(self) -> None:
        """Undo all of the transaction: its record is as it was when it was claimed. Raises StoreError."""
        self.is_over = True
        self._shared.look(broken=True)
        await self._shared.end()
