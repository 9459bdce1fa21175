"""The embedded queue: what ``stowhand.protocols`` asks of a store, on one file.

Each method checks its arguments and names the work, a function of a connection and the time, and the connection that
does it.
"""

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
from stowhand.jobs.job import MAX_ATTEMPTS, Job, NewJob, State
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import Settlement
from stowhand.protocols.figures import Figures, Pauses
from stowhand.protocols.operating import (
    Ages,
    Explanation,
    Purged,
    QueueChange,
    QueueRow,
    TaskChange,
    WorkerRow,
    read_queue,
    read_task,
)
from stowhand.protocols.queue_store import NEWEST, Answer, Entered, JobFilter, KnownItem, Reschedule, SchemaStatus, Tick
from stowhand.protocols.store import Claim, ClaimRequest, Foreign, Reply, StoreOptions, whole_batch
from stowhand.protocols.validation import (
    refuse_default_attempts,
    validate_ids,
    validate_reason,
    validate_reschedule,
    validate_workers,
)
from stowhand.stores.database import sqlite_file
from stowhand.stores.database.sqlite_trouble import find_damage
from stowhand.stores.database.sqlite_writable import WriteProbe
from stowhand.stores.foreign_leases import ForeignLeases
from stowhand.stores.sqlite.queue import (
    administer,
    claim,
    counting,
    enqueue,
    guest,
    inspector,
    moment,
    operating,
    schema,
    settle,
    timetable,
    trouble,
)
from stowhand.stores.sqlite.queue.connections import Connections
from stowhand.stores.sqlite.queue.flow_tables import SqliteFlowTables
from stowhand.stores.sqlite.queue.heartbeats import SqliteHeartbeats, find_foreign
from stowhand.stores.sqlite.queue.moment import Moment
from stowhand.stores.sqlite.queue.spool import Spool

SYNCHRONOUS = ("FULL", "NORMAL")
DEFAULTS = StoreOptions()


