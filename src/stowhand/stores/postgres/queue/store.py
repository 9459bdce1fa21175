"""The PostgreSQL store: forwards each call to the part that does it; each part has its file."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Any

from stowhand.jobs.conditions import refuse_conditions
from stowhand.jobs.job import Job, NewJob, State
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import Settlement
from stowhand.protocols.figures import Figures, Pauses
from stowhand.protocols.operating import Ages, Explanation, Purged, QueueChange, QueueRow, TaskChange, WorkerRow
from stowhand.protocols.queue_store import NEWEST, Answer, Entered, JobFilter, KnownItem, Reschedule, SchemaStatus, Tick
from stowhand.protocols.store import Claim, ClaimRequest, Foreign, Heartbeats, Reply, StoreOptions
from stowhand.stores.postgres.queue.administering import Administrator
from stowhand.stores.postgres.queue.claiming import Claims
from stowhand.stores.postgres.queue.context import PostgresContext
from stowhand.stores.postgres.queue.flow_tables import PostgresFlowTables
from stowhand.stores.postgres.queue.heartbeats import PostgresHeartbeats
from stowhand.stores.postgres.queue.idle_announcement import IdleAnnouncement
from stowhand.stores.postgres.queue.inspecting import Inspector
from stowhand.stores.postgres.queue.operations import Operator
from stowhand.stores.postgres.queue.producing import Producer
from stowhand.stores.postgres.queue.schema import Installer
from stowhand.stores.postgres.queue.settling import Settlements
from stowhand.stores.postgres.queue.timetable import Timetable
from stowhand.stores.postgres.shared.listener import Listener

_DEFAULTS = StoreOptions()
_BEHIND_POOLER = "behind a pooler no notification arrives: give a direct address of the database (--listen-url)"


class PostgresStore:
    """Jobs in a schema of a PostgreSQL database. Nothing is connected before it is used."""

    def __init__(self, url: str, options: StoreOptions = _DEFAULTS) -> None:
        context = PostgresContext(url, options)
        self._context = context
        self.on_warning: Callable[[str, str], None] | None = None
        self._settlements = Settlements(context)
        announcement = IdleAnnouncement(context)
        self._listener = Listener(
            context.listen_dialer,
            lambda: context.role("listen"),
            context.channel,
            _BEHIND_POOLER if options.listen_url is None else None,
            announcement,
        )
        self._claims = Claims(context, self._listener, announcement)
        self._producer = Producer(context)
        self._inspector = Inspector(context)
        self._administrator = Administrator(context)
        self._timetable = Timetable(context, self._producer)
        self._operator = Operator(context)
        self._installer = Installer(context)

    @property
    def description(self) -> str:
        """Where it is, for people."""
        return f"{self._context.address}, schema {self._context.schema}"

    # -- a worker's ------------------------------------------------------------------------------

    async def open(self) -> None:
        """Connect, and check the schema. Raises StoreUnreachable, SchemaError."""
        await self._installer.check()

    async def close(self) -> None:
        """Close every connection."""
        for part in (self._claims, self._settlements, self._listener, self._context.pool):
            await part.close()

    async def claim(self, request: ClaimRequest) -> Sequence[Claim[Job]]:
        """Due jobs, now processing."""
        refuse_conditions(request.conditions)
        return await self._claims.claim(request)

    async def settle(self, batch: Sequence[tuple[Lease, Settlement]], *, repeat: bool = False) -> Sequence[Reply]:
        """Record how attempts ended."""
        return await self._settlements.settle(batch, repeat=repeat) if batch else []

    async def next_due(self, tasks: tuple[str, ...] | None) -> float | None:
        """Seconds until the earliest waiting job of these tasks is due."""
        return await self._claims.next_due(tasks)

    def foreign(self) -> Foreign | None:
        """What the last claim that found nothing saw of foreign leases."""
        return self._claims.foreign()

    async def wait(self, timeout: float) -> bool:
        """True when there may be new work."""
        notified = await self._listener.wait(timeout)
        if notified:
            self._claims.notified()
        return notified

    @property
    def is_listening(self) -> bool:
        """Notifications are known to arrive now."""
        return self._listener.is_listening

    def heartbeats(self) -> Heartbeats:
        """With a connection of its own."""
        return PostgresHeartbeats(self._context)

    @property
    def on_listening(self) -> Callable[[str, BaseException | None], None] | None:
        """Called with the state of the listening connection: "connecting", "success", or "error" and why."""
        return self._listener.on_listening

    @on_listening.setter
    def on_listening(self, callback: Callable[[str, BaseException | None], None] | None) -> None:
        self._listener.on_listening = callback

    @property
    def listener(self) -> object | None:
        """The listening connection, if any: to look at."""
        return self._listener.connection

    # -- a task's --------------------------------------------------------------------------------

    def connection(self) -> AbstractAsyncContextManager[Any]:
        """A connection for statements of an application's own, committed at the end of the block."""
        return self._context.pool.lend("task")

    def seat(self, slots: int) -> str | None:
        """Have a connection for each of a worker's slots. Returns a warning where there are fewer."""
        return self._context.seat(slots)

    def flow_tables(self) -> PostgresFlowTables:
        """What flows keep in the schema."""
        return PostgresFlowTables(self._context)

    # -- a producer's ----------------------------------------------------------------------------

    async def enqueue(self, job: NewJob) -> Job:
        """Commit one job and wake a worker."""
        return await self._producer.enqueue(job)

    async def add_built_in(self, job: NewJob) -> Job:
        """Commit one job of a built-in task."""
        return await self._producer.add_built_in(job)

    async def enqueue_many(self, jobs: Iterable[NewJob] | AsyncIterable[NewJob]) -> list[int]:
        """All or none; ids in the order given."""
        return await self._producer.enqueue_many(jobs)

    async def add_jobs(self, jobs: Sequence[NewJob]) -> Sequence[Job]:
        """All or none, given back whole."""
        return await self._producer.add_jobs(jobs) if jobs else []

    def enqueue_in(self, connection: object, job: NewJob) -> object:
        """Inside the caller's transaction: the ``Job``, or an awaitable of it on an asynchronous connection."""
        return self._producer.enqueue_in(connection, job)

    # -- a person's ------------------------------------------------------------------------------

    async def get(self, job_id: int) -> Job | None:
        """Live, or in the history."""
        return await self._inspector.get(job_id)

    async def list(self, wanted: JobFilter = NEWEST) -> Sequence[Job]:
        """In id order."""
        return await self._inspector.find(wanted)

    async def counts(self) -> dict[State, int]:
        """By state."""
        return await self._inspector.counts()

    async def oldest_due(self) -> float:
        """Seconds since the job that is due longest became due."""
        return await self._inspector.oldest_due()

    async def retry(self, job_id: int) -> Answer:
        """Due now."""
        return await self._inspector.retry(job_id)

    async def cancel(self, job_id: int) -> Answer:
        """At once; a running job is asked to stop."""
        return await self._inspector.cancel(job_id)

    async def remove(self, job_id: int) -> Answer:
        """Delete."""
        return await self._inspector.remove(job_id)

    async def retry_jobs(self, job_ids: Sequence[int]) -> Sequence[Answer]:
        """Due now."""
        return await self._administrator.retry_jobs(job_ids)

    async def cancel_jobs(self, job_ids: Sequence[int]) -> Sequence[Answer]:
        """At once; running jobs are asked to stop."""
        return await self._administrator.cancel_jobs(job_ids)

    async def remove_jobs(self, job_ids: Sequence[int]) -> Sequence[Answer]:
        """Delete."""
        return await self._administrator.remove_jobs(job_ids)

    async def remove_key(self, key: str) -> Answer:
        """Delete the job that holds the key."""
        return await self._inspector.remove_key(key)

    async def complete_jobs(self, job_ids: Sequence[int]) -> Sequence[Job]:
        """As if a worker had completed them."""
        return await self._administrator.complete_jobs(job_ids)

    async def permanently_fail_jobs(self, job_ids: Sequence[int], reason: str | None = None) -> Sequence[Job]:
        """For good."""
        return await self._administrator.permanently_fail_jobs(job_ids, reason)

    async def reschedule_jobs(self, job_ids: Sequence[int], to: Reschedule) -> Sequence[Job]:
        """Set the given details."""
        return await self._administrator.reschedule_jobs(job_ids, to)

    async def force_unlock_workers(self, workers: Sequence[str]) -> Sequence[Job]:
        """Take back what these workers hold."""
        return await self._administrator.force_unlock_workers(workers)

    # -- a scheduler's ---------------------------------------------------------------------------

    async def now(self) -> datetime:
        """The server's clock."""
        return await self._timetable.now()

    async def register(self, items: Sequence[tuple[str, str]]) -> Sequence[KnownItem]:
        """Make (identifier, spec) known."""
        return await self._timetable.register(items) if items else []

    async def schedule(self, ticks: Sequence[Tick]) -> Sequence[Entered]:
        """Enter ticks and enqueue their jobs, each once."""
        return await self._timetable.schedule(ticks) if ticks else []

    async def known_items(self) -> Sequence[KnownItem]:
        """By identifier."""
        return await self._timetable.known_items()

    async def ticks(self, identifier: str, since: datetime) -> Sequence[datetime]:
        """Those in the ledger."""
        return await self._timetable.ticks(identifier, since)

    # -- an operator's ---------------------------------------------------------------------------

    async def pause_queue(self, name: str) -> QueueChange:
        """A running job goes on."""
        return await self._operator.pause_queue(name)

    async def resume_queue(self, name: str) -> QueueChange:
        """Wakes workers."""
        return await self._operator.resume_queue(name)

    async def pause_task(self, name: str) -> TaskChange:
        """In every queue; a running job goes on."""
        return await self._operator.pause_task(name)

    async def resume_task(self, name: str) -> TaskChange:
        """Wakes workers."""
        return await self._operator.resume_task(name)

    async def pause_unqueued(self) -> TaskChange:
        """Jobs without a queue; a running one goes on."""
        return await self._operator.pause_unqueued()

    async def resume_unqueued(self) -> TaskChange:
        """Wakes workers."""
        return await self._operator.resume_unqueued()

    async def pauses(self) -> Pauses:
        """By name."""
        return await self._operator.pauses()

    async def retry_failed(self, job_ids: Sequence[int]) -> Sequence[int]:
        """All or none."""
        return await self._operator.retry_failed(job_ids)

    async def queues(self) -> Sequence[QueueRow]:
        """By name."""
        return await self._operator.queues()

    async def figures(self) -> Figures:
        """Exact while the tables are small; then estimated from a sample of their pages."""
        return await self._operator.figures()

    async def purge(self, ages: Ages, *, dry_run: bool = False) -> Purged:
        """Delete finished jobs older than these ages, page by page."""
        return await self._operator.purge(ages, dry_run=dry_run)

    async def workers(self) -> Sequence[WorkerRow]:
        """By name."""
        return await self._operator.workers()

    async def explain(self, job_id: int) -> Explanation | None:
        """Every reason why it is not running."""
        return await self._operator.explain(job_id)

    # -- the schema's ----------------------------------------------------------------------------

    async def install(self, *, roles: bool = False) -> SchemaStatus:
        """Install or upgrade, and make the roles if asked to."""
        return await self._installer.install(roles=roles)

    async def status(self) -> SchemaStatus:
        """What is there."""
        return await self._installer.status()

    async def plan(self, *, roles: bool = False) -> str:
        """What ``install`` would run."""
        return await self._installer.plan(roles=roles)

    async def foreign_changes(self) -> Sequence[str]:
        """What other programs have changed in it."""
        return await self._installer.foreign_changes()

    async def default_max_attempts(self) -> int:
        """Of a job that is enqueued without one."""
        return await self._installer.default_max_attempts()

    async def set_default_max_attempts(self, attempts: int) -> None:
        """From now on, for every enqueue."""
        await self._installer.set_default_max_attempts(attempts)

    async def uninstall(self) -> None:
        """Remove everything of ours."""
        await self._installer.uninstall()
