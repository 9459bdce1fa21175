"""Known crontab items, and the ledger that lets each tick create one job. Time is the server's."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from stowhand.clock import SystemClock
from stowhand.protocols.queue_store import REPORT_INTERVAL, SCHEDULER_TIMEOUT, KnownItem, LedgerEntry, Tick
from stowhand.protocols.validation import validate_items, validate_ticks
from stowhand.stores.database.postgres_errors import retry_transient
from stowhand.stores.database.statements import plain_array, text_array
from stowhand.stores.postgres.queue.context import PostgresContext
from stowhand.stores.postgres.queue.new_jobs import moments
from stowhand.stores.postgres.queue.producer import Producer
from stowhand.stores.postgres.queue.rows import Row


class Timetable:
    """The schema's crontab and its ledger."""

    def __init__(self, context: PostgresContext, producer: Producer) -> None:
        self._context = context
        self._producer = producer
        self._clock = SystemClock()

    async def now(self) -> datetime:
        """Return the time of the server's clock, or the frozen time of a test."""
        pinned = self._context.now()
        if pinned is not None:
            return pinned.astimezone(UTC)
        ((now,),) = await self._rows("cron_now")
        moment: datetime = now
        return moment

    async def register(self, items: Sequence[tuple[str, str]]) -> Sequence[KnownItem]:
        """Return the known items, and store the new ones."""
        if not items:
            return []
        checked = validate_items(items)
        names, specs = (text_array(item[place] for item in checked) for place in range(2))
        rows = await self._rows("cron_register", names, specs, self._context.now())
        return [KnownItem(*row) for row in rows]

    async def schedule(self, ticks: Sequence[Tick]) -> Sequence[LedgerEntry]:
        """Enqueue the ticks in one transaction, again after a deadlock. The ledger makes a repeat harmless."""
        if not ticks:
            return []
        checked = validate_ticks(ticks, await self.now())
        with self._context.translated():
            return await retry_transient(lambda: self._schedule(checked), self._clock)

    async def known_items(self) -> Sequence[KnownItem]:
        """Return all known items, ordered by identifier."""
        return [KnownItem(*row) for row in await self._rows("cron_known")]

    async def report(self, identifiers: Sequence[str], scheduler: str) -> None:
        await self._rows("cron_report", text_array(identifiers), scheduler, REPORT_INTERVAL, self._context.now())

    async def forget_item(self, identifier: str) -> bool:
        ((is_forgotten,),) = await self._rows("cron_forget", identifier, SCHEDULER_TIMEOUT, self._context.now())
        return bool(is_forgotten)

    async def _schedule(self, ticks: Sequence[Tick]) -> Sequence[LedgerEntry]:
        names = [tick.identifier for tick in ticks]
        times = [tick.at for tick in ticks]
        async with self._context.pool.connection("cron") as connection, connection.transaction():
            entered = await self._producer.run(
                connection,
                "cron_enter",
                (
                    *(text_array(names), moments(times), text_array(tick.spec for tick in ticks)),
                    *(plain_array(tick.backfilled for tick in ticks), self._context.now()),
                ),
            )
            mine = [place for place, (is_mine, _, _) in enumerate(entered) if is_mine]
            ids = dict[tuple[str, datetime], int]()
            if mine:
                new = await self._producer.write_ticks(connection, [ticks[place].job for place in mine])
                ids = {(names[place], times[place]): job_id for place, job_id in zip(mine, new, strict=True)}
                noted = (text_array(names[place] for place in mine), moments([times[place] for place in mine]))
                await self._producer.run(connection, "cron_note", (*noted, plain_array(new)))
                await self._producer.run(connection, "wake", ())
        return [
            LedgerEntry(is_own=is_mine, job_id=ids.get((name, time)) or job_id, spec=spec)
            for name, time, (is_mine, job_id, spec) in zip(names, times, entered, strict=True)
        ]

    async def _rows(self, name: str, *values: object) -> list[Row]:
        with self._context.translated():
            return await self._context.ask("cron", name, values)
