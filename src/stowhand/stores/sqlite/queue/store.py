"""The embedded queue behind the seams of ``stowhand.protocols.store``; its connections are in ``threads``."""

from __future__ import annotations

import builtins
import os
import sqlite3
from collections.abc import AsyncIterable, Callable, Iterable, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import NoReturn

import msgspec

from stowhand.errors import ConfigurationError
from stowhand.jobs import limits
from stowhand.jobs.conditions import refuse_conditions
from stowhand.jobs.job import Job, NewJob, State
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import Settlement
from stowhand.protocols.queue_store import NEWEST, Answer, Entered, JobFilter, KnownItem, Reschedule, Tick
from stowhand.protocols.store import Claim, ClaimRequest, Foreign, Reply, StoreOptions, whole_batch
from stowhand.protocols.validation import validate_ids, validate_reason, validate_reschedule, validate_workers
from stowhand.stores.database.sqlite_writable import WriteProbe
from stowhand.stores.outlook import Outlook
from stowhand.stores.sqlite.queue import (
    administer,
    claim,
    counting,
    enqueue,
    guest,
    inspector,
    moment,
    settle,
    timetable,
    trouble,
)
from stowhand.stores.sqlite.queue.flow_tables import SqliteFlowTables
from stowhand.stores.sqlite.queue.heartbeats import SqliteHeartbeats, find_foreign
from stowhand.stores.sqlite.queue.moment import Moment
from stowhand.stores.sqlite.queue.operations import Operations
from stowhand.stores.sqlite.queue.spool import Spool

SYNCHRONOUS = ("FULL", "NORMAL")
DEFAULTS = StoreOptions()


