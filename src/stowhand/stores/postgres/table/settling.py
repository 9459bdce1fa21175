"""Settlements, on a connection of their own: guarded by the pair (id, token), none failing for another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stowhand.clock import SystemClock
from stowhand.jobs.job import State
from stowhand.jobs.lease import JobId, Lease
from stowhand.jobs.lifecycle import Settlement, turned
from stowhand.jobs.text import clean
from stowhand.protocols.store import Reply, Unwritten, Verdict
from stowhand.stores.database import trouble
from stowhand.stores.database.link import Link, Session, rows
from stowhand.stores.database.refused_rows import halved
from stowhand.stores.database.repeating import repeated
from stowhand.stores.postgres.table.context import TableContext, marks

Entry = tuple[Lease, Settlement]
Pair = tuple[JobId, str]

# A row is mostly locked by a statement of ours (a beat): gone in a moment. What takes longer is an application's
# transaction; then the caller tries again.
_BUSY_PAUSES = (0.002, 0.010)
_FOUND = {"settled": Verdict.ALREADY_SETTLED, "busy": Verdict.BUSY, "lost": Verdict.LOST}
NO_JOBS = "jobs were to be enqueued with it, and a table of one's own enqueues none: INSERT them"


class TableSettlements:
    """Records how attempts ended."""

    def __init__(self, context: TableContext) -> None:
        self._context = context
        self._link = Link(context.dialer, lambda: context.role("settle"))
        self._clock = SystemClock()

    async def settle(self, batch: Sequence[Entry], *, repeat: bool) -> Sequence[Reply]:
        """Replies in the order of the batch."""
        # A lease that is named twice is settled as it was named first.
        entries = {_pair(entry): entry for entry in reversed(batch)}
        with self._context.translated():
            known = await self._settle([entry for entry in entries.values() if not entry[1].then])
            missed = [entry for pair, entry in entries.items() if pair not in known]
            found = await self._look(missed)
            for entry in missed:
                if entry[1].then and found.get(_pair(entry)) is Verdict.BUSY:
                    found[_pair(entry)] = Unwritten(NO_JOBS)
            for pause in _BUSY_PAUSES:
                busy = [entry for entry in missed if found.get(_pair(entry)) is Verdict.BUSY]
                if not busy:
                    break
                await self._clock.sleep(pause)
                again = await self._settle(busy)
                found |= again | await self._look([entry for entry in busy if _pair(entry) not in again])
        known |= found
        gone = Verdict.UNKNOWN if repeat else Verdict.LOST
        return [known.get(_pair(entry), gone) for entry in batch]

    async def connect(self) -> None:
        """Have a connection, once. Raises StoreUnreachable."""
        if not self._link.connected:
            async with self._link.connection():
                pass

    async def close(self) -> None:
        """Close the connection."""
        await self._link.close()

    async def _settle(self, entries: Sequence[Entry]) -> dict[Pair, Reply]:
        """All together; if the database refuses one, by halves until it is alone."""
        known: dict[Pair, Reply] = {}

        def refused(entry: Entry, error: Exception) -> None:
            known[_pair(entry)] = Unwritten(clean(trouble.first_line(error)))

        async def write(part: Sequence[Entry]) -> Sequence[tuple[Pair, Reply]]:
            async def act() -> dict[Pair, State]:
                async with self._link.connection() as connection:
                    return await self._write(connection, part)

            written = await repeated(act, self._clock)
            return [(_pair(one), reply(one[1], written[_pair(one)])) for one in part if _pair(one) in written]

        return known | dict(await halved(entries, write, refused)) if entries else known

    async def _write(self, session: Session, entries: Sequence[Entry]) -> dict[Pair, State]:
        """The state that each was given. A row that another transaction holds is passed over."""
        done = await rows(session, self._context.statement("settle"), settle_values(self._context, entries))
        return {(self._context.job_id(id_), token): State(state) for id_, token, state in done}

    async def _look(self, entries: Sequence[Entry]) -> dict[Pair, Reply]:
        """What became of those that were not settled, as far as the store knows."""
        if not entries:
            return {}
        leases, settlements = zip(*entries, strict=True)
        values = self._context.values(
            **marks(leases),
            states=[settlement.state.value for settlement in settlements],
            errors=[settlement.error for settlement in settlements],
        )
        found = await repeated(lambda: self._link.rows(self._context.statement("look"), values), self._clock)
        given = {_pair(entry): entry[1] for entry in entries}
        known: dict[Pair, Reply] = {}
        for id_, token, what in found:
            pair = (self._context.job_id(id_), token)
            if what == "canceled":
                known[pair] = turned(given[pair], State.CANCELED)
            elif what in _FOUND:
                known[pair] = _FOUND[what]
        return known


def reply(settlement: Settlement, state: State) -> Reply:
    """Of one that was written: as given, or as something else."""
    return Verdict.SETTLED if state is settlement.state else turned(settlement, state)


def settle_values(context: TableContext, entries: Sequence[Entry]) -> Mapping[str, object]:
    """Of the statement ``settle``. At least one entry."""
    leases, settlements = zip(*entries, strict=True)
    return context.values(
        **marks(leases),
        states=[settlement.state.value for settlement in settlements],
        delays=[settlement.delay for settlement in settlements],
        errors=[settlement.error for settlement in settlements],
    )


def _pair(entry: Entry) -> Pair:
    return entry[0].job_id, entry[0].token
