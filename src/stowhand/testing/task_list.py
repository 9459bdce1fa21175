"""Run the jobs that are due and return what became of each: the shortest way to test tasks through a store."""

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

LATER = timedelta(days=1)


async def run_task_list_once(
    store: QueueStore | str, tasks: TaskList, *, concurrency: int = 1, **options: Any
) -> Sequence[RecordedAttempt]:
    """Run every due job of these tasks once, and the jobs that they add; returned in the order in which they ended.

    ``store``: an open one, or the URL of one (an absent schema is installed in it, and it is closed at the end).
    ``tasks``: functions by name, ``(payload)`` or ``(payload, helpers)``, or tasks that an ``App`` declares. What is
    due later, runs elsewhere, has failed for good or is of another task is left alone. ``options``: of WorkerOptions.
    """
    if isinstance(store, str):
        opened = open_store(store)
        try:
            await open_installed(opened)
            return await _run(opened, read_task_list(tasks), concurrency, options)
        finally:
            await opened.close()
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
    chosen = WorkerOptions(tasks=registry.names, concurrency=concurrency, once=True, **options)
    try:
        await Worker(store, once, chosen, events=events).run()
    finally:
        handler.close()
        for job_id, run_at in once.back.items():
            await store.admin.reschedule_jobs([job_id], Reschedule(run_at=run_at))
    return once.recorder.ran


class _Once:
    """Runs each job once, and keeps its outcome until that is recorded."""

    def __init__(self, inner: TaskHandler) -> None:
        self._inner = inner
        self.policy, self.encode, self.resources = inner.policy, inner.encode, inner.resources
        self.recorder = Recorder(inner.policy)
        self._seen: set[int] = set()
        self.back: dict[int, datetime] = {}
        """Jobs that came back at once, and when they are really due."""

    async def handle(self, attempt: Attempt[Job], job: Job) -> object:
        """As the inner handler; a job that comes back at once is put off, unspent, until the others have run."""
        job = attempt.record
        if job.id in self._seen:
            self.back[job.id] = job.run_at
            return Snooze(LATER)
        self._seen.add(job.id)
        return await self.recorder.watch(attempt, self._inner.handle(attempt, job))
