"""The execution log of a running attempt, guarded by its lease."""

from __future__ import annotations

from collections.abc import Sequence

from stowhand.clock import SystemClock
from stowhand.errors import LogRefused, StoreUnreachable
from stowhand.jobs.execution_log import ENTRIES_LIMIT
from stowhand.jobs.lease import Lease
from stowhand.stores.database.link import Session, rows
from stowhand.stores.postgres.table.context import TableContext, mark_of

_PAUSES = (0.0, 0.01, 0.05, 0.25)
"""A beat holds the row for a moment; an application's transaction longer, and then the caller tries again."""


class Logs:
    """Adds and replaces entries."""

    def __init__(self, context: TableContext) -> None:
        self._context, self._clock = context, SystemClock()

    async def add(self, lease: Lease, entry: str) -> int:
        """Append; its number. Raises LogRefused, StoreUnreachable."""
        return await self._write("add_log", lease, most=ENTRIES_LIMIT, entry=entry)

    async def update(self, lease: Lease, number: int, entry: str) -> None:
        """Put it in the place of entry ``number``."""
        await self._write("update_log", lease, number=number, entry=entry)

    async def replace(self, session: Session, lease: Lease, entries: Sequence[str]) -> None:
        """The whole log, on a given connection; nothing where the record is not the lease's, or locked by another."""
        await rows(session, self._context.statement("write_logs"), self.values(lease, entries=list(entries)))

    async def _write(self, name: str, lease: Lease, **values: object) -> int:
        context = self._context
        with context.translated():
            for pause in _PAUSES:
                await self._clock.sleep(pause)
                async with context.pool.connection("log") as session:
                    done = await rows(session, context.statement(name), self.values(lease, **values))
                    if done:
                        return int(done[0][0])
                    found = await rows(session, context.statement("look_at_log"), self.values(lease))
                self._refuse(lease, found[0] if found else (False, 0), values)
        raise StoreUnreachable(f"{context}: an open transaction holds record {lease.job_id}; try again")

    @staticmethod
    def _refuse(lease: Lease, found: tuple[bool, int], values: dict[str, object]) -> None:
        """Raises LogRefused, unless only another transaction holds the row."""
        held, length = found
        if not held:
            raise LogRefused(f"record {lease.job_id}: the attempt that this log belongs to is over")
        number = values.get("number")
        if isinstance(number, int) and not 1 <= number <= length:
            raise LogRefused(f"record {lease.job_id}: its log has no entry {number}, it has {length}")
        if number is None and length >= ENTRIES_LIMIT:
            raise LogRefused(f"record {lease.job_id}: its log is full, {ENTRIES_LIMIT} entries")

    def values(self, lease: Lease, **values: object) -> dict[str, object]:
        """Of a statement about this lease's record."""
        return {**values, **self._context.values(**mark_of(lease))}
