"""Settlements, on a connection of their own: guarded by the pair (id, token), none sinking another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import psycopg

from stowhand.clock import SystemClock
from stowhand.database import trouble
from stowhand.database.link import Line, Link, rows
from stowhand.database.repeating import repeated
from stowhand.job import State
from stowhand.lifecycle import Ended, Settlement
from stowhand.store import JobId, Lease, Verdict
from stowhand.stores.table.postgres.home import Home, marks
from stowhand.text import clean

Entry = tuple[Lease, Settlement]
Pair = tuple[JobId, str]

# A row is mostly locked by a statement of ours (a beat): gone in a moment. What takes longer is an application's
# transaction, and the caller's affair.
_BUSY_PAUSES = (0.002, 0.010)
_REFUSED = "its settlement could not be written"
_FOUND = {"settled": Verdict.ALREADY_SETTLED, "busy": Verdict.BUSY, "lost": Verdict.LOST}


class Settlements:
    """Records how records left processing."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._link = Link(home.dialer, lambda: home.role("settle"))
        self._clock = SystemClock()

    async def settle(self, batch: Sequence[Entry], *, repeat: bool) -> Sequence[Verdict]:
        """Verdicts in the order of the batch."""
        # A lease that is named twice is settled as it was named first.
        entries = {_pair(entry): acceptable(entry) for entry in reversed(batch)}
        with self._home.translated():
            settled = await self._settle(list(entries.values()))
            missed = [entry for pair, entry in entries.items() if pair not in settled]
            found = await self._look(missed)
            for pause in _BUSY_PAUSES:
                busy = [entry for entry in missed if found.get(_pair(entry)) == "busy"]
                if not busy:
                    break
                await self._clock.sleep(pause)
                again = await self._settle(busy)
                settled |= again
                found |= await self._look([entry for entry in busy if _pair(entry) not in again])
        gone = Verdict.UNKNOWN if repeat else Verdict.LOST
        return [
            Verdict.SETTLED if (pair := _pair(entry)) in settled else _FOUND.get(found.get(pair, ""), gone)
            for entry in batch
        ]

    async def connect(self) -> None:
        """Have a connection, once. Raises StoreUnreachable."""
        if not self._link.connected:
            async with self._link.connection():
                pass

    async def close(self) -> None:
        """Let the connection go."""
        await self._link.close()

    async def _settle(self, entries: Sequence[Entry]) -> set[Pair]:
        """All together; if the database refuses one's values, by halves until it stands alone."""

        async def act() -> set[Pair]:
            async with self._link.connection() as connection:
                return await write(self._home, connection, entries)

        try:
            return await repeated(act, self._clock)
        except (psycopg.Error, UnicodeError) as error:
            if not trouble.is_about_values(error) and not isinstance(error, psycopg.errors.RaiseException):
                raise
            if len(entries) > 1:
                middle = len(entries) // 2
                return await self._settle(entries[:middle]) | await self._settle(entries[middle:])
            ((lease, settlement),) = entries
            if (settlement.error or "").startswith(_REFUSED):
                raise
            return await self._settle([(lease, _failed(trouble.first_line(error)))])

    async def _look(self, entries: Sequence[Entry]) -> dict[Pair, str]:
        if not entries:
            return {}
        leases, settlements = zip(*entries, strict=True)
        values = self._home.values(
            **marks(leases),
            states=[settlement.state.value for settlement in settlements],
            errors=[settlement.error for settlement in settlements],
        )
        found = await repeated(lambda: self._link.rows(self._home.statement("look"), values), self._clock)
        return {(self._home.job_id(id_), token): what for id_, token, what in found}


async def write(home: Home, line: Line, entries: Sequence[Entry]) -> set[Pair]:
    """On a given connection, in whatever transaction it is; what is settled now. Raises what psycopg raises.

    A row that another transaction holds is passed over. Give what is ``acceptable``.
    """
    if not entries:
        return set()
    done = await rows(line, home.statement("settle"), settle_values(home, entries))
    return {(home.job_id(id_), token) for id_, token in done}


def settle_values(home: Home, entries: Sequence[Entry]) -> Mapping[str, object]:
    """Of the statement ``settle``. At least one entry."""
    leases, settlements = zip(*entries, strict=True)
    return home.values(
        **marks(leases),
        states=[settlement.state.value for settlement in settlements],
        delays=[settlement.delay for settlement in settlements],
        errors=[settlement.error for settlement in settlements],
    )


def acceptable(entry: Entry) -> Entry:
    """As it is, or failed, with the reason. (A result has no column, and is dropped.)"""
    lease, settlement = entry
    if settlement.then:
        return lease, _failed("jobs were to be enqueued with it, and a table of one's own enqueues none: INSERT them")
    return entry


def _failed(reason: str) -> Settlement:
    return Settlement(State.FAILED, Ended.FAILED, error=clean(f"{_REFUSED}: {reason}"))


def _pair(entry: Entry) -> Pair:
    return entry[0].job_id, entry[0].token
