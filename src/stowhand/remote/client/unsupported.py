"""What a lent store does not do over HTTP: each method is refused, with the advice to do it beside the database."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NoReturn

from stowhand.errors import ConfigurationError
from stowhand.jobs.job import NewJob
from stowhand.protocols.operating import Ages
from stowhand.protocols.queue_store import NEWEST, JobFilter, Reschedule, SchemaStatus, Tick

VERSION = 1
"""Of the protocol: the 1 in its paths."""


class Unsupported:
    """The rest of a ``QueueStore``: every method raises ConfigurationError, but ``status``."""

    keeps_timetable = False
    """Recurring jobs are scheduled beside the database."""

    @property
    def description(self) -> str:
        raise NotImplementedError

    def _refuse(self, what: str) -> NoReturn:
        raise ConfigurationError(
            f"{what}: not over HTTP; {self.description} only lends its jobs to workers."
            " Do it on a machine that reaches the store itself, with that store's URL (-c postgresql://… or sqlite:///…)"
        )

    async def list(self, wanted: JobFilter = NEWEST) -> NoReturn:
        self._refuse("listing jobs")

    async def counts(self) -> NoReturn:
        self._refuse("counting jobs")

    async def oldest_due(self) -> NoReturn:
        self._refuse("looking at the queue")

    async def retry(self, job_id: int) -> NoReturn:
        self._refuse("retrying a job")

    async def cancel(self, job_id: int) -> NoReturn:
        self._refuse("canceling a job")

    async def remove(self, job_id: int) -> NoReturn:
        self._refuse("removing a job")

    async def remove_key(self, key: str) -> NoReturn:
        self._refuse("removing a job by its key")

    async def add_built_in(self, job: NewJob) -> NoReturn:
        self._refuse("enqueueing a built-in task")

    async def complete_jobs(self, job_ids: Sequence[int]) -> NoReturn:
        self._refuse("completing jobs by hand")

    async def permanently_fail_jobs(self, job_ids: Sequence[int], reason: str | None = None) -> NoReturn:
        self._refuse("failing jobs by hand")

    async def reschedule_jobs(self, job_ids: Sequence[int], to: Reschedule) -> NoReturn:
        self._refuse("rescheduling jobs")

    async def retry_jobs(self, job_ids: Sequence[int]) -> NoReturn:
        self._refuse("retrying jobs")

    async def cancel_jobs(self, job_ids: Sequence[int]) -> NoReturn:
        self._refuse("canceling jobs")

    async def remove_jobs(self, job_ids: Sequence[int]) -> NoReturn:
        self._refuse("removing jobs")

    async def force_unlock_workers(self, workers: Sequence[str]) -> NoReturn:
        self._refuse("unlocking workers")

    async def pause_queue(self, name: str) -> NoReturn:
        self._refuse("pausing a queue")

    async def resume_queue(self, name: str) -> NoReturn:
        self._refuse("resuming a queue")

    async def pause_task(self, name: str) -> NoReturn:
        self._refuse("pausing a task")

    async def resume_task(self, name: str) -> NoReturn:
        self._refuse("resuming a task")

    async def pause_unqueued(self) -> NoReturn:
        self._refuse("pausing jobs")

    async def resume_unqueued(self) -> NoReturn:
        self._refuse("resuming jobs")

    async def pauses(self) -> NoReturn:
        self._refuse("looking at pauses")

    async def retry_failed(self, job_ids: Sequence[int]) -> NoReturn:
        self._refuse("retrying jobs")

    async def queues(self) -> NoReturn:
        self._refuse("looking at queues")

    async def purge(self, ages: Ages, *, dry_run: bool = False) -> NoReturn:
        self._refuse("purging jobs")

    async def workers(self) -> NoReturn:
        self._refuse("looking at workers")

    async def explain(self, job_id: int) -> NoReturn:
        self._refuse("explaining why a job waits")

    async def figures(self) -> NoReturn:
        self._refuse("counting jobs")

    async def now(self) -> NoReturn:
        self._refuse("scheduling recurring jobs (a crontab)")

    async def register(self, items: Sequence[tuple[str, str]]) -> NoReturn:
        self._refuse("scheduling recurring jobs (a crontab)")

    async def schedule(self, ticks: Sequence[Tick]) -> NoReturn:
        self._refuse("scheduling recurring jobs (a crontab)")

    async def known_items(self) -> NoReturn:
        self._refuse("looking at recurring jobs")

    async def ticks(self, identifier: str, since: datetime) -> NoReturn:
        self._refuse("looking at recurring jobs")

    async def install(self, *, roles: bool = False) -> NoReturn:
        self._refuse("installing a schema")

    async def plan(self, *, roles: bool = False) -> NoReturn:
        self._refuse("installing a schema")

    async def foreign_changes(self) -> NoReturn:
        self._refuse("comparing a schema")

    async def default_max_attempts(self) -> NoReturn:
        self._refuse("looking at a schema's settings")

    async def set_default_max_attempts(self, attempts: int) -> NoReturn:
        self._refuse("changing a schema's settings")

    async def uninstall(self) -> NoReturn:
        self._refuse("removing a schema")

    async def status(self) -> SchemaStatus:
        """The protocol's version: the schema is checked by the server."""
        return SchemaStatus(installed=VERSION, expected=VERSION)

    def enqueue_in(self, connection: object, job: object) -> NoReturn:
        self._refuse("enqueueing inside a transaction of yours")

    def connection(self) -> NoReturn:
        self._refuse("lending a connection")

    def seat(self, slots: int) -> None:
        """Nothing: there is no connection pool to size."""

    def flow_tables(self) -> NoReturn:
        self._refuse("working on a flow")
