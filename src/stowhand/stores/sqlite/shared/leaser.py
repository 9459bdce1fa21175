"""Leases of the queue and of a user's table: renewed, released, and taken back from lost workers.

On a connection of its own, used from one other thread, whose loop its calls block: it has nothing else to do, and a hop
to a further thread would make no file faster.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from stowhand.clock import SystemClock
from stowhand.jobs.lease import Lease, ResetJob
from stowhand.jobs.text import clean
from stowhand.protocols.store import Foreign, Pulse, RefusedChange
from stowhand.stores.calls import UNREPORTED, Calls, reported
from stowhand.stores.database.refused_rows import write_each
from stowhand.stores.database.sqlite_connection import OnConnection, SqliteConnection, WriteProbe
from stowhand.stores.database.sqlite_errors import concerns_call, message_of
from stowhand.stores.sqlite.shared.plan import LeasePlan

PAGE = 1000
R = TypeVar("R")
X = TypeVar("X", bound=OnConnection)
_CLOCK = SystemClock()


class Leaser(Generic[X]):
    """What the heartbeats of both do alike; each adds what it alone has."""

    def __init__(
        self,
        connection: SqliteConnection[X],
        probe: WriteProbe | None,
        plan: LeasePlan[X],
        calls: Calls = UNREPORTED,
    ) -> None:
        self.calls = calls
        self._connection = connection
        self._probe = probe
        self._plan = plan
        self._refused: list[RefusedChange] = []

    @reported
    async def beat(self, leases: Sequence[Lease], lease: float) -> Pulse:
        """Renew for ``lease`` seconds from now; a table's option says how long, whatever ``lease`` is."""
        if not leases:
            return Pulse()
        held = {one.pair: one for one in leases}
        renewals, refused = await self._write_each(
            "beat", list(held.values()), lambda tx, part: self._plan.renew(tx, part, lease)
        )
        for one in renewals:
            if one.refusal:
                self._refused.append(RefusedChange(one.pair[0], "beat", one.refusal))
        renewed = frozenset(one.pair for one in renewals if not one.refusal)
        return Pulse(
            lost=frozenset(held.keys() - renewed - refused),
            canceled=frozenset(one.pair for one in renewals if one.pair in renewed and one.cancel_requested),
            refused=frozenset(refused),
        )

    @reported
    async def release(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        """Return them without using an attempt. None is ever busy: there is one writer at a time."""

        def release(tx: X, part: Sequence[Lease]) -> Sequence[None]:
            for lease in part:
                self._plan.release(tx, lease)
            return ()

        if leases:
            await self._write_each("release", leases, release)
        return ()

    @reported
    async def abandon(self, token: str) -> bool:
        """Release all that this token holds; it claims nothing more."""
        await self.release(self._connection.write(lambda tx: self._plan.abandon(tx, token)))
        return True

    @reported
    async def foreign(self, ours: Sequence[Lease], slack: float) -> Foreign | None:
        """All leases but these."""
        return self._connection.read(lambda tx: self._plan.find_foreign(tx, ours, slack))

    @reported
    async def reset_stalled(self, slack: float) -> Sequence[ResetJob]:
        """Take back a page of rows whose lease ended more than ``slack`` seconds ago."""
        return await self._reset(lambda tx: self._plan.find_stalled(tx, slack))

    @reported
    async def reset_worker(self, worker: str) -> Sequence[ResetJob]:
        """Take back a page of what this worker holds."""
        return await self._reset(lambda tx: self._plan.find_held_by(tx, worker))

    @reported
    async def reset_lease(self, lease: Lease) -> Sequence[ResetJob]:
        """Take back this one row."""
        return await self._reset(lambda _: [lease])

    def refused(self) -> Sequence[RefusedChange]:
        """What the file refused to change since the last call."""
        refused, self._refused = self._refused, []
        return refused

    async def check_writable(self) -> None:
        """Writes, and rolls it back."""
        if self._probe is not None:
            self._probe.look()

    async def close(self) -> None:
        """Close the connections."""
        self._connection.close()
        if self._probe is not None:
            self._probe.close()

    async def _reset(self, find: Callable[[X], Sequence[Lease]]) -> Sequence[ResetJob]:
        # Look first, without the write lock: there is hardly ever anything to do.
        found = self._connection.read(find)
        if not found:
            return []

        def reset(tx: X, part: Sequence[Lease]) -> list[ResetJob]:
            still = set(find(tx))  # a lease may have been renewed meanwhile
            jobs = [self._plan.reset(tx, lease) for lease in part if lease in still]
            return [job for job in jobs if job is not None]

        taken, _ = await self._write_each("reset", found, reset)
        return taken

    async def _write_each(
        self, doing: str, leases: Sequence[Lease], write: Callable[[X, Sequence[Lease]], Sequence[R]]
    ) -> tuple[list[R], set[tuple[object, str]]]:
        """The answers, and the pairs that the file refuses (a CHECK, a trigger): these are reported. ``write``: in one
        transaction."""

        async def call(part: Sequence[Lease]) -> Sequence[R]:
            return self._connection.write(lambda tx: write(tx, part))

        written = await write_each(leases, call, _CLOCK, concerns_call, self._connection.retry_pauses)
        for lease, error in written.refused:
            self._refused.append(RefusedChange(lease.job_id, doing, clean(message_of(error))))
        return written.rows, {lease.pair for lease, _ in written.refused}
