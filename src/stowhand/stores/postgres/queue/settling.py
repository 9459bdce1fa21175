"""Settlements, on a connection of their own: durable, guarded by the pair (id, token), none failing for another."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import psycopg

from stowhand.clock import SystemClock
from stowhand.errors import InvalidJob, UndecodablePayload
from stowhand.jobs import limits, strict_json
from stowhand.jobs.job import NewJob, State
from stowhand.jobs.lease import JobId, Lease
from stowhand.jobs.lifecycle import COMPLETED, WAITING, Settlement, turned
from stowhand.jobs.text import clean
from stowhand.protocols.store import Reply, Unwritten, Verdict
from stowhand.stores.database import trouble
from stowhand.stores.database.link import Connection, Link, Row, rows
from stowhand.stores.database.refused_rows import halved
from stowhand.stores.database.repeating import repeated
from stowhand.stores.postgres.queue.bulk import Bulk
from stowhand.stores.postgres.queue.context import PostgresContext
from stowhand.stores.postgres.queue.producing import CHUNK, values_of
from stowhand.stores.postgres.queue.rows import pairs, plain_array, text_array

Entry = tuple[Lease, Settlement]
Pair = tuple[int, str]
T = TypeVar("T")

# A row is mostly locked by a statement of ours (a cancel, a key that moves on): gone in a moment. What takes longer is
# an application's transaction; then the caller tries again.
_BUSY_PAUSES = (0.002, 0.010)

_FOUND: dict[str, Verdict] = {"settled": Verdict.ALREADY_SETTLED, "busy": Verdict.BUSY, "lost": Verdict.LOST}


class Settlements:
    """Records how attempts ended."""

    def __init__(self, context: PostgresContext) -> None:
        self._context = context
        self._link = Link(context.dialer, lambda: context.role("settle"))
        self._clock = SystemClock()

    async def settle(self, batch: Sequence[Entry], *, repeat: bool) -> Sequence[Reply]:
        """Replies in the order of the batch."""
        with self._context.translated():
            known: dict[Pair, Reply] | None = None
            if leases := _all_completed(batch):
                done = await self._complete(leases)
                if done is not None and len(done) == len(leases):
                    return [Verdict.SETTLED] * len(batch)
                ordered = sorted(batch, key=_job_id)
                if done is not None:
                    known = dict.fromkeys(_pairs_of(leases, done), Verdict.SETTLED)
            else:
                ordered = sorted(_once_each(batch), key=_job_id)
            if known is None:
                known = await self._settle(ordered)
            missed = [entry for entry in ordered if _pair(entry) not in known]
            found = await self._look(missed)
            for pause in _BUSY_PAUSES:
                busy = [entry for entry in missed if found.get(_pair(entry)) is Verdict.BUSY]
                if not busy:
                    break
                await self._clock.sleep(pause)
                again = await self._settle(busy)
                found |= again | await self._look([entry for entry in busy if _pair(entry) not in again])
        known |= found
        unknown = Verdict.UNKNOWN if repeat else Verdict.LOST
        return [known.get(_pair(entry), unknown) for entry in batch]

    async def close(self) -> None:
        """Close the connection."""
        await self._link.close()

    async def _settle(self, entries: Sequence[Entry]) -> dict[Pair, Reply]:
        """Replies for what is settled now, or refused."""
        plain = [entry for entry in entries if _is_plain(entry[1])]
        leases = [lease for lease, _ in plain]
        # One id under two tokens: ids alone would not tell them apart.
        if plain and len({lease.job_id for lease in leases}) == len(leases):
            done = await self._complete(leases)  # nothing but ids and tokens travels
            if done is not None:
                settled: dict[Pair, Reply] = dict.fromkeys(_pairs_of(leases, done), Verdict.SETTLED)
                other = [entry for entry in entries if not _is_plain(entry[1])]
                return settled | await self._settle_each(other) if other else settled
        return await self._settle_each(entries)

    async def _complete(self, leases: Sequence[Lease]) -> list[Row] | None:
        """All together; ``None``: the database refuses one of them."""
        values = (*pairs(leases), self._context.keep, self._context.now())
        try:
            return await self._persist(lambda connection: self._rows(connection, "settle_completed", values))
        except psycopg.Error as error:
            if not trouble.is_refusal(error):
                raise
            return None

    async def _settle_each(self, entries: Sequence[Entry]) -> dict[Pair, Reply]:
        """All together; if the database refuses one, by halves until it is alone."""
        known: dict[Pair, Reply] = {}

        def refused(entry: Entry, error: Exception) -> None:
            known[_pair(entry)] = Unwritten(clean(trouble.first_line(error)))

        async def write(part: Sequence[Entry]) -> Sequence[tuple[Pair, Reply]]:
            written = await self._persist(lambda connection: self._record(connection, part))
            return [(_pair(entry), _reply(entry, written[_pair(entry)])) for entry in part if _pair(entry) in written]

        settled = await halved(entries, write, refused, (InvalidJob,))
        return known | dict(settled)

    async def _record(self, connection: Connection, entries: Sequence[Entry]) -> dict[Pair, str]:
        """One transaction: the settlements, and what the accepted ones enqueue."""
        _check_payloads(entries)
        follow_ups = [
            (entry, self._context.options.whole(limits.check(job))) for entry in entries for job in entry[1].then
        ]
        if not follow_ups:
            return await self._write(connection, entries)
        async with connection.transaction():
            accepted = await self._write(connection, entries)
            await self._enqueue(connection, [job for entry, job in follow_ups if _pair(entry) in accepted])
        return accepted

    async def _enqueue(self, connection: Connection, jobs: Sequence[NewJob]) -> None:
        if len(jobs) == 1:
            await self._rows(connection, "enqueue", values_of(jobs[0], self._context.now()))
            return
        in_order = sorted(jobs, key=_key_of)  # as one statement would lock them
        for start in range(0, len(in_order), CHUNK):
            chunk = Bulk(in_order[start : start + CHUNK])
            await self._rows(connection, "enqueue_each", chunk.values_of_each(self._context.now()))

    async def _write(self, connection: Connection, entries: Sequence[Entry]) -> dict[Pair, str]:
        """The state that each was given."""
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
                self._context.keep,
                self._context.now(),
            ),
        )
        return {(row[0], row[1]): row[2] for row in done}

    async def _look(self, entries: Sequence[Entry]) -> dict[Pair, Reply]:
        """What became of those that were not settled, as far as the store knows."""
        if not entries:
            return {}
        leases = pairs([lease for lease, _ in entries])
        rows_ = await self._persist(lambda connection: self._rows(connection, "look", leases))
        given = {_pair(entry): entry[1] for entry in entries}
        found: dict[Pair, Reply] = {}
        for job_id, token, what, state in rows_:
            pair = (job_id, token)
            if what == "settled" and given[pair].state in WAITING and state in (State.CANCELED, State.FAILED):
                found[pair] = turned(given[pair], State(state))
            elif what in _FOUND:
                found[pair] = _FOUND[what]
        return found

    async def _rows(self, connection: Connection, name: str, values: Sequence[object]) -> list[Row]:
        return await rows(connection, self._context.statements[name], values, self._context.dialer.prepared or None)

    async def _persist(self, action: Callable[[Connection], Awaitable[T]]) -> T:
        """Repeated a few times after errors by which nothing was done (a deadlock, a server shutting down)."""

        async def act() -> T:
            async with self._link.connection() as connection:
                return await action(connection)

        return await repeated(act, self._clock)


def _key_of(job: NewJob) -> str:
    return job.key or ""


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
    """What is left of a batch is a payload like any other: the next claim must be able to read it."""
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


def _once_each(batch: Sequence[Entry]) -> Sequence[Entry]:
    """A lease that is named twice is settled as it was named first."""
    first = dict(zip(map(_pair, reversed(batch)), reversed(batch), strict=True))
    return batch if len(first) == len(batch) else list(first.values())


def _reply(entry: Entry, state: str) -> Reply:
    return Verdict.SETTLED if state == entry[1].state else turned(entry[1], State(state))


def _pair(entry: Entry) -> Pair:
    return entry[0].job_id, entry[0].token


def _job_id(entry: Entry) -> JobId:
    return entry[0].job_id


def _id_of(lease: Lease) -> JobId:
    return lease.job_id
