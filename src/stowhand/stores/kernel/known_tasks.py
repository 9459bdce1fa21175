"""Which tasks and queues are known, and which workers serve them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stowhand.jobs.queues import DEFAULT_QUEUE
from stowhand.protocols.figures import LiveCounts, Pauses
from stowhand.protocols.operating import ABLE_SHOWN, QueueRow, TaskRow, WorkerRow
from stowhand.protocols.throughput import HOUR, MOST_TASKS, OTHERS

COUNTED_FOR = HOUR
"""Seconds within which a task had jobs that is known for them alone."""


def known_tasks(
    standing: Sequence[LiveCounts], counted: Iterable[str], workers: Sequence[WorkerRow], pauses: Pauses
) -> list[TaskRow]:
    """By name. ``standing``: live jobs of the tasks with the most, and of the others together; ``counted``: tasks of
    which some ended lately."""
    alive = [row.card for row in workers if row.alive]
    live = {one.name: one for one in standing}
    names = {*live, *counted, *pauses.tasks, *(task for card in alive for task in card.tasks or ())} - {None, OTHERS}
    others = live.get(None, LiveCounts(name=None))
    if others.waiting.number or others.processing.number or others.failed.number:
        names &= live.keys()  # of which of the others there are jobs is not known
    rows = []
    for name in sorted(filter(None, names))[:MOST_TASKS]:
        able = [card.name for card in alive if card.tasks is None or name in card.tasks]
        one = live.get(name, others)
        rows.append(
            TaskRow(
                name=name,
                paused_since=pauses.tasks.get(name),
                waiting=one.waiting,
                due=one.due,
                running=one.processing,
                failed=one.failed,
                able=len(able),
                workers=tuple(able[:ABLE_SHOWN]),
            )
        )
    return rows


def known_queues(
    standing: Sequence[LiveCounts], declared: Iterable[str], workers: Sequence[WorkerRow], pauses: Pauses
) -> list[QueueRow]:
    """Queues by name. ``standing``: live jobs of those with the most; ``declared``: queues of the tasks of workers."""
    alive = [row.card for row in workers if row.alive]
    live = {one.name: one for one in standing}
    names = {*live, *named_queues(declared, workers, pauses)} - {None}
    rows = []
    for name in sorted(filter(None, names))[:MOST_TASKS]:
        serving = [card.name for card in alive if name in card.queues]
        one = live.get(name, LiveCounts(name=name))
        rows.append(
            QueueRow(
                name=name,
                paused_since=pauses.queues.get(name),
                waiting=one.waiting,
                due=one.due,
                running=one.processing,
                failed=one.failed,
                serving=len(serving),
                workers=tuple(serving[:ABLE_SHOWN]),
            )
        )
    return rows


def named_queues(declared: Iterable[str], workers: Sequence[WorkerRow], pauses: Pauses) -> set[str]:
    """Queues that are known without jobs: of tasks, of workers that are alive, paused ones, and ``default``."""
    served = (name for row in workers if row.alive for name in row.card.queues.only or ())
    return {DEFAULT_QUEUE, *declared, *served, *pauses.queues}
