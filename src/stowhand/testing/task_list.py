"""Running the due jobs of plain functions once, to test tasks through a store."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from stowhand.app.drain import RecordedAttempt, Recorder
from stowhand.app.start import attempt_logger, open_installed
from stowhand.events import Events, JobEnded
from stowhand.jobs.job import Job
from stowhand.jobs.lifecycle import Snooze
from stowhand.protocols.attempt import Attempt
from stowhand.protocols.options import WorkerOptions
from stowhand.protocols.queue_store import QueueStore, Reschedule, lent_connection
from stowhand.stores.url import open_store
from stowhand.tasks.dispatch import TaskHandler
from stowhand.tasks.registry import Registry
from stowhand.tasks.task_list import TaskList, read_task_list
from stowhand.worker.worker import Worker

RETURN_DELAY = timedelta(days=1)


async def run_task_list_once(
    store: QueueStore | str, tasks: TaskList, *, concurrency: int = 1, **options: Any
) -> Sequence[RecordedAttempt]:
    """Run every due job of these tasks once, and the jobs that they add.

    Jobs that are due later, run elsewhere, have permanently failed, or belong to another task stay unchanged.

    Args:
        store: An open store, or a URL, whose absent schema is installed and whose store is closed at the end.
        tasks: Functions by name, ``(payload)`` or ``(payload, helpers)``, or tasks that an ``App`` declares.
        concurrency: Number of jobs to run at once.
        options: Fields of ``WorkerOptions``.

    Returns:
        The recorded attempts, in the order in which they finished.

    """
    if isinstance(store, str):
        own_store = open_store(store)
        try:
            await open_installed(own_store)
            return await _run(own_store, read_task_list(tasks), concurrency, options)
        finally:
            await own_store.close()
    return await _run(store, read_task_list(tasks), concurrency, options)


async def _run(
    store: QueueStore, registry: Registry, concurrency: int, options: dict[str, Any]
) -> Sequence[RecordedAttempt]:
    handler = TaskHandler(
        registry,
        enqueue=store.jobs.enqueue,
        logger_factory=attempt_logger,
        connect=partial(lent_connection, store),
    )
    once = _Once(handler)
    events = Events()
    events.on(JobEnded, once.recorder.recorded)
    worker_options = WorkerOptions(tasks=registry.names, concurrency=concurrency, once=True, **options)
    try:
        await Worker(store, once, worker_options, events=events).run()
    finally:
        handler.close()
        for job_id, run_at in once.due_times.items():
            await store.admin.reschedule_jobs([job_id], Reschedule(run_at=run_at))
    return once.recorder.ran


class _Once:
    """Handler that runs each job once, and keeps its outcome until it is recorded."""

    def __init__(self, inner: TaskHandler) -> None:
        self._inner = inner
        self.policy, self.encode, self.resources = inner.policy, inner.encode, inner.resources
        self.declarations, self.limits_per_worker = inner.declarations, inner.limits_per_worker
        self.recorder = Recorder(inner.policy)
        self._seen: set[int] = set()
        self.due_times: dict[int, datetime] = {}
        """Due times of jobs that were due again at once, by id."""

    async def handle(self, attempt: Attempt[Job], job: Job) -> object:
        """Call the inner handler. Postpone a job that is due again at once, without using an attempt."""
        job = attempt.record
        if job.id in self._seen:
            self.due_times[job.id] = job.run_at
            return Snooze(RETURN_DELAY)
        self._seen.add(job.id)
        return await self.recorder.watch(attempt, self._inner.handle(attempt, job))
