"""Renewing leases and resetting records: on a connection of its own, from one other thread, whose loop its calls block.

A lease ends ``stalled_max_age`` after ``last_heartbeat_at`` by the machine's wall clock. A queue that is ours keeps its
leases by the boot's monotonic clock, which no program can set; a table that other programs share has only its columns,
and they compare them with the time of day. So a wall clock that leaps ahead by more than the lease resets live records:
their attempts are lost, never settled twice.

While an application holds a write transaction no beat can be written. A sweep that had to wait for it resets nothing in
that round, and one that did not pauses: the beats that waited come first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from stowhand.clock import SystemClock, stopwatch
from stowhand.jobs.lease import JobId, Lease, ResetJob
from stowhand.protocols.store import Foreign, Pulse, Refusal
from stowhand.stores.database.sqlite_connection import SqliteConnection
from stowhand.stores.database.sqlite_writable import WriteProbe
from stowhand.stores.sqlite.leaser import Leaser
from stowhand.stores.sqlite.table import finish
from stowhand.stores.sqlite.table.moments import SECOND, after
from stowhand.stores.sqlite.table.table import Table, TableTransaction
from stowhand.stores.table.check import CHANGES_CLAIM
from stowhand.stores.table.claim_starts import Abandoned

PAGE = 1000
SHORT = 0.5
"""Seconds: one that waited longer than that for the write lock lets the others' beats go first."""
TURN = 0.1
"""Seconds, in which one that waits for the lock tries several times."""
RECENTLY = 1.0
"""Seconds in which no transaction can have kept beats away for as long as a lease lasts."""
SHARE = 0.01
"""Of the time, at most, goes into looking for waiting records that were canceled."""

CLOCK = SystemClock()
Find = Callable[[TableTransaction], Iterable[JobId]]
Pair = tuple[JobId, str]


