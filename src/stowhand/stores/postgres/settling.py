"""Settlements, on a connection of their own: durable, guarded by the pair (id, token), none sinking another."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import psycopg

from stowhand import limits, strict_json
from stowhand.clock import SystemClock
from stowhand.database import trouble
from stowhand.database.link import Connection, Link, Row, rows
from stowhand.database.repeating import repeated
from stowhand.errors import InvalidJob, UndecodablePayload
from stowhand.job import NewJob, State
from stowhand.lifecycle import COMPLETED, Ended, Settlement
from stowhand.store import JobId, Lease, Verdict
from stowhand.stores.postgres.bulk import Bulk
from stowhand.stores.postgres.home import Home
from stowhand.stores.postgres.producing import values_of
from stowhand.stores.postgres.rows import pairs, plain_array, text_array
from stowhand.text import clean

Entry = tuple[Lease, Settlement]
Pair = tuple[int, str]
T = TypeVar("T")

# A row is mostly locked by a statement of ours (a cancel, a key that moves on): gone in a moment. What takes longer is
# an application's transaction, and the caller's affair.
_BUSY_PAUSES = (0.002, 0.010)

_FOUND = {"accepted": Verdict.SETTLED, "settled": Verdict.ALREADY_SETTLED, "busy": Verdict.BUSY, "lost": Verdict.LOST}


class Settlements:
    """Records how jobs left processing."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._link = Link(home.dialer, lambda: home.role("settle"))
        self._clock = SystemClock()

    async def settle(self, batch: Sequence[Entry], *, repeat: bool) -> Sequence[Verdict]:
        """Verdicts in the order of the batch."""
        with self._home.translated():
            if leases := _all_completed(batch):
                done = await self._complete(leases)
                if len(done) == len(leases):
                    return [Verdict.SETTLED] * len(batch)
                ordered, settled = sorted(batch, key=_job_id), _pairs_of(leases, done)
            else:
                ordered = sorted(_once_each(batch), key=_job_id)
                settled = await self._settle(ordered)
                if len(settled) == len(ordered):
                    return [Verdict.SETTLED] * len(batch)
            found = await self._look(_missed(ordered, settled))
            for pause in _BUSY_PAUSES:
                if "busy" not in found.values():
                    break
                await self._clock.sleep(pause)
                busy = [entry for entry in ordered if found.get(_pair(entry)) == "busy"]
                again = await self._settle(busy)
                found |= dict.fromkeys(again, "accepted") | await self._look(_missed(busy, again))
        unknown = Verdict.UNKNOWN if repeat else Verdict.LOST
        return [_FOUND.get(found.get(_pair(entry), "accepted"), unknown) for entry in batch]

    async def close(self) -> None:
        """Let the connection go."""
        await self._link.close()

    async def _settle(self, entries: Sequence[Entry]) -> set[Pair]:
        """What is settled now."""
        plain = [entry for entry in entries if _is_plain(entry[1])]
        other = [entry for entry in entries if not _is_plain(entry[1])]
        settled = await self._settle_completed(plain) if plain else set()
        return settled | await self._settle_each(other) if other else settled

    async def _settle_completed(self, entries: Sequence[Entry]) -> set[Pair]:
        """The commonest way: nothing but ids and tokens travels."""
        leases = [lease for lease, _ in entries]
        if len({lease.job_id for lease in leases}) < len(leases):
            return await self._settle_each(entries)  # one id under two tokens: ids alone would not tell them apart
        done = await self._complete(leases)
        return _pairs_of(leases, done)

    async def _complete(self, leases: Sequence[Lease]) -> list[Row]:
        values = (*pairs(leases), self._home.keep, self._home.now())
        return await self._persist(lambda connection: self._rows(connection, "settle_completed", values))

    async def _settle_each(self, entries: Sequence[Entry]) -> set[Pair]:
        """All together; if the database refuses one's values, by halves until it stands alone."""
        try:
            return await self._persist(lambda connection: self._record(connection, entries))
        except (psycopg.Error, UnicodeError, InvalidJob) as error:
            if not (isinstance(error, InvalidJob) or trouble.is_about_values(error)):
                raise
            if len(entries) > 1:
                middle = len(entries) // 2
                return await self._settle_each(entries[:middle]) | await self._settle_each(entries[middle:])
            ((lease, settlement),) = entries
            if _is_refusal(settlement):
                raise
            reason = clean(f"its settlement could not be written: {trouble.first_line(error)}")
            return await self._settle_each([(lease, Settlement(State.FAILED, Ended.FAILED, error=reason))])

    async def _record(self, connection: Connection, entries: Sequence[Entry]) -> set[Pair]:
        """One transaction: the settlements, and what the accepted ones enqueue."""
        _check_payloads(entries)
        follow_ups = [(entry, limits.check(job)) for entry in entries for job in entry[1].then]
        if not follow_ups:
            return await self._write(connection, entries)
        async with connection.transaction():
            accepted = await self._write(connection, entries)
            await self._enqueue(connection, [job for entry, job in follow_ups if _pair(entry) in accepted])
        return accepted

    async def _enqueue(self, connection: Connection, jobs: Sequence[NewJob]) -> None:
        if len(jobs) == 1:
            await self._rows(connection, "enqueue", values_of(jobs[0], self._home.now()))
        elif jobs:
            await self._rows(connection, "enqueue_each", Bulk(jobs).values_of_each(self._home.now()))

    async def _write(self, connection: Connection, entries: Sequence[Entry]) -> set[Pair]:
        settlements = [settlement for _, settlement in entries]
        done = await self._rows(
            connection,
            "settle",
            (
                *pairs([lease for lease, _ in entries]),
                text_array(each.state for each in settlements),
                plain_array(each.delay for each in settlements),
                plain_array(each.refund for each in settlements),
                text_array(each.error for each in settlements),
                text_array(each.result for each in settlements),
                text_array(each.payload for each in settlements),
                self._home.keep,
                self._home.now(),
            ),
        )
        return {(row[0], row[1]) for row in done}

    async def _look(self, leases: Sequence[Lease]) -> dict[Pair, str]:
        if not leases:
            return {}
        found = await self._persist(lambda connection: self._rows(connection, "look", pairs(leases)))
        return {(row[0], row[1]): row[2] for row in found}

    async def _rows(self, connection: Connection, name: str, values: Sequence[object]) -> list[Row]:
        return await rows(connection, self._home.statements[name], values, self._home.dialer.prepared or None)

    async def _persist(self, action: Callable[[Connection], Awaitable[T]]) -> T:
        """Again, a few times, after what was definitely not done (a deadlock, a server shutting down)."""

        async def act() -> T:
            async with self._link.connection() as connection:
                return await action(connection)

        return await repeated(act, self._clock)