class SqliteStore(Operations):
    """Jobs in one SQLite file, which may be the application's own. Any number of processes of one machine share it."""

    def __init__(self, path: str | Path, options: StoreOptions = DEFAULTS) -> None:
        if options.synchronous not in SYNCHRONOUS:
            raise ConfigurationError(
                f"synchronous is {options.synchronous!r}: it must be one of {', '.join(SYNCHRONOUS)}"
            )
        path = Path(os.path.abspath(path))  # noqa: PTH100 - resolve() would hide a symbolic link
        super().__init__(path, options.synchronous, moment.clock(options.pinned))
        self._options = options
        self._history, self._failed_retention = options.history, options.failed_retention
        self._outlook = Outlook()
        self.on_listening: Callable[[str, BaseException | None], None] | None = None
        """Never called: there is nothing to listen to."""

    @property
    def is_listening(self) -> bool:
        """Always: commits are counted in the file itself."""
        return True

    async def open(self) -> None:
        """Connect, and check the schema."""
        await self._write(lambda _connection, _now: None)
        self._wake.look()

    async def close(self) -> None:
        """Let every connection go. Harmless when repeated; the next use opens them again."""
        await self._close_threads()
        self._wake.close()

    # -- work ---------------------------------------------------------------------------------------

    async def claim(self, request: ClaimRequest) -> Sequence[Claim[Job]]:
        """Move up to ``limit`` due jobs to processing."""
        refuse_conditions(request.conditions)
        self._outlook.ask(request)
        # Transactions of bounded length: after a flood of new queues their heads take several.
        while True:
            claimed = await self._write(lambda connection, now: _claim(connection, now, request))
            if claimed is not None:
                return claimed

    async def settle(self, batch: Sequence[tuple[Lease, Settlement]], *, repeat: bool = False) -> Sequence[Reply]:
        """Record how jobs left processing."""
        replies: list[Reply] = []
        batch = whole_batch(batch, self._options.max_attempts)
        for start in range(0, len(batch), settle.AT_ONCE):
            part = batch[start : start + settle.AT_ONCE]
            replies += await self._write(
                lambda connection, now, part=part: settle.settle(  # type: ignore[misc]
                    connection, now, part, repeat=repeat, history=self._history is not None
                )
            )
        return replies

    async def next_due(self, tasks: tuple[str, ...] | None) -> float | None:
        """Seconds until the earliest waiting job of these tasks is due."""
        asked = self._outlook.take()

        def look(connection: sqlite3.Connection, now: Moment) -> float | None:
            if asked is not None:
                self._outlook.see(find_foreign(connection, now, asked.ours, asked.slack).ends_in)
            return claim.next_due(connection, now, tasks)

        return await self._read(look)

    def foreign(self) -> Foreign | None:
        """What ``next_due`` has just seen of foreign leases."""
        return self._outlook.told()

    async def wait(self, timeout: float) -> bool:
        """Until somebody, in whatever process, committed something."""
        return await self._wake.wait(timeout)

    def heartbeats(self) -> SqliteHeartbeats:
        """A blocking connection of its own, and one that only tries whether the file can be written."""
        probe = WriteProbe(self._connect(patience=0.0))
        return SqliteHeartbeats(self._connect(), probe, self._history, self._failed_retention)

    # -- enqueue ------------------------------------------------------------------------------------

    async def enqueue(self, job: NewJob) -> Job:
        """Commit one job."""
        job = self._options.whole(job)
        written = await self._write(lambda connection, now: _add(connection, now, job))
        self._wake.ring()
        return written

    async def add_built_in(self, job: NewJob) -> Job:
        """Commit one job of a built-in task."""
        checked = limits.check_built_in(job)
        written = await self._write(lambda connection, now: _add(connection, now, checked, built_in=True))
        self._wake.ring()
        return written

    async def enqueue_many(self, jobs: Iterable[NewJob] | AsyncIterable[NewJob]) -> list[int]:
        """Commit any number in one transaction.

        They are gathered first, beyond some thousands in a temporary file: a slow source must not keep other
        processes from writing.
        """
        spool = Spool()
        try:
            if isinstance(jobs, AsyncIterable):
                async for job in jobs:
                    spool.put(self._options.whole(job))
            else:
                for job in jobs:
                    spool.put(self._options.whole(job))
            ids = await self._write(lambda connection, now: _add_many(connection, now, spool))
        finally:
            spool.close()
        self._wake.ring()
        return ids

    async def add_jobs(self, jobs: Sequence[NewJob]) -> Sequence[Job]:
        """Commit them in one transaction."""
        spool = Spool()
        for job in jobs:
            spool.put(self._options.whole(job))
        written = await self._write(lambda connection, now: _add_jobs(connection, now, spool))
        self._wake.ring()
        return written

    def enqueue_in(self, connection: object, job: NewJob) -> Job:
        """Enqueue inside the transaction of the caller's ``sqlite3.Connection``; see ``guest``."""
        return guest.enqueue_in(connection, self._path, self._now, self._options.whole(job))

    # -- inspect ------------------------------------------------------------------------------------

    async def get(self, job_id: int) -> Job | None:
        """Live, or in the history."""
        return await self._read(lambda connection, _: inspector.get(connection, job_id))

    async def list(self, wanted: JobFilter = NEWEST) -> Sequence[Job]:
        """In id order."""
        return await self._read(lambda connection, _: inspector.find(connection, wanted))

    async def counts(self) -> dict[State, int]:
        """By state."""
        return await self._read_all(lambda connection, _: inspector.counts(connection))

    async def oldest_due(self) -> float:
        """Seconds for which the job that is due longest could have run."""
        return await self._read(counting.oldest_due)

    async def retry(self, job_id: int) -> Answer:
        """Due now."""
        answer = await self._write(lambda connection, now: inspector.retry(connection, now, job_id))
        self._wake.ring()
        return answer

    async def cancel(self, job_id: int) -> Answer:
        """At once, or asked of its worker."""
        history = self._history is not None
        return await self._write(lambda connection, now: inspector.cancel(connection, now, job_id, history=history))

    async def remove(self, job_id: int) -> Answer:
        """Delete."""
        return await self._write(lambda connection, _: inspector.remove(connection, job_id))

    async def retry_jobs(self, job_ids: Sequence[int]) -> Sequence[Answer]:
        """Due now."""
        return await self._answers(job_ids, inspector.retry)

    async def cancel_jobs(self, job_ids: Sequence[int]) -> Sequence[Answer]:
        """At once, or asked of their workers."""
        return await self._answers(job_ids, partial(inspector.cancel, history=self._history is not None))

    async def remove_jobs(self, job_ids: Sequence[int]) -> Sequence[Answer]:
        """Delete."""
        return await self._answers(job_ids, lambda connection, _, job_id: inspector.remove(connection, job_id))

    async def _answers(self, job_ids: Sequence[int], act: Callable[..., Answer]) -> Sequence[Answer]:
        """Page by page."""
        answers: builtins.list[Answer] = []
        for ids in administer.pages(validate_ids(job_ids)):

            def page(connection: sqlite3.Connection, now: Moment, ids: Sequence[int] = ids) -> Sequence[Answer]:
                return [act(connection, now, job_id) for job_id in ids]

            answers += await self._write(page)
            self._wake.ring()
        return answers

    async def remove_key(self, key: str) -> Answer:
        """Delete the job that holds the key."""
        return await self._write(lambda connection, _: inspector.remove_key(connection, key))

    async def complete_jobs(self, job_ids: Sequence[int]) -> Sequence[Job]:
        """As if they had been worked off."""
        return await self._act(job_ids, partial(administer.complete, history=self._history is not None))

    async def permanently_fail_jobs(self, job_ids: Sequence[int], reason: str | None = None) -> Sequence[Job]:
        """Failed, with attempts = max_attempts."""
        return await self._act(job_ids, partial(administer.fail, reason=validate_reason(reason)))

    async def reschedule_jobs(self, job_ids: Sequence[int], to: Reschedule) -> Sequence[Job]:
        """Set the given details."""
        history = self._history is not None
        return await self._act(job_ids, partial(administer.reschedule, to=validate_reschedule(to), history=history))

    async def force_unlock_workers(self, workers: Sequence[str]) -> Sequence[Job]:
        """Take back what these workers hold now."""
        tokens = dict(await self._read(partial(administer.held_by, workers=validate_workers(workers))))

        def take_back(connection: sqlite3.Connection, now: moment.Moment, *, job_ids: Sequence[int]) -> Sequence[Job]:
            pairs = [(job_id, tokens[job_id]) for job_id in job_ids]
            return administer.take_back(connection, now, pairs=pairs, history=self._history is not None)

        return await self._act(list(tokens), take_back)

    async def _act(self, job_ids: Sequence[int], act: administer.Action) -> Sequence[Job]:
        done = [await self._write(partial(act, job_ids=ids)) for ids in administer.pages(validate_ids(job_ids))]
        self._wake.ring()
        return [job for jobs in done for job in jobs]

    # -- timetable ----------------------------------------------------------------------------------

    async def now(self) -> datetime:
        """This machine's clock."""
        return moment.to_datetime(self._now().wall)

    async def register(self, items: Sequence[tuple[str, str]]) -> Sequence[KnownItem]:
        """Make them known."""
        return await self._write(lambda connection, now: timetable.register(connection, now, items))

    async def schedule(self, ticks: Sequence[Tick]) -> Sequence[Entered]:
        """Each tick at most once ever."""
        ticks = [msgspec.structs.replace(tick, job=self._options.whole(tick.job)) for tick in ticks]
        entered = await self._write(lambda connection, now: timetable.schedule(connection, now, ticks))
        self._wake.ring()
        return entered

    async def known_items(self) -> Sequence[KnownItem]:
        """By identifier."""
        return await self._read(lambda connection, _: timetable.known_items(connection))

    async def ticks(self, identifier: str, since: datetime) -> Sequence[datetime]:
        """Those in the ledger, in order."""
        return await self._read(lambda connection, _: timetable.ticks(connection, identifier, since))

    def connection(self) -> NoReturn:
        """Raises ConfigurationError."""
        raise ConfigurationError(
            f"{self.description}: this store lends no connections: open the file with sqlite3, or use PostgreSQL"
        )

    def seat(self, slots: int) -> None:
        """Nothing to do: tasks borrow no connections here."""

    def flow_tables(self) -> SqliteFlowTables:
        """What flows keep in the file."""
        return SqliteFlowTables(self._read, self._write, self._wake.ring, keeps=self._history is not None)


def _claim(connection: sqlite3.Connection, now: moment.Moment, request: ClaimRequest) -> Sequence[Claim[Job]] | None:
    return claim.claim(connection, now, request) if claim.refresh_heads(connection, now) else None


def _add(connection: sqlite3.Connection, now: moment.Moment, job: NewJob, *, built_in: bool = False) -> Job:
    with trouble.refusing():
        return enqueue.find(connection, enqueue.add(connection, now, job, built_in=built_in))


def _add_jobs(connection: sqlite3.Connection, now: moment.Moment, spool: Spool) -> list[Job]:
    return [enqueue.find(connection, job_id) for job_id in _add_many(connection, now, spool)]


def _add_many(connection: sqlite3.Connection, now: moment.Moment, spool: Spool) -> list[int]:
    with trouble.refusing():
        return enqueue.add_many(connection, now, spool.chunks())