class TableHeartbeats(Leaser[TableTransaction]):
    """Beats, hand-backs and resets."""

    def __init__(
        self,
        connection: SqliteConnection[TableTransaction],
        probe: WriteProbe,
        table: Callable[[], Table],
        abandoned: Abandoned,
    ) -> None:
        super().__init__(connection, probe)
        self._table = table
        self._abandoned = abandoned
        self._rest_until = self._turns_at = float("-inf")

    async def beat(self, leases: Sequence[Lease], lease: float) -> Pulse:
        """Renew them; what is not answered for is lost. How long they last is the table's option, not ``lease``."""
        held = {one.pair: one for one in leases}  # of a column without a type: numbers and texts
        if not held:
            return Pulse()

        def renew(tx: TableTransaction, part: Sequence[Pair]) -> list[tuple[Pair, Any]]:
            if not part:
                tx.run("beat", **finish.mark(finish.no_lease("")))
            return [(pair, self._renew(tx, held[pair])) for pair in part]

        answers, refused = await self._write_each("beat", list(held), renew)
        return Pulse(
            lost=frozenset(pair for pair, row in answers if row is None),
            canceled=frozenset(pair for pair, row in answers if row is not None and row[0]),
            refused=frozenset(refused),
        )

    def _renew(self, tx: TableTransaction, lease: Lease) -> tuple[int] | None:
        """Its row; ``None``: it is lost. A trigger of the application's may just have made it another claim's."""
        row: tuple[int] | None = tx.run("beat", **finish.mark(lease)).fetchone()
        record = None if row is None else finish.find(tx, lease)
        if record is not None and not record.matches:
            why = CHANGES_CLAIM.format(column=tx.table.shape.columns["started_at"])
            self._refused.append(Refusal(lease.job_id, "beat", why))
            return None
        return row

    async def release(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        """Hand back unspent. Nothing is ever busy: there is one writer at a time."""
        if leases:
            await self._give_back(leases)
        return ()

    async def abandon(self, token: str) -> bool:
        """Give back whatever this token holds; it claims nothing more."""

        def give_up(tx: TableTransaction) -> list[Lease]:
            self._abandoned.add(token)
            may_hold = self._abandoned.begun.may_hold(token)
            held = tx.look("held_by_token", token=token).fetchall() if may_hold else []
            return [Lease(key, token, epoch) for key, epoch in held]

        if held := self._connection.write(give_up):
            await self._give_back(held)
        return True

    async def foreign(self, ours: Sequence[Lease], slack: float) -> Foreign | None:
        """All leases but these. Waiting records that were asked to cancel are looked for as well."""
        await self.maintain()
        ids = msgspec.json.encode([lease.job_id for lease in ours]).decode()

        def look(tx: TableTransaction) -> Foreign:
            late = after(tx.now, -tx.table.options.stalled - slack)
            found, first = tx.look("foreign", late=late, ours=ids).fetchone()
            return Foreign(late=bool(found), ends_in=None if first is None else (first - late) / SECOND)

        return self._connection.read(look)

    async def reset_stalled(self, slack: float) -> Sequence[ResetJob]:
        """Take back a page of records without a heartbeat for ``stalled_max_age`` and ``slack`` seconds."""
        await self.maintain()

        def find(tx: TableTransaction) -> list[JobId]:
            late = after(tx.now, -tx.table.options.stalled - slack)
            return [key for (key,) in tx.look("stalled", late=late, limit=PAGE)]

        # A look without the write lock first: there is hardly ever anything to do.
        if not self._connection.read(find) or not await self._beats_had_their_turn():
            return []
        asked = stopwatch()
        return await self._reset(lambda tx: () if stopwatch() - asked > SHORT else find(tx))

    async def reset_worker(self, worker: str) -> Sequence[ResetJob]:
        """Take back a page of what this worker holds. Another program's marks are not ours to judge."""
        return await self._reset(lambda tx: [key for (key,) in tx.look("held_by_worker", worker=worker, limit=PAGE)])

    async def reset_lease(self, lease: Lease) -> Sequence[ResetJob]:
        """Take back this one record."""
        return await self._reset(lambda _: [lease.job_id], lease)

    async def check(self) -> None:
        """Does nothing: the table is its owner's, and what it lacks is reported where it is needed."""

    async def maintain(self) -> None:
        """Put away waiting records whose ``cancel`` was set. Looked for seldom where looking takes long."""
        if not self._table().shape.has("cancel") or stopwatch() < self._rest_until:
            return
        began = stopwatch()

        def find(tx: TableTransaction) -> list[JobId]:
            return [key for (key,) in tx.look("canceled_waiting", limit=PAGE)]

        def cancel(tx: TableTransaction, part: Sequence[JobId]) -> list[None]:
            for key in part:
                tx.run("cancel_waiting", id=key)
            return []

        if found := self._connection.read(find):
            await self._write_each("cancel", found, cancel)
        self._rest_until = stopwatch() + (stopwatch() - began) / SHARE

    async def _beats_had_their_turn(self) -> bool:
        """False while another program holds the write lock. When it has just released it, others have been waiting."""
        if stopwatch() - self._turns_at < RECENTLY:
            return True
        asked = stopwatch()
        self._connection.write(lambda _: None)
        if stopwatch() - asked > SHORT:
            return False
        await CLOCK.sleep(TURN)
        self._turns_at = stopwatch()
        return True

    async def _give_back(self, leases: Sequence[Lease]) -> None:
        held = {one.pair: one for one in leases}

        def give_back(tx: TableTransaction, part: Sequence[Pair]) -> list[None]:
            for pair in part:
                finish.give_back(tx, held[pair])
            return []

        await self._write_each("release", list(held), give_back)

    async def _reset(self, find: Find, lease: Lease | None = None) -> Sequence[ResetJob]:
        def reset(tx: TableTransaction, part: Sequence[JobId]) -> list[ResetJob]:
            still = set(find(tx))  # a lease may have been renewed meanwhile
            taken = [finish.reset(tx, key, lease) for key in part if key in still]
            return [one for one in taken if one is not None]

        found = list(self._connection.read(find))
        taken, _ = await self._write_each("reset", found, reset) if found else ([], ())
        return taken