def _all_completed(batch: Sequence[Entry]) -> list[Lease] | None:
    """The leases in id order, when all of them completed with nothing to add, and each job is there once."""
    if not all(settlement is COMPLETED for _, settlement in batch):
        return None
    leases = sorted((lease for lease, _ in batch), key=_id_of)
    return leases if len({lease.job_id for lease in leases}) == len(leases) else None


def _pairs_of(leases: Sequence[Lease], done: Sequence[Row]) -> set[Pair]:
    ids = {row[0] for row in done}
    return {(lease.job_id, lease.token) for lease in leases if lease.job_id in ids}


def _check_payloads(entries: Sequence[Entry]) -> None:
    """What is left of a batch is a payload like any other: whoever claims the job must be able to read it."""
    for _, settlement in entries:
        if settlement.payload is not None:
            try:
                strict_json.validate(settlement.payload)
            except UndecodablePayload as error:
                raise InvalidJob(f"the payload: {error}") from None


def _is_plain(settlement: Settlement) -> bool:
    return settlement is COMPLETED or (
        settlement.state is State.COMPLETED
        and settlement.result is None
        and settlement.error is None
        and not settlement.then
        and not settlement.refund
    )


def _is_refusal(settlement: Settlement) -> bool:
    """Is it already what a settlement that cannot be written becomes?"""
    return (
        settlement.state is State.FAILED
        and settlement.result is None
        and not settlement.then
        and (settlement.error or "").startswith("its settlement could not be written")
    )


def _once_each(batch: Sequence[Entry]) -> Sequence[Entry]:
    """A lease that is named twice is settled as it was named first."""
    first = dict(zip(map(_pair, reversed(batch)), reversed(batch), strict=True))
    return batch if len(first) == len(batch) else list(first.values())


def _missed(entries: Sequence[Entry], settled: set[Pair]) -> list[Lease]:
    return [entry[0] for entry in entries if _pair(entry) not in settled]


def _pair(entry: Entry) -> Pair:
    return entry[0].job_id, entry[0].token


def _job_id(entry: Entry) -> JobId:
    return entry[0].job_id


def _id_of(lease: Lease) -> JobId:
    return lease.job_id