class SqliteStore:
    """Jobs in one SQLite file, which may be the application's own. Any number of processes of one machine share it."""

    def __init__(self, path: str | Path, options: StoreOptions = DEFAULTS) -> None:
        if options.synchronous not in SYNCHRONOUS:
            raise ConfigurationError(
                f"synchronous is {options.synchronous!r}: it must be one of {', '.join(SYNCHRONOUS)}"
            )
        path = Path(os.path.abspath(path))  # noqa: PTH100 - resolve() would hide a symbolic link
        self._connections = Connections(path, options.synchronous, moment.clock(options.pinned))
        self._options = options
        self._history, self._failed_retention = options.history, options.failed_retention
        self._foreign_leases = ForeignLeases()
        self.on_listening: Callable[[str, BaseException | None], None] | None = None
        """Never called: there is no connection to listen on."""

    @property
    def description(self) -> str:
        return f"sqlite:///{self._connections.path}"

    @property
    def is_listening(self) -> bool:
        """Always: commits are counted in the file itself."""
        return True

    @property
    def on_warning(self) -> Callable[[str, str], None] | None:
        """Called when another file has taken the place of this one."""
        return self._connections.replacement.on_warning

    @on_warning.setter
    def on_warning(self, call: Callable[[str, str], None] | None) -> None:
        self._connections.replacement.on_warning = call

    async def open(self) -> None:
        """Connect, and check the schema."""
        await self._connections.write(lambda _connection, _now: None)
        self._connections.wake.look()

    async def close(self) -> None:
        """Close every connection. Harmless when repeated; the next use opens them again."""
        await self._connections.close()

    # -- work ---------------------------------------------------------------------------------------

    async def claim(self, request: ClaimRequest) -> Sequence[Claim[Job]]:
        """Move up to ``limit`` due jobs to processing."""
        refuse_conditions(request.conditions)
        self._foreign_leases.ask(request)
        # Transactions of bounded length: after a flood of new queues their heads take several.
        while True:
            claimed = await self._connections.write(lambda connection, now: _claim(connection, now, request))
            if claimed is not None:
                return claimed

    async def settle(self, batch: Sequence[tuple[Lease, Settlement]], *, repeat: bool = False) -> Sequence[Reply]:
        """Record how attempts ended."""
        replies: list[Reply] = []
        batch = whole_batch(batch, self._options.max_attempts)
        history = self._history is not None
        for start in range(0, len(batch), settle.AT_ONCE):
            part = batch[start : start + settle.AT_ONCE]
            replies += await self._connections.write(partial(settle.settle, batch=part, repeat=repeat, history=history))
        return replies

    async def next_due(self, tasks: tuple[str, ...] | None) -> float | None:
        """Seconds until the earliest waiting job of these tasks is due."""
        question = self._foreign_leases.take()

        def look(connection: sqlite3.Connection, now: Moment) -> float | None:
            if question is not None:
                self._foreign_leases.see(find_foreign(connection, now, question.ours, question.slack).ends_in)
            return claim.next_due(connection, now, tasks)

        return await self._connections.read(look)

    def foreign(self) -> Foreign | None:
        """What ``next_due`` has just found out about foreign leases."""
        return self._foreign_leases.take_answer()

    async def wait(self, timeout: float) -> bool:
        """Until any process has committed something."""
        return await self._connections.wake.wait(timeout)

    def heartbeats(self) -> SqliteHeartbeats:
        """With a connection of their own, and one that only tries whether the file can be written."""
        probe = WriteProbe(self._connections.connect(patience=0.0))
        return SqliteHeartbeats(self._connections.connect(), probe, self._history, self._failed_retention)

    # -- enqueue ------------------------------------------------------------------------------------

    async def enqueue(self, job: NewJob) -> Job:
        job = self._options.whole(job)
        return await self._connections.write(partial(_add, job=job), wakes=True)

    async def add_built_in(self, job: NewJob) -> Job:
        """A job of a built-in task."""
        job = limits.check_built_in(job)
        return await self._connections.write(partial(_add, job=job, built_in=True), wakes=True)

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
            return await self._connections.write(partial(_add_many, spool=spool), wakes=True)
        finally:
            spool.close()

    async def add_jobs(self, jobs: Sequence[NewJob]) -> Sequence[Job]:
        """Commit them in one transaction."""
        spool = Spool()
        for job in jobs:
            spool.put(self._options.whole(job))
        return await self._connections.write(partial(_add_jobs, spool=spool), wakes=True)

    def enqueue_in(self, connection: object, job: NewJob) -> Job:
        """Enqueue inside the transaction of the caller's ``sqlite3.Connection``; see ``guest``."""
        return guest.enqueue_in(connection, self._connections.path, self._connections.now, self._options.whole(job))

    # -- inspect ------------------------------------------------------------------------------------

    async def get(self, job_id: int) -> Job | None:
        """Live, or in the history."""
        return await self._connections.read(lambda connection, _: inspector.get(connection, job_id))

    async def list(self, wanted: JobFilter = NEWEST) -> Sequence[Job]:
        """In id order."""
        return await self._connections.read(lambda connection, _: inspector.find(connection, wanted))

    async def counts(self) -> dict[State, int]:
        return await self._connections.read_all(lambda connection, _: inspector.counts(connection))

    async def oldest_due(self) -> float:
        """Seconds for which the job that is due longest could have run."""
        return await self._connections.read(counting.oldest_due)

    async def retry(self, job_id: int) -> Answer:
        """Due now."""
        return await self._connections.write(partial(inspector.retry, job_id=job_id), wakes=True)

    async def cancel(self, job_id: int) -> Answer:
        """At once if it waits; a running one is canceled by its worker."""
        return await self._connections.write(
            partial(inspector.cancel, job_id=job_id, history=self._history is not None)
        )

    async def remove(self, job_id: int) -> Answer:
        return await self._connections.write(lambda connection, _: inspector.remove(connection, job_id))

    async def retry_jobs(self, job_ids: Sequence[int]) -> Sequence[Answer]:
        return await self._answers(job_ids, inspector.retry)

    async def cancel_jobs(self, job_ids: Sequence[int]) -> Sequence[Answer]:
        return await self._answers(job_ids, partial(inspector.cancel, history=self._history is not None))

    async def remove_jobs(self, job_ids: Sequence[int]) -> Sequence[Answer]:
        return await self._answers(job_ids, lambda connection, _, job_id: inspector.remove(connection, job_id))

    async def remove_key(self, key: str) -> Answer:
        """Delete the job that holds the key."""
        return await self._connections.write(lambda connection, _: inspector.remove_key(connection, key))

    async def _answers(self, job_ids: Sequence[int], act: Callable[..., Answer]) -> Sequence[Answer]:
        answers: builtins.list[Answer] = []
        for ids in administer.pages(validate_ids(job_ids)):

            def page(connection: sqlite3.Connection, now: Moment, ids: Sequence[int] = ids) -> Sequence[Answer]:
                return [act(connection, now, job_id) for job_id in ids]

            answers += await self._connections.write(page, wakes=True)
        return answers

    # -- administer ---------------------------------------------------------------------------------

    async def complete_jobs(self, job_ids: Sequence[int]) -> Sequence[Job]:
        return await self._act(job_ids, partial(administer.complete, history=self._history is not None))

    async def permanently_fail_jobs(self, job_ids: Sequence[int], reason: str | None = None) -> Sequence[Job]:
        """Failed, with attempts = max_attempts."""
        return await self._act(job_ids, partial(administer.fail, reason=validate_reason(reason)))

    async def reschedule_jobs(self, job_ids: Sequence[int], to: Reschedule) -> Sequence[Job]:
        history = self._history is not None
        return await self._act(job_ids, partial(administer.reschedule, to=validate_reschedule(to), history=history))

    async def force_unlock_workers(self, workers: Sequence[str]) -> Sequence[Job]:
        """Reset what these workers hold now."""
        tokens = dict(await self._connections.read(partial(administer.held_by, workers=validate_workers(workers))))

        def take_back(connection: sqlite3.Connection, now: Moment, *, job_ids: Sequence[int]) -> Sequence[Job]:
            pairs = [(job_id, tokens[job_id]) for job_id in job_ids]
            return administer.take_back(connection, now, pairs=pairs, history=self._history is not None)

        return await self._act(list(tokens), take_back)

    async def _act(self, job_ids: Sequence[int], act: administer.Action) -> Sequence[Job]:
        changed: builtins.list[Job] = []
        for ids in administer.pages(validate_ids(job_ids)):
            changed += await self._connections.write(partial(act, job_ids=ids), wakes=True)
        return changed

    # -- timetable ----------------------------------------------------------------------------------

    async def now(self) -> datetime:
        """By this machine's clock."""
        return moment.to_datetime(self._connections.now().wall)

    async def register(self, items: Sequence[tuple[str, str]]) -> Sequence[KnownItem]:
        return await self._connections.write(partial(timetable.register, items=items))

    async def schedule(self, ticks: Sequence[Tick]) -> Sequence[Entered]:
        """Each tick at most once ever."""
        ticks = [msgspec.structs.replace(tick, job=self._options.whole(tick.job)) for tick in ticks]
        return await self._connections.write(partial(timetable.schedule, ticks=ticks), wakes=True)

    async def known_items(self) -> Sequence[KnownItem]:
        """By identifier."""
        return await self._connections.read(lambda connection, _: timetable.known_items(connection))

    async def ticks(self, identifier: str, since: datetime) -> Sequence[datetime]:
        """Those in the ledger, in order."""
        return await self._connections.read(lambda connection, _: timetable.ticks(connection, identifier, since))

    # -- operate ------------------------------------------------------------------------------------

    async def pause_queue(self, name: str) -> QueueChange:
        """A running job goes on."""
        return await self._connections.write(partial(operating.pause, queue=read_queue(name)))

    async def resume_queue(self, name: str) -> QueueChange:
        name = read_queue(name)
        return await self._connections.write(lambda connection, _: operating.resume(connection, name), wakes=True)

    async def pause_task(self, name: str) -> TaskChange:
        """In every queue; a running job goes on."""
        return await self._pause(read_task(name))

    async def resume_task(self, name: str) -> TaskChange:
        return await self._resume(read_task(name))

    async def pause_unqueued(self) -> TaskChange:
        """A running job goes on."""
        return await self._pause("")

    async def resume_unqueued(self) -> TaskChange:
        return await self._resume("")

    async def pauses(self) -> Pauses:
        """By name."""
        return await self._connections.read(lambda connection, _: counting.pauses(connection))

    async def _pause(self, task: str) -> TaskChange:
        return await self._connections.write(partial(operating.pause_task, task=task))

    async def _resume(self, task: str) -> TaskChange:
        return await self._connections.write(lambda connection, _: operating.resume_task(connection, task), wakes=True)

    async def retry_failed(self, job_ids: Sequence[int]) -> Sequence[int]:
        """Page by page."""
        retried: list[int] = []
        for ids in administer.pages(validate_ids(job_ids)):
            retried += await self._connections.write(partial(operating.retry_failed, job_ids=ids), wakes=True)
        return retried

    async def queues(self) -> Sequence[QueueRow]:
        """By name."""
        return await self._connections.read(operating.queues)

    async def figures(self) -> Figures:
        """From indexes; a long history is estimated from a sample of its rows."""
        return await self._connections.read_all(counting.figures)

    async def workers(self) -> Sequence[WorkerRow]:
        """By name."""
        return await self._connections.read(operating.workers)

    async def explain(self, job_id: int) -> Explanation | None:
        """Why it is not running."""
        return await self._connections.read(partial(operating.explain_job, job_id=job_id))

    async def purge(self, ages: Ages, *, dry_run: bool = False) -> Purged:
        """A transaction for each page."""
        counts = {}
        for state in (State.COMPLETED, State.FAILED, State.CANCELED):
            age = getattr(ages, state.value)
            if age is not None and dry_run:
                counts[state.value] = await self._connections.read(partial(operating.purgeable, state=state, age=age))
            elif age is not None:
                counts[state.value] = await self._purge(state, age)
        return Purged(**counts)

    async def _purge(self, state: State, age: float) -> int:
        total, since = 0, operating.BELOW_ALL
        while True:
            page = partial(operating.purge, state=state, age=age, since=since)
            gone, following = await self._connections.write(page)
            total += gone
            if following is None:
                return total
            since = following

    # -- schema: on connections that are not checked first ------------------------------------------

    async def install(self, *, roles: bool = False) -> SchemaStatus:
        """Create the file (readable by its owner alone) and its tables, or what is missing of them."""
        schema.refuse_roles(roles)
        path = self._connections.path

        def install() -> SchemaStatus:
            sqlite_file.create(path)
            with self._connections.unchecked(lambda raw: schema.write_ahead(raw, path)) as connection:
                return connection.write(schema.install)

        return await self._connections.on_writer(install)

    async def status(self) -> SchemaStatus:
        """What is installed; nothing, where the file does not exist."""
        path = self._connections.path

        def status() -> SchemaStatus:
            sqlite_file.check_place(path)
            if not path.exists():
                return SchemaStatus(None, schema.VERSION)
            with self._connections.unchecked() as connection:
                return connection.read(lambda raw, _: schema.status(raw))

        return await self._connections.on_reader(status)

    async def plan(self, *, roles: bool = False) -> str:
        """What ``install`` would run."""
        schema.refuse_roles(roles)
        return schema.plan(await self.status())

    async def foreign_changes(self) -> Sequence[str]:
        """None: the tables' names begin with ours, and there are no functions."""
        return []

    async def default_max_attempts(self) -> int:
        """As the package has it."""
        return MAX_ATTEMPTS

    async def set_default_max_attempts(self, attempts: int) -> NoReturn:
        """Refused: it is for jobs enqueued by SQL, and here all jobs come from this package."""
        refuse_default_attempts()

    async def uninstall(self) -> None:
        """Remove everything of ours; the file stays."""

        def uninstall() -> None:
            if self._connections.path.exists():
                with self._connections.unchecked() as connection:
                    connection.write(lambda raw, _: schema.uninstall(raw))

        await self._connections.on_writer(uninstall)

    async def check(self) -> Sequence[str]:
        """What SQLite finds wrong with the file; reads all of it. Empty: it is sound."""
        return await self._connections.read(lambda connection, _: find_damage(connection))

    # -- what this store lends ----------------------------------------------------------------------

    def connection(self) -> NoReturn:
        """Raises ConfigurationError."""
        raise ConfigurationError(
            f"{self.description}: this store lends no connections: open the file with sqlite3, or use PostgreSQL"
        )

    def seat(self, slots: int) -> None:
        """Nothing to do: tasks borrow no connections here."""

    def flow_tables(self) -> SqliteFlowTables:
        return SqliteFlowTables(self._connections, keeps=self._history is not None)


def _claim(connection: sqlite3.Connection, now: Moment, request: ClaimRequest) -> Sequence[Claim[Job]] | None:
    return claim.claim(connection, now, request) if claim.refresh_heads(connection, now) else None


def _add(connection: sqlite3.Connection, now: Moment, job: NewJob, *, built_in: bool = False) -> Job:
    with trouble.refusing():
        return enqueue.find(connection, enqueue.add(connection, now, job, built_in=built_in))


def _add_jobs(connection: sqlite3.Connection, now: Moment, spool: Spool) -> list[Job]:
    return [enqueue.find(connection, job_id) for job_id in _add_many(connection, now, spool)]


def _add_many(connection: sqlite3.Connection, now: Moment, spool: Spool) -> list[int]:
    with trouble.refusing():
        return enqueue.add_many(connection, now, spool.chunks())
