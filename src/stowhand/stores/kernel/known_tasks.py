"""Which tasks and queues are known, and which workers serve them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from stowhand.jobs.queues import DEFAULT_QUEUE
from stowhand.protocols.counts import LiveCounts, Pauses
from stowhand.protocols.operator import MAX_SHOWN_WORKERS, BacklogRow, WorkerRow
from stowhand.protocols.throughput import HOUR_SECONDS, MAX_TASKS_PER_MINUTE, OTHER_TASKS

RECENT_TASK_SECONDS = HOUR_SECONDS
"""Seconds within which a task had jobs that is known for them alone."""


def known_tasks(
    standing: Sequence[LiveCounts], counted: Iterable[str], workers: Sequence[WorkerRow], pauses: Pauses
) -> list[BacklogRow]:
    """By name. ``standing``: live jobs of the tasks with the most, and of the others together; ``counted``: tasks of
    which some ended lately."""
    alive = [row.description for row in workers if row.is_alive]
    live = {counts.name: counts for counts in standing}
    names = {*live, *counted, *pauses.tasks, *(task for card in alive for task in card.tasks or ())} - {
        None,
        OTHER_TASKS,
    }
    others = live.get(None, LiveCounts(name=None))
    if others.waiting.number or others.processing.number or others.failed.number:
        names &= live.keys()  # of which of the others there are jobs is not known
    rows = []
    for name in sorted(filter(None, names))[:MAX_TASKS_PER_MINUTE]:
        serving = [card.name for card in alive if card.tasks is None or name in card.tasks]
        rows.append(_row(name, live.get(name, others), pauses.tasks, serving))
    return rows


def known_queues(
    standing: Sequence[LiveCounts], declared: Iterable[str], workers: Sequence[WorkerRow], pauses: Pauses
) -> list[BacklogRow]:
    """Queues by name. ``standing``: live jobs of those with the most; ``declared``: queues of the tasks of workers."""
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
    """Queues that are known without jobs: of tasks, of workers that are alive, paused ones, and ``default``."""
    served = (name for row in workers if row.is_alive for name in row.description.queues.only or ())
    return {DEFAULT_QUEUE, *declared, *served, *pauses.queues}
