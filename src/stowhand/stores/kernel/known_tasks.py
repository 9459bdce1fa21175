"""The known tasks and queues, and the workers that serve them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from stowhand.jobs.queues import DEFAULT_QUEUE
from stowhand.protocols.counts import LiveCounts, Pauses
from stowhand.protocols.operator import MAX_SHOWN_WORKERS, BacklogRow, WorkerRow
from stowhand.protocols.throughput import HOUR_SECONDS, MAX_TASKS_PER_MINUTE, OTHER_TASKS

RECENT_TASK_SECONDS = HOUR_SECONDS
"""A task without live jobs and workers stays known for so long after its last job."""


def known_tasks(
    standing: Sequence[LiveCounts], counted: Iterable[str], workers: Sequence[WorkerRow], pauses: Pauses
) -> list[BacklogRow]:
    """Return the known tasks, ordered by name.

    ``standing``: live jobs of the tasks with the most jobs, and of all others together. ``counted``: tasks whose
    jobs ended recently.
    """
    alive = [row.description for row in workers if row.is_alive]
    live = {counts.name: counts for counts in standing}
    names = {*live, *counted, *pauses.tasks, *(task for card in alive for task in card.tasks or ())} - {
        None,
        OTHER_TASKS,
    }
    others = live.get(None, LiveCounts(name=None))
    if others.waiting.number or others.processing.number or others.failed.number:
        names &= live.keys()  # which of the other tasks have jobs is not known
    rows = []
    for name in sorted(filter(None, names))[:MAX_TASKS_PER_MINUTE]:
        serving = [card.name for card in alive if card.tasks is None or name in card.tasks]
        rows.append(_row(name, live.get(name, others), pauses.tasks, serving))
    return rows


def known_queues(
    standing: Sequence[LiveCounts], declared: Iterable[str], workers: Sequence[WorkerRow], pauses: Pauses
) -> list[BacklogRow]:
    """Return the known queues, ordered by name.

    ``standing``: live jobs of the queues with the most jobs. ``declared``: queues that workers have declared for tasks.
    """
    alive = [row.description for row in workers if row.is_alive]
    live = {counts.name: counts for counts in standing}
    names = {*live, *named_queues(declared, workers, pauses)} - {None}
    rows = []
    for name in sorted(filter(None, names))[:MAX_TASKS_PER_MINUTE]:
        serving = [card.name for card in alive if name in card.queues]
        rows.append(_row(name, live.get(name, LiveCounts(name=name)), pauses.queues, serving))
    return rows


def _row(name: str, live: LiveCounts, paused: Mapping[str, datetime], workers: Sequence[str]) -> BacklogRow:
    return BacklogRow(
        name=name,
        paused_since=paused.get(name),
        waiting=live.waiting,
        due=live.due,
        running=live.processing,
        failed=live.failed,
        serving=len(workers),
        workers=tuple(workers[:MAX_SHOWN_WORKERS]),
    )


def named_queues(declared: Iterable[str], workers: Sequence[WorkerRow], pauses: Pauses) -> set[str]:
    """Return the queues that are known without jobs: those of tasks and live workers, paused ones, and ``default``."""
    served = (name for row in workers if row.is_alive for name in row.description.queues.only or ())
    return {DEFAULT_QUEUE, *declared, *served, *pauses.queues}
