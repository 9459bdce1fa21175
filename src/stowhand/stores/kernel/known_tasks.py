"""The known tasks and queues, and the workers that serve them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from stowhand.jobs.queues import DEFAULT_QUEUE
from stowhand.protocols.counts import LiveCounts, Pauses
from stowhand.protocols.operator import MAX_SHOWN_WORKERS, BacklogRow, WorkerRow
from stowhand.protocols.throughput import HOUR_SECONDS, MAX_TASKS_PER_MINUTE, OTHER_TASKS

RECENT_TASK_SECONDS = HOUR_SECONDS
"""A task without live jobs and workers stays known for this time after its last job."""


def known_tasks(
    live_counts: Sequence[LiveCounts], recent_tasks: Iterable[str], workers: Sequence[WorkerRow], pauses: Pauses
) -> list[BacklogRow]:
    """Return the known tasks, ordered by name.

    ``standing``: live jobs of the tasks with the most jobs, and of all others together. ``counted``: tasks whose
    jobs ended recently.
    """
    alive = [row.description for row in workers if row.is_alive]
    live = {counts.name: counts for counts in live_counts}
    names = {*live, *recent_tasks, *pauses.tasks, *(task for worker in alive for task in worker.tasks or ())} - {
        None,
        OTHER_TASKS,
    }
    others = live.get(None, LiveCounts(name=None))
    if others.waiting.number or others.processing.number or others.failed.number:
        names &= live.keys()  # it is unknown which of the other tasks have jobs
    rows = []
    for name in sorted(filter(None, names))[:MAX_TASKS_PER_MINUTE]:
        serving = [worker.name for worker in alive if worker.tasks is None or name in worker.tasks]
        rows.append(_row(name, live.get(name, others), pauses.tasks, serving))
    return rows


def known_queues(
    live_counts: Sequence[LiveCounts], declared_queues: Iterable[str], workers: Sequence[WorkerRow], pauses: Pauses
) -> list[BacklogRow]:
    """Return the known queues, ordered by name.

    ``standing``: live jobs of the queues with the most jobs. ``declared``: queues that workers have declared for tasks.
    """
    alive = [row.description for row in workers if row.is_alive]
    live = {counts.name: counts for counts in live_counts}
    names = {*live, *named_queues(declared_queues, workers, pauses)} - {None}
    rows = []
    for name in sorted(filter(None, names))[:MAX_TASKS_PER_MINUTE]:
        serving = [worker.name for worker in alive if name in worker.queues]
        rows.append(_row(name, live.get(name, LiveCounts(name=name)), pauses.queues, serving))
    return rows


def _row(name: str, counts: LiveCounts, paused: Mapping[str, datetime], workers: Sequence[str]) -> BacklogRow:
    return BacklogRow(
        name=name,
        paused_since=paused.get(name),
        waiting=counts.waiting,
        due=counts.due,
        running=counts.processing,
        failed=counts.failed,
        serving=len(workers),
        workers=tuple(workers[:MAX_SHOWN_WORKERS]),
    )


def named_queues(declared_queues: Iterable[str], workers: Sequence[WorkerRow], pauses: Pauses) -> set[str]:
    """Return the queues that are known without jobs: those of tasks and live workers, paused ones, and ``default``."""
    served = (name for row in workers if row.is_alive for name in row.description.queues.only or ())
    return {DEFAULT_QUEUE, *declared_queues, *served, *pauses.queues}
